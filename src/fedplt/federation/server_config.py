"""The section ``[server]`` of a run's configuration."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fedplt.federation.unused import refuse_unused
from fedplt.server.optimizers import ServerOptimizer


class ServerConfig(BaseModel):
    """What the server does with the mean update of a round."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    optimizer: Literal["none", "momentum", "adam", "yogi"] = "none"
    """``none`` takes the mean as it is."""
    learning_rate: Annotated[float, Field(gt=0)] = 1.0
    """Not used by ``none``. Adam and Yogi want less, such as 0.01."""
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Of the momentum."""
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.99
    """Of the squares (Adam, Yogi)."""
    epsilon: Annotated[float, Field(gt=0)] = 1e-3

    @model_validator(mode="after")
    def _fits_the_optimizer(self) -> ServerConfig:
        unused = {
            "none": ("learning_rate", "beta1", "beta2", "epsilon"),
            "momentum": ("beta2", "epsilon"),
        }.get(self.optimizer, ())
        because = f"optimizer = {self.optimizer!r}"
        refuse_unused(self, unused, because, "or choose another optimizer, such as 'adam'")
        return self

    def build(self) -> ServerOptimizer:
        return ServerOptimizer(
            self.optimizer, self.learning_rate, self.beta1, self.beta2, self.epsilon
        )
