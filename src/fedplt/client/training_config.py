"""``[training]``: the settings of local training."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, field_validator

from fedplt.errors import ConfigError, did_you_mean
from fedplt.schema import Section

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    kind.__name__.lower(): kind
    for kind in (
        torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam,
        torch.optim.RAdam, torch.optim.Adamax, torch.optim.Adagrad, torch.optim.Adadelta,
        torch.optim.RMSprop, torch.optim.Rprop, torch.optim.ASGD,
    )
}  # fmt: skip
"""Optimizers that treat each coordinate independently, by name."""


class TrainingConfig(Section):
    """Local training: what a client does in a round, with a new optimizer in every round."""

    local_epochs: Annotated[int, Field(ge=1)] | None = None
    """Passes over the client's examples (default 1)."""
    local_steps: Annotated[int, Field(ge=1)] | None = None
    """Instead of ``local_epochs``: number of steps, each on a newly drawn batch."""
    batch_size: Annotated[int, Field(ge=1)] | Literal["full"] = 64
    """``"full"``: all examples of the client in one batch."""
    micro_batch: Annotated[int, Field(ge=1)] | None = None
    """Split batches into micro-batches of this many examples, whose gradients are added up: less
    memory, and the same update up to rounding if the loss is a mean over the examples."""
    optimizer: str = "sgd"
    learning_rate: Annotated[float, Field(gt=0)] = 0.01
    momentum: Annotated[float, Field(ge=0, lt=1)] | None = None
    weight_decay: Annotated[float, Field(ge=0)] | None = None
    optimizer_options: dict[str, Any] = {}
    augment: str | None = None
    """``package.module:function`` (inputs, generator) -> inputs: changes the inputs of a batch."""
    proximal: Annotated[float, Field(ge=0)] = 0.0
    """FedProx: strength of the proximal term (0: none)."""
    schedule: Literal["constant", "1/t", "constant-then-1/t", "cosine", "step"] = "constant"
    """How the learning rate changes over the rounds."""
    warmup_rounds: Annotated[int, Field(ge=0)] = 0
    """Warmup rounds, with any schedule: the rate grows linearly to that of the schedule."""
    constant_rounds: Annotated[int, Field(ge=0)] = 0
    """For ``constant-then-1/t``: rounds before the learning rate falls."""
    decay_rounds: Annotated[float, Field(gt=0)] = 1.0
    """For ``1/t``: the rate is multiplied by ``decay / (decay + t)``, half after ``decay`` rounds.
    For ``cosine``: rounds until the rate is ``final_factor`` of the first one, usually all rounds.
    For ``step``: rounds from one step to the next."""
    final_factor: Annotated[float, Field(ge=0, lt=1)] = 0.01
    """For ``cosine``: the last rate, as a factor of the first one."""
    step_factor: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """For ``step``: the rate is multiplied by it at every step."""
    slice_power: Annotated[float, Field(ge=0, le=1)] = 0.0
    """A client with ratio r starts with ``r ** -slice_power`` times the learning rate."""
    slice_rounds: Annotated[int, Field(ge=1)] = 30
    """Rounds in which the power falls to 0, linearly."""

    def refuse_conflicts(self) -> None:
        if self.local_epochs is not None and self.local_steps is not None:
            problem = "give either local_epochs or local_steps"
            raise ConfigError(problem, key="local_epochs", also=["local_steps"])
        because, instead = f"schedule = {self.schedule!r}", "or choose another schedule"
        if self.schedule in ("cosine", "step") and self.decay_rounds <= 1:
            problem = f"{because} needs it, larger than 1; for cosine usually the number of rounds"
            raise ConfigError(problem, key="decay_rounds", also=["schedule"])
        for key, schedule in (("final_factor", "cosine"), ("step_factor", "step")):
            if self.schedule != schedule:
                self.refuse_unused([key], because, instead)
        if not self.slice_power:
            self.refuse_unused(["slice_rounds"], "slice_power = 0", "or set slice_power")

    @field_validator("optimizer")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in OPTIMIZERS:
            raise ValueError(f"there is no optimizer {name!r}. {did_you_mean(name, OPTIMIZERS)}")
        return name

    @property
    def optimizer_arguments(self) -> dict[str, Any]:
        """Arguments of the optimizer besides the learning rate."""
        own = {"momentum": self.momentum, "weight_decay": self.weight_decay}
        given = {name: value for name, value in own.items() if value is not None}
        return {**self.optimizer_options, **given}

    @property
    def is_plain_sgd(self) -> bool:
        """Whether a step only subtracts the scaled gradient."""
        return (
            self.optimizer == "sgd"
            and not any(self.optimizer_arguments.values())
            and not self.proximal
        )

    def batch_of(self, num_examples: int) -> int:
        """The size of a client's first batch."""
        return num_examples if self.batch_size == "full" else min(self.batch_size, num_examples)

    def num_steps(self, num_examples: int) -> int:
        """The number of batches of a client in a round."""
        if self.local_steps is not None:
            return self.local_steps
        return (self.local_epochs or 1) * -(-num_examples // self.batch_of(num_examples))

    def examples_seen(self, num_examples: int) -> int:
        """The number of examples that a client processes in a round, repetitions included."""
        if self.local_steps is not None:
            return self.local_steps * self.batch_of(num_examples)
        return (self.local_epochs or 1) * num_examples

    def rate_factor(self, round: int) -> float:
        """The schedule's factor of the learning rate, in round 0, 1, ..."""
        warming = min(1.0, (round + 1) / (self.warmup_rounds + 1))
        part = round / self.decay_rounds
        if self.schedule == "constant":
            factor = 1.0
        elif self.schedule == "step":
            factor = self.step_factor ** int(part)
        elif self.schedule == "cosine":
            wave = (1 + math.cos(math.pi * min(part, 1.0))) / 2
            factor = self.final_factor + (1 - self.final_factor) * wave
        else:
            start = self.constant_rounds if self.schedule == "constant-then-1/t" else 0
            factor = self.decay_rounds / (self.decay_rounds + max(0, round - start))
        return warming * factor

    def slice_factor(self, ratio: float, round: int) -> float:
        r"""The factor of the learning rate for a client that trains a slice, in round 0, 1, ...

        :math:`r^{-p \max(0, 1 - t / T)}` for ratio r, with p = ``slice_power`` and
        T = ``slice_rounds``: small slices take larger steps at first.
        """
        return float(ratio ** (-self.slice_power * max(0.0, 1 - round / self.slice_rounds)))
