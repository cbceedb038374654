"""The section ``[server]`` of a run's configuration."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from fedplt.federation.section import Section
from fedplt.server import ServerOptimizer


class ServerConfig(Section):
    """What the server does with the mean update of a round."""

    optimizer: Literal["none", "momentum", "adam", "yogi"] = "none"
    """``none`` adds the mean update as it is."""
    learning_rate: Annotated[float, Field(gt=0)] = 1.0
    """Not used by ``none``. Adam and Yogi need a smaller one, such as 0.01."""
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Decay of the momentum."""
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.99
    """Decay of the squares (Adam, Yogi)."""
    epsilon: Annotated[float, Field(gt=0)] = 1e-3
    min_clients: Annotated[int, Field(ge=1)] = 1
    """A round with fewer updates does not count."""
    attempts: Annotated[int, Field(ge=1)] = 3
    """How often a round below ``min_clients`` is tried."""

    @model_validator(mode="after")
    def _fits_the_optimizer(self) -> ServerConfig:
        unused = {
            "none": ("learning_rate", "beta1", "beta2", "epsilon"),
            "momentum": ("beta2", "epsilon"),
        }.get(self.optimizer, ())
        because = f"optimizer = {self.optimizer!r}"
        self.refuse_unused(unused, because, "or choose another optimizer, such as 'adam'")
        return self

    def build(self) -> ServerOptimizer:
        return ServerOptimizer(
            self.optimizer, self.learning_rate, self.beta1, self.beta2, self.epsilon
        )
