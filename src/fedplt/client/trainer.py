"""A client's work in a round: the same code in a simulator worker and on a Flower node.

Input: the global state, the client's assignment, the recipe, its data, and its local state from
earlier rounds. Output: a small result and the update. Nothing here depends on an engine.
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
    """The server's divisor of each value; None unless the sampler needs the weighted norm."""

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
        shared = {spec.name for spec in layers.tensors}
        self._other_buffers = {
            dotted(name, key): (module, key, buffer, buffer.clone())
            for name, module in model.named_modules()
            for key, buffer in module.named_buffers(recurse=False)
            if dotted(name, key) not in shared
        }
        self.attributes = _values_in(model)
        """Plain attributes of modules, such as counters; reset like buffers."""

    def refresh(self) -> None:
        """Copy the global state into the model."""
        self.state.copy_(self.global_state)

    def load_local_state(self, local: Tensor) -> None:
        """Load a client's local state from earlier rounds into the model."""
        put(self.state, self.local, local.to(self.state.device))

    def local_state(self) -> Tensor:
        """The local state of the last trained client, which is never uploaded."""
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
        step; it may raise to end the training.
        """
        started = time.perf_counter()
        assignment, wrote = order.assignment, list[bool]()
        held = assignment.build(self._models)
        try:
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
                    on_write=lambda: wrote.append(True),
                    on_step=on_step,
                )
        except BaseException:  # the next client must not start with changed values
            self.refresh()
            self.reset_buffers(warn=False)
            raise
        take(self.global_state, assignment.uploaded, out=update)
        change_since(update, parts_of(held.state, assignment.on_client.uploaded))
        if wrote:  # to any parameters
            local = self.local_state()
            self.refresh()
            self.load_local_state(local)
        elif held.state is self.state:
            states = (self.state, self.global_state)
            parts = (parts_of(state, assignment.uploaded) for state in states)
            for new, old in zip(*parts, strict=True):
                new.copy_(old)
        self.reset_buffers()
        norm = update_norm(update, assignment)
        weighted = weighted_norm(update, order.block_weights, assignment)
        seconds = time.perf_counter() - started
        return ClientResult(order.client, len(examples), norm, loss, seconds, weighted)

    def reset_buffers(self, warn: bool = True) -> None:
        """Reset buffers and attributes that are not aggregated: clients must not share them."""
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
            now = vars(module).get(key, old)  # it may have been deleted, or become a parameter
            if now is old or (type(now) is type(old) and (now == old or not _is_plain(now))):
                continue  # a list that now holds objects, such as handles of hooks, is not reset
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
    others = vars(nn.Module()).keys()  # such as ``training`` and the hook tables
    return [
        (name, module, key, value, copy.deepcopy(value))
        for name, module in model.named_modules()
        for key, value in vars(module).items()
        if key not in others and _is_plain(value)
    ]


def _is_plain(value: Any) -> bool:
    """Whether a value is a number or text, or a list, dictionary, set or deque of them."""
    if type(value) in (list, tuple, set, deque):
        return all(_is_plain(item) for item in value)
    if type(value) is dict:
        return all(_is_plain(item) for item in (*value, *value.values()))
    return type(value) in (int, float, bool, str)


def _filled(value: Any, old: Any) -> Any:
    """The old value, in the same list or dictionary: other modules may share it."""
    if isinstance(value, (list, set, deque, dict)):
        value.clear()
        add: Any = value.extend if isinstance(value, (list, deque)) else value.update
        add(copy.deepcopy(old))
    return value
