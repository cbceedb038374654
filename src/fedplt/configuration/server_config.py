"""The section ``[server]`` of a run's configuration."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from fedplt.configuration.section import Section
from fedplt.server import AggregationRule, RuleName, ServerOptimizer


class ServerConfig(Section):
    """How the server joins the updates of a round, and what it does with the result."""

    aggregation: RuleName = "mean"
    """``mean``, ``median``, ``trimmed-mean`` or ``clipped-mean`` (``docs/robust.md``)."""
    trim: Annotated[float, Field(ge=0, lt=0.5)] = 0.2
    """For ``trimmed-mean``: fraction of the contributors left out at each end."""
    clip: Annotated[float, Field(gt=0)] = 1.0
    """For ``clipped-mean``: largest root mean square of an update in a layer, in medians of the
    round's clients."""
    max_rms: Annotated[float, Field(gt=0)] | None = None
    """An update with a larger root mean square in a layer is refused; default: no limit."""
    weights: Literal["examples", "equal"] = "examples"
    """An update counts by its client's number of examples, or every update counts the same."""
    max_examples: Annotated[int, Field(ge=1)] | None = None
    """An update counts as at most this many examples; default: no limit."""
    min_contributors: Annotated[int, Field(ge=1)] = 1
    """A sub-layer that fewer clients trained in a round keeps its values."""
    optimizer: Literal["none", "momentum", "adam", "yogi"] = "none"
    """``none`` adds the mean update as it is."""
    learning_rate: Annotated[float, Field(gt=0)] = 1.0
    """Not used by ``none``. Adam and Yogi need a smaller one, such as 0.01."""
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Decay of the momentum."""
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.99
    """Decay of the squares (Adam, Yogi)."""
    epsilon: Annotated[float, Field(gt=0)] = 1e-3
    min_clients: Annotated[int, Field(ge=0)] = 0
    """A round with fewer updates than this does not count and is tried again."""
    attempts: Annotated[int, Field(ge=1)] = 3
    """How often a round is tried before the run stops (it can be resumed)."""

    @model_validator(mode="after")
    def _fits_the_aggregation(self) -> ServerConfig:
        used = {
            "trim": ("trimmed-mean",),
            "clip": ("clipped-mean",),
            "weights": ("mean", "clipped-mean"),
            "max_examples": ("mean", "clipped-mean"),
        }
        because = f"aggregation = {self.aggregation!r}"
        for key, names in used.items():
            if self.aggregation not in names:
                self.refuse_unused([key], because, f"or set aggregation = {names[-1]!r}")
        if self.weights == "equal":
            self.refuse_unused(["max_examples"], "weights = 'equal'", "or weigh by examples")
        return self

    @model_validator(mode="after")
    def _fits_the_optimizer(self) -> ServerConfig:
        unused = {
            "none": ("learning_rate", "beta1", "beta2", "epsilon"),
            "momentum": ("beta2", "epsilon"),
        }.get(self.optimizer, ())
        because = f"optimizer = {self.optimizer!r}"
        self.refuse_unused(unused, because, "or choose another optimizer, such as 'adam'")
        return self

    @property
    def rule(self) -> AggregationRule:
        return AggregationRule(self.aggregation, self.trim, self.clip, self.min_contributors)

    def build(self) -> ServerOptimizer:
        return ServerOptimizer(
            self.optimizer, self.learning_rate, self.beta1, self.beta2, self.epsilon
        )
