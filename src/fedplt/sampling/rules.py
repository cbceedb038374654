"""The rules that choose clients by the norms of their updates, by name.

To add one: a function in a file of its own, and a line in ``RULES``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedplt.sampling.approximate import approximate_probabilities
from fedplt.sampling.fleet import Numbers
from fedplt.sampling.optimal import proportional_probabilities, sampling_probabilities
from fedplt.sampling.printed import paper_probabilities

Fleet = tuple[Numbers, Numbers, Numbers, float]
"""Update norms, numbers of examples, costs of an upload, and the budget."""


@dataclass(frozen=True)
class Rule:
    """A way to choose clients."""

    probabilities: Callable[..., Numbers | tuple[Numbers, int]]
    """From a fleet; with the exchanges between server and clients beyond the norms, if any."""
    budget_in: Literal["models", "clients"] = "models"
    scores: Callable[..., Numbers] | None = None
    """What probabilities are proportional to, for rules that spend another amount than the budget
    in whole models: it can be matched then."""

    def choose(self, fleet: Fleet, *, match_budget: bool = False) -> tuple[Numbers, int]:
        """Probabilities, and exchanges beyond the norms themselves."""
        if match_budget:
            assert self.scores is not None
            return proportional_probabilities(self.scores(*fleet), fleet[2], fleet[3]), 0
        found = self.probabilities(*fleet)
        return found if isinstance(found, tuple) else (found, 0)


def _original_scores(norms: Numbers, examples: Numbers, costs: Numbers, budget: float) -> Numbers:
    return norms * examples


def _clipped(*fleet: object) -> Numbers:
    return np.minimum(1.0, paper_probabilities(*fleet))  # type: ignore[arg-type]


RULES = {
    "ocs": Rule(sampling_probabilities, "clients", _original_scores),
    "fedplt-ocs": Rule(sampling_probabilities),
    "paper-ocs": Rule(_clipped, scores=paper_probabilities),
    "approximate-ocs": Rule(approximate_probabilities),
}
