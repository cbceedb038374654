"""The ``[sampling]`` section: who takes part in a round."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from fedplt.federation.section import Section

Estimator = Literal["unbiased", "renormalised"]
NORM_BASED = ("ocs", "fedplt-ocs", "paper-ocs", "approximate-ocs")
"""Samplers that choose by the norms of the clients' updates."""


class SamplingConfig(Section):
    """Who takes part in a round."""

    name: Literal["all", "uniform", "ocs", "fedplt-ocs", "paper-ocs", "approximate-ocs"] = "all"
    num_clients: Annotated[int, Field(ge=1)] | None = None
    """For ``uniform``: how many, drawn in every round."""
    budget: Annotated[float, Field(gt=0)] | None = None
    """For the others: expected uploads per round, in whole models (``ocs`` without
    ``match_budget``: in clients)."""
    match_budget: bool = False
    """For ``ocs`` and ``paper-ocs``, which do not spend a budget in whole models exactly: scale
    their probabilities until they do."""
    norms: Literal["fresh", "last"] = "fresh"
    """``fresh``: all train and send their norm. ``last``: only the chosen train at all."""
    floor: Annotated[float, Field(ge=0, le=1)] = 0.1
    """For ``last``: fraction of the budget that is spent uniformly, so that nobody is forgotten."""
    objective: Literal["sum", "aggregate"] = "sum"
    """Minimise the variance of the sum of updates (as in the paper), or of what is added to the
    model."""
    estimator: Estimator | None = None
    """By default ``renormalised`` for ``all`` and ``uniform``, ``unbiased`` for the others."""

    @property
    def by_norm(self) -> bool:
        return self.name in NORM_BASED

    @property
    def in_models(self) -> bool:
        """Whether the budget counts whole models; else it counts clients."""
        return self.name != "ocs" or self.match_budget

    @property
    def estimator_used(self) -> Estimator:
        return self.estimator or ("unbiased" if self.by_norm else "renormalised")

    @model_validator(mode="after")
    def _fits_the_name(self) -> SamplingConfig:
        if (self.name == "uniform") != (self.num_clients is not None):
            raise ValueError("name = 'uniform' and num_clients go together: set both or neither")
        if self.by_norm and self.budget is None:
            unit = "whole models" if self.in_models else "clients"
            raise ValueError(
                f"name = {self.name!r} needs a budget, the expected uploads per round in {unit}, "
                "such as budget = 5.0"
            )
        if not self.by_norm:
            keys = ("budget", "match_budget", "floor", "norms", "objective")
            instead = f"or choose one of {', '.join(NORM_BASED)}"
            self.refuse_unused(keys, f"name = {self.name!r}", instead)
        if self.match_budget and self.name not in ("ocs", "paper-ocs"):
            raise ValueError(
                f"match_budget: name = {self.name!r} spends the budget as it is; leave it out, or "
                "choose ocs or paper-ocs"
            )
        if self.by_norm and self.norms == "fresh":
            self.refuse_unused(["floor"], "norms = 'fresh'", "or set norms = 'last'")
        return self
