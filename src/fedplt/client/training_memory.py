"""The memory that a client needs to train, counted from steps that really run.

Two short trainings run, with batches of two and of three examples. All allocations of torch are
recorded in order. The size of an allocation is linear in the number of examples, so the list for
any other batch size follows, and from it the peak. This needs no formula per kind of layer, and
estimates nothing that can be counted.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from fedplt.client.local_training import LocalTraining, scaled, train_client
from fedplt.client.outputs import logits_of
from fedplt.client.submodels import HeldModels
from fedplt.client.tasks import Loss
from fedplt.client.train_only import train_only
from fedplt.client.training_config import OPTIMIZERS
from fedplt.data import TensorSamples, tensors_in
from fedplt.kernels import bind_state, has_running_statistics
from fedplt.models import call_model, copy_model, model_mode
from fedplt.planning import BYTES_PER_NUMBER, Assignment, upload_bytes
from fedplt.torch_internals import BatchNormBase, recorded_allocations

SIZES = (2, 3)
"""Sizes of the recorded batches. Many operations treat a single example differently."""


@dataclass(frozen=True)
class TrainingMemory:
    """Bytes of one client's training, part by part."""

    weights: int
    buffers: int
    update: int
    """Bytes of the update that is uploaded after training."""
    optimizer: int
    """The optimizer's state of the trained slices."""
    gradients: int
    """Gradients of the trained slices; 0 if plain SGD is fused into the backward pass."""
    activations: int
    """Tensors that the forward pass saves for the backward pass, including inputs."""
    peak: int
    """The peak of a step, with the temporary memory of operations.

    Less than the sum of the parts if activations are freed before all gradients exist.
    """
    saved: Mapping[str, int]
    """The activations by the module that saves them; the loss has no name."""

    def parts(self) -> dict[str, int]:
        """Everything but ``saved``, by name."""
        return {name: number for name, number in asdict(self).items() if name != "saved"}


class MemoryCounter:
    """Counts the memory of training a model, for any assignment and batch size.

    The recording of an assignment is cached and serves all batch sizes. Its batches are small, so
    it lacks the buffers of kernels for large products (1 MB at most).
    """

    def __init__(
        self, model: nn.Module, example: Any, training: LocalTraining | None = None
    ) -> None:
        """``example``: a batch of inputs; ``training``: the optimizer, the loss and so on."""
        self.model, self.example = model, example
        self.training = training or LocalTraining()
        self._recorded: dict[Any, tuple[list[int], list[int]]] = {}

    def peak(self, assignment: Assignment, batch_size: int, micro_batch: int | None = None) -> int:
        """Peak in bytes; ``micro_batch``: see :class:`TrainingConfig`."""
        is_split = micro_batch is not None and micro_batch < batch_size
        size = min(micro_batch or batch_size, batch_size)
        held = assignment.on_client
        key = (held.layers.size, held.slices, is_split)
        if key in self._recorded:
            first, second = self._recorded[key]
        else:
            first, second = (self._allocations(assignment, each, is_split) for each in SIZES)
            if len(first) == len(second):
                self._recorded[key] = first, second
            else:  # the model computes the two sizes differently: others cannot be predicted
                first = second = self._allocations(assignment, size, is_split)
        return max(accumulate(map(functools.partial(_at, size), first, second)))

    def memory(
        self, assignment: Assignment, batch_size: int, micro_batch: int | None = None
    ) -> TrainingMemory:
        """The peak and its parts."""
        is_split = micro_batch is not None and micro_batch < batch_size
        size = min(micro_batch or batch_size, batch_size)
        with self._held(assignment) as model:
            weights, buffers = _bytes(model.parameters()), _bytes(model.buffers())
            first, second = (
                saved_bytes(model, assignment, *self._batch(model, each)) for each in SIZES
            )
        saved = {
            name: _at(size, number, second.get(name, number)) for name, number in first.items()
        }
        trained = BYTES_PER_NUMBER * assignment.on_client.num_trained
        return TrainingMemory(
            weights=weights, buffers=buffers, update=upload_bytes(assignment),
            optimizer=round(self._state_per_number() * trained),
            gradients=0 if self.training.settings.is_plain_sgd and not is_split else trained,
            activations=sum(saved.values()), saved=saved,
            peak=self.peak(assignment, batch_size, micro_batch),
        )  # fmt: skip

    def measure(self, assignment: Assignment, batch_size: int) -> int:
        """The peak of a real training with this batch size on this machine."""
        return max(accumulate(self._allocations(assignment, batch_size, False)))

    def _state_per_number(self) -> float:
        """Numbers of optimizer state per trained number."""
        settings, numbers = self.training.settings, nn.Parameter(torch.zeros(1000))
        options = settings.optimizer_arguments
        optimizer = OPTIMIZERS[settings.optimizer]([numbers], lr=0.1, **options)
        numbers.grad = torch.ones(1000)
        optimizer.step()
        state = [value for value in optimizer.state[numbers].values() if torch.is_tensor(value)]
        found = sum(value.numel() == len(numbers) for value in state)
        return found + (settings.proximal > 0)  # the proximal term needs the global values

    def _allocations(self, assignment: Assignment, size: int, is_split: bool) -> list[int]:
        """Bytes that the client holds besides its training, then what training allocates, frees."""
        number = 2 * size if is_split else size
        with self._held(assignment) as model:
            (inputs, targets), loss = self._batch(model, number)
            training = self.training.with_settings(
                local_epochs=None, local_steps=2, batch_size=number,
                micro_batch=size if is_split else None,
            )  # fmt: skip
            with recorded_allocations() as allocations:
                train_client(
                    model, assignment.on_client, TensorSamples(inputs, targets), range(number),
                    replace(training, augment=None, loss=loss),
                    learning_rate=0.0, seed=0, round=0, client=0,
                )  # fmt: skip
            held = _bytes(model.parameters()) + _bytes(model.buffers())
        return [held, upload_bytes(assignment), *allocations]

    @contextmanager
    def _held(self, assignment: Assignment) -> Iterator[nn.Module]:
        """A copy of the model that the client holds; inside the block, it may be trained."""
        whole = copy_model(self.model)
        model = assignment.build(HeldModels(whole, bind_state(whole, assignment.layers))).module
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # like the simulator; some operations need memory per thread
        try:
            with (
                torch.random.fork_rng(devices=[]),
                warnings.catch_warnings(),
                scaled(model, assignment, self.training.recipe),
            ):
                warnings.simplefilter("ignore")
                yield model
        finally:
            torch.set_num_threads(threads)

    def _batch(self, model: nn.Module, number: int) -> tuple[tuple[Any, Any], Loss]:
        """Copies of the first example with targets that the loss takes, and the loss."""
        number_given = len(next(iter(tensors_in(self.example))))
        samples = TensorSamples(self.example, torch.zeros(number_given))
        copies, targets = samples.batch(torch.zeros(number, dtype=torch.int64))
        with torch.no_grad(), model_mode(model, training=False):
            outputs = call_model(model, copies)
            with suppress(Exception):  # a user's model may give anything
                scores = logits_of(outputs)
                labels = scores.new_zeros(scores.shape[:-1], dtype=torch.int64)
                for guess in (labels, torch.zeros_like(scores)):
                    with suppress(Exception):  # a user's loss may raise anything
                        self.training.loss(outputs, guess)
                        return (copies, guess), self.training.loss
        return (copies, targets), _mean_square


