r"""The server's step: add the mean update, or use it as a gradient for an optimizer (FedOpt).

With :math:`\Delta` the mean update of a round, momentum adds :math:`\eta\, m` to the model, with
:math:`m = \beta_1 m + \Delta`; Adam and Yogi add :math:`\eta\, m / (\sqrt v + \epsilon)`, without
bias correction, with :math:`m = \beta_1 m + (1 - \beta_1) \Delta` and
:math:`v = \beta_2 v + (1 - \beta_2) \Delta^2` or
:math:`v = v - (1 - \beta_2) \Delta^2 \operatorname{sign}(v - \Delta^2)`; :math:`v` starts at
:math:`\epsilon^2`. A coordinate that no client trained in a round does not change, nor does its
optimizer state. Running statistics are averages: the optimizer does not apply to them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedplt.kernels import buffer_positions
from fedplt.planning import Layers

Memory = dict[str, Tensor]
"""The state of a server optimizer, by name."""


@dataclass(frozen=True)
class ServerOptimizer:
    """The kind and hyperparameters of the server's step."""

    kind: Literal["none", "momentum", "adam", "yogi"] = "none"
    learning_rate: float = 1.0
    beta1: float = 0.9
    beta2: float = 0.99
    epsilon: float = 1e-3

    def start(self, layers: Layers) -> Memory:
        """The optimizer state before the first round."""
        size = layers.state_size
        if self.kind == "none":
            return {}
        memory = {"server_m": torch.zeros(size)}
        if self.kind != "momentum":
            memory["server_v"] = torch.full((size,), self.epsilon**2)
        return memory

    def step(
        self,
        layers: Layers,
        old: Tensor,
        mean: Tensor,
        find_touched: Callable[[], Tensor],
        memory: Memory,
        factor: float = 1.0,
    ) -> tuple[Tensor, Memory]:
        """The new model state and optimizer state; nothing is changed in place.

        ``old`` is the state before the round, ``mean`` is ``old`` plus the mean update, and
        ``find_touched`` returns the mask of the coordinates that at least one client trained. The
        step is multiplied by ``factor``.
        """
        if self.kind == "none" and factor == 1:
            return mean, memory
        touched = find_touched()
        touched[buffer_positions(layers)] = False
        where = touched.nonzero().squeeze(1)
        change = mean[where] - old[where]
        state = mean.clone()
        if self.kind == "none":
            state[where] = old[where] + factor * change
            return state, memory
        m = memory["server_m"][where]
        new_memory = {name: values.clone() for name, values in memory.items()}
        if self.kind == "momentum":
            m = self.beta1 * m + change
            move = self.learning_rate * m
        else:
            m = self.beta1 * m + (1 - self.beta1) * change
            v, squares = memory["server_v"][where], change * change
            if self.kind == "adam":
                v = self.beta2 * v + (1 - self.beta2) * squares
            else:
                v = v - (1 - self.beta2) * squares * torch.sign(v - squares)
            move = self.learning_rate * m / (v.sqrt() + self.epsilon)
            new_memory["server_v"][where] = v
        new_memory["server_m"][where] = m
        state[where] = old[where] + factor * move
        return state, new_memory
