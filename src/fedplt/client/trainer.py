"""What a client does in a round, whoever asks for it: an engine's worker, or a Flower node.

Given the global numbers, its assignment, the recipe, its own data and what it kept of earlier
rounds, a client trains and gives a small result and its update. It knows no engine.
"""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedplt.client.local_training import LocalTraining, train_client
from fedplt.client.recipe_blocks import scaled
from fedplt.client.submodels import HeldModels
from fedplt.client.update import change_since, update_norm
from fedplt.data import Samples
from fedplt.kernels import bind_state, parts_of, put, take
from fedplt.planning import Assignment, Layers, Places, dotted


@dataclass(frozen=True, eq=False)
class TrainOrder:
    """What a client is told to do in a round."""

    client: int
    round: int
    seed: int
    assignment: Assignment
    training: LocalTraining
    learning_rate: float
    block_weights: Tensor | None = None
    """What the server will divide each number of the update by, where the norm must know it."""


@dataclass(frozen=True)
class ClientResult:
    """What a client says before it uploads anything."""

    client: int
    num_examples: int
    norm: float
    """Euclidean norm of the update's parameters."""
    loss: float
    seconds: float
    weighted_norm: float | None = None
    """Of the update as it will be aggregated; where block weights were given."""


class ClientTrainer:
    """Trains clients one after another with one resident model.

    The model is never copied: only slices change, and they are put back from the global numbers.
    """

    def __init__(
        self, model: nn.Module, layers: Layers, global_state: Tensor, local: Places
    ) -> None:
        """``global_state`` stays the caller's; ``local`` are the places that never leave a client.

        Call :meth:`refresh` when the global state has changed.
        """
        self.model, self.layers, self.local = model, layers, local
        self.global_state = global_state
        self.state = bind_state(model, layers)
        self._models = HeldModels(model, self.state)
        shared = {spec.name for spec in layers.tensors}
        self._other_buffers = {
            dotted(name, key): (module, key, buffer, buffer.clone())
            for name, module in model.named_modules()
            for key, buffer in module.named_buffers(recurse=False)
            if dotted(name, key) not in shared
        }

    def refresh(self) -> None:
        """Take over the global numbers."""
        self.state.copy_(self.global_state)

    def take_kept(self, kept: Tensor) -> None:
        """Give the model the numbers that only this client has."""
        put(self.state, self.local, kept.to(self.state.device))

    def kept(self) -> Tensor:
        """The numbers that only the client has that was trained last."""
        return take(self.state, self.local).cpu()

    def train(
        self, order: TrainOrder, samples: Samples, examples: range, update: Tensor
    ) -> ClientResult:
        """Train, put what changed into ``update``, and put the model's slices back.

        ``examples`` are the client's own in ``samples``.
        """
        started = time.perf_counter()
        assignment = order.assignment
        held = assignment.build(self._models)
        with scaled(held.module, assignment, order.training.recipe):
            loss = train_client(
                held.module,
                assignment.on_client,
                samples,
                examples,
                order.training,
                learning_rate=order.learning_rate,
                seed=order.seed,
                round=order.round,
                client=order.client,
            )
        places = assignment.uploaded
        take(self.global_state, places, out=update)
        change_since(update, parts_of(held.state, assignment.on_client.uploaded))
        if held.state is self.state:
            self._put_back(places)
        self.put_buffers_back()
        norm, weighted = update_norm(update, assignment), None
        if order.block_weights is not None:
            weighted = update_norm(update / order.block_weights, assignment)
        seconds = time.perf_counter() - started
        return ClientResult(order.client, len(examples), norm, loss, seconds, weighted)

    def _put_back(self, places: Places) -> None:
        parts = (parts_of(flat, places) for flat in (self.state, self.global_state))
        for new, old in zip(*parts, strict=True):
            new.copy_(old)

    def put_buffers_back(self, warn: bool = True) -> None:
        """Buffers that nobody averages must not carry one client's training into the next."""
        for name, (module, key, buffer, old) in self._other_buffers.items():
            now = module._buffers[key]
            if now is buffer and torch.equal(buffer, old):
                continue
            module._buffers[key] = buffer.copy_(old)
            if warn and not name.endswith("num_batches_tracked"):
                warnings.warn(
                    f"buffer {name} changes in training; fedplt shares only running statistics of "
                    "normalization layers, so it is put back to its initial value after every "
                    "client.",
                    stacklevel=2,
                )