def _at(size: int, first: int, second: int) -> int:
    """Bytes for a batch of ``size``, extrapolated linearly from those for ``SIZES``."""
    return first + (size - SIZES[0]) * (second - first)


def _mean_square(outputs: Any, targets: Any) -> Tensor:
    """Replaces a loss whose targets are not known."""
    floats = [tensor for tensor in tensors_in(outputs) if tensor.is_floating_point()]
    return torch.stack([tensor.square().mean() for tensor in floats]).sum()


def training_memory(
    model: nn.Module,
    example: Any,
    assignment: Assignment,
    *,
    batch_size: int = 64,
    training: LocalTraining | None = None,
) -> TrainingMemory:
    """The memory that a client with this assignment needs to train.

    ``example`` is a batch of inputs, of any size; ``training`` has the optimizer, the loss and
    ``micro_batch``.
    """
    counter = MemoryCounter(model, example, training)
    return counter.memory(assignment, batch_size, counter.training.settings.micro_batch)


def saved_bytes(
    model: nn.Module, assignment: Assignment, batch: tuple[Any, Any], loss: Loss
) -> dict[str, int]:
    """Bytes that a forward pass saves for its backward pass, by module; parameters do not count.

    Memory that several modules save is counted once, for the first of them.
    """
    names = {id(module): name for name, module in model.named_modules()}
    own = (tensor.untyped_storage() for tensor in (*model.parameters(), *model.buffers()))
    seen = {storage.data_ptr() for storage in own}
    kept: list[Tensor] = []
    result: dict[str, int] = defaultdict(int)

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in seen:
            seen.add(storage.data_ptr())
            kept.append(tensor)  # else its address may be used again
            result[names.get(_calling_module(), "")] += storage.nbytes()
        return tensor

    inputs, targets = batch
    with (
        model_mode(model, training=True),
        train_only(model, assignment.on_client, keep_old=False),
        saved_tensors_hooks(pack, lambda tensor: tensor),
    ):
        loss(call_model(model, inputs), targets)
    return dict(result)


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _calling_module() -> int:
    """Identity of the innermost module whose call is on the stack."""
    frame = sys._getframe(2)
    while frame is not None and frame.f_code.co_name != "_call_impl":
        frame = frame.f_back  # type: ignore[assignment]
    return 0 if frame is None else id(frame.f_locals["self"])


def batch_statistics(model: nn.Module) -> str:
    """The name of a layer that normalizes by batch statistics; empty if there is none.

    With such layers, micro-batches do not give the same update as the whole batch.
    """
    for name, module in model.named_modules():
        if isinstance(module, BatchNormBase) or has_running_statistics(module):
            return name or type(module).__name__
    return ""
