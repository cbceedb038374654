"""The rules that choose clients by the norms of their updates, by name.

To add one, write a function in a new file and add a line to ``RULES``.
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

FleetNumbers = tuple[Numbers, Numbers, Numbers, float]
"""Update norms, numbers of examples, costs of an upload, and the budget."""


@dataclass(frozen=True)
class Rule:
    """A rule that gives each client a probability."""

    probabilities: Callable[..., Numbers | tuple[Numbers, int]]
    """Computes the probabilities of a fleet, and the number of exchanges beyond the norms."""
    budget_in: Literal["models", "clients"] = "models"
    scores: Callable[..., Numbers] | None = None
    """For rules that do not spend a budget in whole models exactly: the scores to which
    probabilities are proportional. ``match_budget`` needs them."""

    def choose(self, fleet: FleetNumbers, *, match_budget: bool = False) -> tuple[Numbers, int]:
        """Probabilities, and the number of message exchanges needed beyond sending the norms."""
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
