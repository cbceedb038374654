"""``[training]``: what a client does in a round."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from fedplt.client import OPTIMIZERS
from fedplt.data import Augment
from fedplt.errors import ConfigError, did_you_mean
from fedplt.imports import import_object
from fedplt.schema import Section

FROM_PYTHON = "(given from Python)"
"""Stands for an object that was given to ``fedplt.train``: a model, data, a loss, a function."""


class TrainingConfig(Section):
    """Local training: what a client does in a round."""

    local_epochs: Annotated[int, Field(ge=1)] | None = None
    """Passes over the client's examples (default 1)."""
    local_steps: Annotated[int, Field(ge=1)] | None = None
    """Instead of ``local_epochs``: number of steps, each on a newly drawn batch."""
    batch_size: Annotated[int, Field(ge=1)] | Literal["full"] = 64
    """``"full"``: all examples of the client in one batch."""
    optimizer: str = "sgd"
    learning_rate: Annotated[float, Field(gt=0)] = 0.01
    momentum: Annotated[float, Field(ge=0, lt=1)] | None = None
    weight_decay: Annotated[float, Field(ge=0)] | None = None
    optimizer_options: dict[str, Any] = {}
    augment: str | None = None
    """``package.module:function`` (inputs, generator) -> inputs: changes the inputs of a batch."""
    proximal: Annotated[float, Field(ge=0)] = 0.0
    """FedProx: strength of the proximal term (0: none)."""
    schedule: Literal["constant", "1/t", "constant-then-1/t"] = "constant"
    """How the learning rate changes over the rounds."""
    constant_rounds: Annotated[int, Field(ge=0)] = 0
    """For ``constant-then-1/t``: rounds before the learning rate falls."""
    decay_rounds: Annotated[float, Field(gt=0)] = 1.0
    """The falling rate is multiplied by ``decay / (decay + t)``: half after ``decay`` rounds."""

    @model_validator(mode="after")
    def _one_of(self) -> TrainingConfig:
        if self.local_epochs is not None and self.local_steps is not None:
            problem = "give either local_epochs or local_steps"
            raise ConfigError(problem, key="local_epochs", also=["local_steps"])
        return self

    @field_validator("optimizer")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in OPTIMIZERS:
            raise ValueError(f"there is no optimizer {name!r}. {did_you_mean(name, OPTIMIZERS)}")
        return name

    def augmentation(self) -> Augment | None:
        """The function itself; None where there is none, or where it comes from Python."""
        if self.augment in (None, FROM_PYTHON):
            return None
        found: Augment = import_object(str(self.augment), "training.augment")
        return found

    def rate_factor(self, round: int) -> float:
        """The schedule's factor of the learning rate, in round 0, 1, ..."""
        if self.schedule == "constant":
            return 1.0
        start = self.constant_rounds if self.schedule == "constant-then-1/t" else 0
        falling = max(0, round - start)
        return self.decay_rounds / (self.decay_rounds + falling)
