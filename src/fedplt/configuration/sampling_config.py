"""The ``[sampling]`` section: who takes part in a round."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from fedplt.errors import ConfigError, did_you_mean
from fedplt.imports import import_object
from fedplt.methods import NamedClasses
from fedplt.sampling import RULES, SAMPLERS, Rule, Sampler
from fedplt.schema import Section

Estimator = Literal["unbiased", "renormalized"]
_CLASSES = NamedClasses(
    key="sampling.name",
    options_key="sampling.options",
    base=Sampler,
    known=SAMPLERS,
    wanted="a subclass of fedplt.sampling.Sampler (or a function of norms, with sampling.budget)",
    page="docs/add_sampler.md",
    needs=("probabilities",),
)


class SamplingConfig(Section):
    """Who takes part in a round."""

    name: str = "all"
    """``all``, ``uniform``, ``bernoulli``, ``strong``, ``ocs``, ``fedplt-ocs``, ``paper-ocs``,
    ``approximate-ocs``, or ``package.module:Class`` (``docs/add_sampler.md``)."""
    options: dict[str, Any] = {}
    """Options of ``strong`` (``min_ratio``), or the fields of a sampler class by import path."""
    num_clients: Annotated[int, Field(ge=1)] | None = None
    """For ``uniform``: how many clients are drawn in each round."""
    probability: Annotated[float, Field(gt=0, le=1)] | None = None
    """For ``bernoulli``: every client takes part with this probability, independently."""
    budget: Annotated[float, Field(gt=0)] | None = None
    """For samplers by norm: expected uploads per round, in whole models (``ocs`` without
    ``match_budget``: in clients)."""
    match_budget: bool = False
    """For ``ocs`` and ``paper-ocs``, which do not spend a budget in whole models exactly: scale
    their probabilities so that they do."""
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
        """Whether clients are chosen by the norms of their updates, for a budget.

        This needs no import: a function by import path needs a budget, a class takes none.
        """
        return self.name in RULES or (":" in self.name and self.budget is not None)

    @property
    def in_models(self) -> bool:
        """Whether the budget counts whole models; else it counts clients."""
        return self.match_budget or not (self.by_norm and self.rule.budget_in == "clients")

    @property
    def rule(self) -> Rule:
        """The rule of a sampler by norm; imports what is named by import path."""
        if self.name in RULES:
            return RULES[self.name]
        found = import_object(self.name, "sampling.name", "a function of norms")
        if isinstance(found, type):
            raise ConfigError(
                f"{self.name!r} is a class, which takes no sampling.budget: leave "
                "it out (its options go under sampling.options), or name a function of norms.",
                key="sampling.name",
            )
        return found if isinstance(found, Rule) else Rule(found)

    @property
    def sampler(self) -> Sampler:
        """The sampler that chooses before training; imports what is named by import path."""
        given = {key: value for key in _OPTIONS if (value := getattr(self, key)) is not None}
        for key in given.keys() - _CLASSES.options(self.name):
            raise ConfigError(
                f"{self.name} has no such option; leave it out.", key=f"sampling.{key}"
            )
        return _CLASSES.make(self.name, {**given, **self.options})

    @property
    def weighs(self) -> bool:
        """Whether updates are weighted by one over their client's probability."""
        return self.by_norm or self.estimator_used == "unbiased"

    @property
    def estimator_used(self) -> Estimator:
        return self.estimator or ("unbiased" if self.by_norm else "renormalized")

    def refuse_conflicts(self) -> None:
        known = [*SAMPLERS, *RULES]
        if self.name not in known and ":" not in self.name:
            raise ConfigError(
                f"there is no sampler {self.name!r}. {did_you_mean(self.name, known)} Your own is "
                "named by import path: 'my_module:MySampler'.",
                key="name",
            )
        for key in sorted(_OPTIONS):
            owners = [name for name in SAMPLERS if key in _CLASSES.options(name)]
            if ":" not in self.name and (self.name in owners) != (getattr(self, key) is not None):
                named = " or ".join(map(repr, owners))
                problem = f"name = {named} and {key} go together: set both or neither"
                raise ConfigError(problem, key=key, also=["name"])
        if self.by_norm and self.budget is None:
            unit = "whole models" if self.in_models else "clients"
            raise ConfigError(
                f"name = {self.name!r} needs a budget, the expected uploads per round in {unit}, "
                "such as budget = 5.0",
                key="budget",
                also=["name"],
            )
        if not self.by_norm:
            keys = ("budget", "match_budget", "floor", "norms", "objective")
            instead = f"or choose one of {', '.join(RULES)}"
            self.refuse_unused(keys, f"name = {self.name!r}", instead)
        if self.name in SAMPLERS:
            _ = self.sampler  # refuses unknown options
        elif self.by_norm:
            self.refuse_unused(["options"], f"name = {self.name!r}", "or name a class")
        if self.match_budget and (":" in self.name or self.rule.scores is None):
            others = [name for name, rule in RULES.items() if rule.scores is not None]
            raise ConfigError(
                f"name = {self.name!r} spends its whole budget; leave match_budget out, or choose "
                f"one of {', '.join(others)}",
                key="match_budget",
            )
        if self.by_norm and self.norms == "fresh":
            self.refuse_unused(["floor"], "norms = 'fresh'", "or set norms = 'last'")


_OPTIONS = set().union(*map(_CLASSES.options, SAMPLERS)) & SamplingConfig.model_fields.keys()
"""Options of built-in samplers that are keys of the section itself."""
