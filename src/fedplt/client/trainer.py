"""What a client does in a round, the same in a simulator worker and on a Flower node.

Input: the global state, the client's assignment, the recipe, its own data, and the state it kept
from earlier rounds. Output: a small result and the update. Nothing here depends on an engine.
"""

from __future__ import annotations

import copy
import time
import warnings
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedplt.client.local_training import LocalTraining, scaled, train_client
from fedplt.client.submodels import HeldModels
from fedplt.client.update import change_since, update_norm, weighted_norm
from fedplt.data import Samples
from fedplt.kernels import bind_state, parts_of, put, take
from fedplt.planning import Assignment, FlatIndex, Layers, dotted
from fedplt.text import brief


@dataclass(frozen=True, eq=False, kw_only=True)
class TrainOrder:
    """The server's instructions to a client for one round."""

    client: int
    round: int
    seed: int
    assignment: Assignment
    training: LocalTraining
    learning_rate: float
    block_weights: Tensor | None = None
    """The server's divisor of each value of the update; None unless the weighted norm is needed."""

    __repr__ = brief


@dataclass(frozen=True)
class ClientResult:
    """What a client reports before it uploads its update."""

    client: int
    num_examples: int
    norm: float
    """Euclidean norm of the update's parameters."""
    loss: float
    seconds: float
    weighted_norm: float | None = None
    """Norm of the update as it will be aggregated; None without block weights."""


class ClientTrainer:
    """Trains clients one after another with one model.

    The model is never copied: only slices change, and they are reset from the global state.
    """

    def __init__(
        self, model: nn.Module, layers: Layers, global_state: Tensor, local: FlatIndex
    ) -> None:
        """``global_state`` is read, never written; ``local`` is the part that stays on the client.

        Call :meth:`refresh` when the global state has changed.
        """
        self.model, self.layers, self.local = model, layers, local
        self.global_state = global_state
        self.state = bind_state(model, layers)
        self._models = HeldModels(model, self.state)
        self._must_refresh = False
        shared = {spec.name for spec in layers.tensors}
        self._other_buffers = {
            dotted(name, key): (module, key, buffer, buffer.clone())
            for name, module in model.named_modules()
            for key, buffer in module.named_buffers(recurse=False)
            if dotted(name, key) not in shared
        }
        self.attributes = _values_in(model)
        """Plain values that modules keep, such as counters; reset like buffers."""

    def refresh(self) -> None:
        """Copy the global state into the model."""
        self.state.copy_(self.global_state)

    def take_kept(self, kept: Tensor) -> None:
        """Load the state that a client kept from earlier rounds into the model."""
        put(self.state, self.local, kept.to(self.state.device))

    def kept(self) -> Tensor:
        """The state that the last trained client keeps, which is never uploaded."""
        return take(self.state, self.local).cpu()

    def train(
        self,
        order: TrainOrder,
        samples: Samples,
        examples: range,
        update: Tensor,
        on_step: Callable[[], None] | None = None,
    ) -> ClientResult:
        """Train, write the change into ``update``, and reset the model's slices.

        ``examples`` are the client's examples in ``samples``. ``on_step`` is called before every
        step, and ends the training by raising.
        """
        started = time.perf_counter()
        assignment = order.assignment
        held = assignment.build(self._models)
        try:
            loss = self._train(held.module, order, samples, examples, on_step)
        except BaseException:  # the next client must not start from what this one left
            self._must_refresh = False
            self.refresh()
            self.put_state_back(warn=False)
            raise
        places = assignment.uploaded
        take(self.global_state, places, out=update)
        change_since(update, parts_of(held.state, assignment.on_client.uploaded))
        if self._must_refresh:
            self._must_refresh, kept = False, self.kept()
            self.refresh()
            self.take_kept(kept)
        elif held.state is self.state:
            self._put_back(places)
        self.put_state_back()
        norm = update_norm(update, assignment)
        weighted = weighted_norm(update, order.block_weights, assignment)
        seconds = time.perf_counter() - started
        return ClientResult(order.client, len(examples), norm, loss, seconds, weighted)

    def _train(
        self,
        module: nn.Module,
        order: TrainOrder,
        samples: Samples,
        examples: range,
        on_step: Callable[[], None] | None,
    ) -> float:
        with scaled(module, order.assignment, order.training.recipe):
            return train_client(
                module,
                order.assignment.on_client,
                samples,
                examples,
                order.training,
                learning_rate=order.learning_rate,
                seed=order.seed,
                round=order.round,
                client=order.client,
                on_write=self._refresh_later,
                on_step=on_step,
            )

    def _refresh_later(self) -> None:
        self._must_refresh = True

    def _put_back(self, places: FlatIndex) -> None:
        parts = (parts_of(flat, places) for flat in (self.state, self.global_state))
        for new, old in zip(*parts, strict=True):
            new.copy_(old)

    def put_state_back(self, warn: bool = True) -> None:
        """Reset what is not aggregated, so that no client sees what another one left."""
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
        for name, module, key, value, old in self.attributes:
            now = vars(module).get(key, old)  # it may be deleted, or a parameter by now
            if now is old or (type(now) is type(old) and (now == old or not _is_plain(now))):
                continue  # a list that now holds other things, such as handles of hooks, is left
            setattr(module, key, _filled(value, old))
            if warn:
                warnings.warn(
                    f"attribute {dotted(name, key)} changes in training; it is put back to its "
                    "initial value after every client, so that results do not depend on the order "
                    "of clients.",
                    stacklevel=2,
                )


def _values_in(model: nn.Module) -> list[tuple[str, nn.Module, str, Any, Any]]:
    """Owner, name and value of each attribute, and a copy of the value."""
    others = vars(nn.Module()).keys()  # such as training, and the tables of hooks
    return [
        (name, module, key, value, copy.deepcopy(value))
        for name, module in model.named_modules()
        for key, value in vars(module).items()
        if key not in others and _is_plain(value)
    ]


def _is_plain(value: Any) -> bool:
    """A number or text, or a list, dictionary, set or deque of them."""
    if type(value) in (list, tuple, set, deque):
        return all(_is_plain(item) for item in value)
    if type(value) is dict:
        return all(_is_plain(item) for item in (*value, *value.values()))
    return type(value) in (int, float, bool, str)


def _filled(value: Any, old: Any) -> Any:
    """The value as it was: the same list, which other modules may share."""
    if isinstance(value, (list, set, deque, dict)):
        value.clear()
        add: Any = value.extend if isinstance(value, (list, deque)) else value.update
        add(copy.deepcopy(old))
    return value
