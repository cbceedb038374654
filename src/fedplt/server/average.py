r"""Averages of the global models of past rounds, evaluated and saved beside the last one.

``decay``: :math:`A \leftarrow \beta A + (1 - \beta) W`, starting with the first round's model.
``window``: the mean of the last :math:`m` models.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedplt.errors import ConfigError
from fedplt.schema import Section


class AverageSettings(Section):
    """Which models are averaged: give ``decay`` or ``window``."""

    decay: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Weight of the average so far, such as 0.9."""
    window: Annotated[int, Field(ge=1)] | None = None
    """Number of models."""
    ship: bool | Literal["better"] = True
    """Which model is ``model.safetensors``: the average (true), the last round's (false), or the
    one with the better mean score over the last ten evaluated rounds (``"better"``)."""

    def refuse_conflicts(self) -> None:
        if (self.decay is None) == (self.window is None):
            raise ConfigError("give decay or window, such as decay = 0.9")


@dataclass(frozen=True, eq=False)
class ModelAverage:
    """The average so far; :meth:`after` returns the next one without changing this one."""

    settings: AverageSettings
    models: Tensor | None = None
    """The decayed average, (1, state); or the last models of the window, (models, state)."""

    def after(self, state: Tensor) -> ModelAverage:
        """The average that includes the model of one more round."""
        settings = self.settings
        if self.models is None:
            return ModelAverage(settings, state.clone()[None])
        if settings.decay is not None:
            return ModelAverage(settings, torch.lerp(state, self.models, settings.decay))
        assert settings.window is not None
        return ModelAverage(settings, torch.cat([self.models, state[None]])[-settings.window :])

    @property
    def state(self) -> Tensor:
        """The averaged model."""
        assert self.models is not None
        return self.models.mean(dim=0)

    def tensors(self) -> dict[str, Tensor]:
        """For a checkpoint; :meth:`restored` reads it."""
        return {} if self.models is None else {"average": self.models}

    def restored(self, tensors: Mapping[str, Tensor]) -> ModelAverage:
        return ModelAverage(self.settings, tensors.get("average"))
