"""The ``[sampling]`` section: who takes part in a round."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from fedplt.configuration.section import Section
from fedplt.errors import did_you_mean
from fedplt.sampling import RULES, Rule

Estimator = Literal["unbiased", "renormalized"]
SAMPLERS = ("all", "uniform", "bernoulli", *RULES)
"""The names in ``RULES`` choose by the norms of the clients' updates."""


class SamplingConfig(Section):
    """Who takes part in a round."""

    name: str = "all"
    """``all``, ``uniform``, ``bernoulli``, ``ocs``, ``fedplt-ocs``, ``paper-ocs`` or
    ``approximate-ocs``."""
    num_clients: Annotated[int, Field(ge=1)] | None = None
    """For ``uniform``: how many clients are drawn in each round."""
    probability: Annotated[float, Field(gt=0, le=1)] | None = None
    """For ``bernoulli``: every client takes part with this probability, whatever others do."""
    budget: Annotated[float, Field(gt=0)] | None = None
    """For samplers by norm: expected uploads per round, in whole models (``ocs`` without
    ``match_budget``: in clients)."""
    match_budget: bool = False
    """For ``ocs`` and ``paper-ocs``, which do not spend a budget in whole models exactly: scale
    their probabilities until they do."""
    norms: Literal["fresh", "last"] = "fresh"
    """``fresh``: all clients train and send their norm. ``last``: only the chosen ones train."""
    floor: Annotated[float, Field(ge=0, le=1)] = 0.1
    """For ``last``: fraction of the budget spent uniformly, so that every client has a chance."""
    objective: Literal["sum", "aggregate"] = "sum"
    """Minimize the variance of the sum of updates (as in the paper), or of the aggregated
    update."""
    estimator: Estimator | None = None
    """By default ``unbiased`` for samplers by norm, ``renormalized`` for the others."""

    @property
    def by_norm(self) -> bool:
        return self.name in RULES

    @property
    def in_models(self) -> bool:
        """Whether the budget counts whole models; else it counts clients."""
        return self.match_budget or not (self.by_norm and self.rule.budget_in == "clients")

    @property
    def weighs_blocks(self) -> bool:
        """Whether clients need the weights of the blocks to compute their norms."""
        return self.objective == "aggregate"

    @property
    def rule(self) -> Rule:
        """The rule of a sampler by norm."""
        return RULES[self.name]

    @property
    def estimator_used(self) -> Estimator:
        return self.estimator or ("unbiased" if self.by_norm else "renormalized")

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in SAMPLERS:
            raise ValueError(f"there is no sampler {name!r}. {did_you_mean(name, SAMPLERS)}")
        return name

    @model_validator(mode="after")
    def _fits_the_name(self) -> SamplingConfig:
        if (self.name == "uniform") != (self.num_clients is not None):
            raise ValueError("name = 'uniform' and num_clients go together: set both or neither")
        if (self.name == "bernoulli") != (self.probability is not None):
            raise ValueError("name = 'bernoulli' and probability go together: set both or neither")
        if self.by_norm and self.budget is None:
            unit = "whole models" if self.in_models else "clients"
            raise ValueError(
                f"name = {self.name!r} needs a budget, the expected uploads per round in {unit}, "
                "such as budget = 5.0"
            )
        if not self.by_norm:
            keys = ("budget", "match_budget", "floor", "norms", "objective")
            instead = f"or choose one of {', '.join(RULES)}"
            self.refuse_unused(keys, f"name = {self.name!r}", instead)
        if self.match_budget and self.rule.scores is None:
            others = [name for name, rule in RULES.items() if rule.scores is not None]
            raise ValueError(
                f"match_budget: name = {self.name!r} spends the budget as it is; leave it out, or "
                f"choose one of {', '.join(others)}"
            )
        if self.by_norm and self.norms == "fresh":
            self.refuse_unused(["floor"], "norms = 'fresh'", "or set norms = 'last'")
        return self
