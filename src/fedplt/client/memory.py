"""The memory that a client needs to train, counted from steps that really run.

Two short trainings run, with batches of two and of three examples, and everything that torch's
allocator does in them is recorded in order. The size of each allocation is linear in the number of
examples, so the same list for any other batch size follows, and with it the fullest moment of a
training. No formula per kind of layer is needed, and nothing is estimated that can be counted.
"""

from __future__ import annotations

import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from fedplt.client.local_training import OPTIMIZERS, LocalTraining, scaled, train_client
from fedplt.client.outputs import logits_of
from fedplt.client.submodels import HeldModel, HeldModels
from fedplt.client.train_only import train_only
from fedplt.data import TensorSamples
from fedplt.kernels import bind_state, has_running_statistics
from fedplt.models import call_model, copy_model, model_mode
from fedplt.planning import Assignment, upload_bytes
from fedplt.torch_internals import BatchNormBase, recorded_allocations

SIZES = (2, 3)
"""Batches that are run. A single example is a special case of many operations."""


@dataclass(frozen=True)
class TrainingMemory:
    """Bytes of one client's training, part by part."""

    weights: int
    buffers: int
    update: int
    """What is uploaded after training."""
    optimizer: int
    """The optimizer's state of the trained slices."""
    gradients: int
    """Of the trained slices; none where plain SGD is fused into the backward pass."""
    activations: int
    """What the forward pass saves for the backward pass, with the inputs that it needs."""
    peak: int
    """All of it at the fullest moment of a step, with what single operations need.

    Less than the sum where gradients come while activations are freed.
    """
    saved: Mapping[str, int]
    """The activations by the module that saves them; the loss has no name."""

    def parts(self) -> dict[str, int]:
        """Everything but ``saved``, by name."""
        return {name: number for name, number in asdict(self).items() if name != "saved"}


class _Recorded(NamedTuple):
    """What was recorded with one batch size."""

    allocations: list[int]
    saved: dict[str, int]


class MemoryCounter:
    """Counts the memory of training a model, for any assignment and batch size.

    A recording of an assignment is kept and serves all batch sizes.
    """

    def __init__(
        self, model: nn.Module, example: Any, training: LocalTraining | None = None
    ) -> None:
        """``example``: a batch of inputs; ``training``: the optimizer, the loss and so on."""
        self.model, self.example = model, example
        self.training = training or LocalTraining()
        self._recorded: dict[Any, tuple[_Recorded, _Recorded]] = {}
        self._samples: TensorSamples | None = None

    def memory(
        self, assignment: Assignment, batch_size: int, micro_batch: int | None = None
    ) -> TrainingMemory:
        """Of a client with this assignment; ``micro_batch``: see :class:`LocalTraining`."""
        size, is_split = batch_size, micro_batch is not None and micro_batch < batch_size
        if micro_batch is not None and is_split:
            size = micro_batch
        key = (assignment.on_client.layers.size, assignment.on_client.slices, is_split)
        if key not in self._recorded:
            first, second = (self._record(assignment, number, is_split) for number in SIZES)
            if len(first.allocations) != len(second.allocations):  # it computes in another way
                first = second = self._record(assignment, size, is_split)
            self._recorded[key] = first, second
        first, second = self._recorded[key]

        def at_size(pair: tuple[int, int]) -> int:
            return pair[0] + (size - SIZES[0]) * (pair[1] - pair[0])

        pairs = zip(first.allocations, second.allocations, strict=True)
        saved = {
            name: at_size((number, second.saved.get(name, number)))
            for name, number in first.saved.items()
        }
        with self._held(assignment) as held:
            weights, buffers = (
                sum(tensor.numel() * tensor.element_size() for tensor in tensors)
                for tensors in (held.module.parameters(), held.module.buffers())
            )
        update, trained = upload_bytes(assignment), 4 * assignment.on_client.num_trained
        state = self._optimizer_state()
        return TrainingMemory(
            weights=weights, buffers=buffers, update=update,
            optimizer=round(state * trained), gradients=0 if self._fuses(is_split) else trained,
            activations=sum(saved.values()),
            peak=weights + buffers + update + max(accumulate(map(at_size, pairs), initial=0)),
            saved=saved,
        )  # fmt: skip

    def measure(self, assignment: Assignment, batch_size: int) -> int:
        """The peak of a real training with this batch size on this machine."""
        counted = self.memory(assignment, batch_size)
        allocations = self._record(assignment, batch_size, False).allocations
        held = counted.weights + counted.buffers + counted.update
        return held + max(accumulate(allocations, initial=0))

    def _fuses(self, is_split: bool) -> bool:
        settings = self.training
        plain = settings.optimizer == "sgd" and not any(settings.optimizer_options.values())
        return plain and not settings.proximal and not is_split

    def _optimizer_state(self) -> float:
        """Numbers of state per trained number."""
        numbers = nn.Parameter(torch.zeros(1000))
        settings = self.training
        optimizer = OPTIMIZERS[settings.optimizer]([numbers], lr=0.1, **settings.optimizer_options)
        numbers.grad = torch.ones(1000)
        optimizer.step()
        state = [value for value in optimizer.state[numbers].values() if torch.is_tensor(value)]
        found = sum(value.numel() for value in state if value.numel() == 1000) / 1000
        return found + (settings.proximal > 0)  # the global values of the proximal term

    @contextmanager
    def _held(self, assignment: Assignment) -> Iterator[HeldModel]:
        """The model that the client holds: a copy, as training changes it."""
        model = copy_model(self.model)
        yield assignment.build(HeldModels(model, bind_state(model, assignment.layers)))

    def _record(self, assignment: Assignment, size: int, is_split: bool) -> _Recorded:
        number = 2 * size if is_split else size
        settings = replace(
            self.training, local_epochs=None, local_steps=2, batch_size=number,
            micro_batch=size if is_split else None, augment=None,
        )  # fmt: skip
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            with (
                torch.random.fork_rng(devices=[]),
                warnings.catch_warnings(),
                self._held(assignment) as held,
                scaled(held.module, assignment, settings.recipe),
            ):
                warnings.simplefilter("ignore")
                samples, loss = self._samples_and_loss(held.module, number)
                settings = replace(settings, loss=loss)
                with recorded_allocations() as allocations:
                    train_client(
                        held.module, assignment.on_client, samples, range(number), settings,
                        learning_rate=0.0, seed=0, round=0, client=0,
                    )  # fmt: skip
                saved = saved_bytes(held.module, assignment, samples, range(size), loss)
        finally:
            torch.set_num_threads(threads)
        return _Recorded(allocations, saved)

    def _samples_and_loss(self, model: nn.Module, number: int) -> tuple[TensorSamples, Any]:
        """Copies of the first example, with targets that the loss takes."""
        inputs: Any = self.example
        while not isinstance(inputs, Tensor):
            inputs = next(iter(inputs.values() if isinstance(inputs, Mapping) else inputs))
        chosen = np.zeros(number, dtype=np.int64)
        samples = TensorSamples(self.example, torch.zeros(len(inputs))).arranged(chosen)
        with torch.no_grad(), model_mode(model, training=False):
            outputs = call_model(model, samples.inputs)
            try:
                scores = logits_of(outputs)
                guesses = scores.new_zeros(scores.shape[:-1], dtype=torch.int64), scores * 0
            except Exception:  # any structure of a user's model
                guesses = (samples.targets,) * 2
            for targets in guesses:
                try:
                    self.training.loss(outputs, targets)
                except Exception:  # the user's loss may raise anything
                    continue
                return replace(samples, targets=targets), self.training.loss
        return samples, _mean_square


def _mean_square(outputs: Any, targets: Any) -> Tensor:
    """Stands for a loss whose targets are not known."""
    return logits_of(outputs).square().mean()


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
    return counter.memory(assignment, batch_size, counter.training.micro_batch)


def saved_bytes(
    model: nn.Module,
    assignment: Assignment,
    samples: TensorSamples,
    examples: range,
    loss: Callable[[Any, Any], Tensor],
) -> dict[str, int]:
    """Bytes that a forward pass saves for its backward pass, by module; parameters are not saved.

    Memory that several modules save counts for the first of them.
    """
    names = {id(module): name for name, module in model.named_modules()}
    seen = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    result: dict[str, int] = defaultdict(int)

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in seen:
            seen.add(storage.data_ptr())
            kept.append(tensor)  # else its address may be used again
            result[names.get(_calling_module(), "")] += storage.nbytes()
        return tensor

    kept: list[Tensor] = []
    inputs, targets = samples.batch(torch.arange(examples.stop))
    with (
        model_mode(model, training=True),
        train_only(model, assignment.on_client, keep_old=False),
        saved_tensors_hooks(pack, lambda tensor: tensor),
    ):
        loss(call_model(model, inputs), targets)
    return dict(result)


def _calling_module() -> int:
    """Identity of the innermost module whose call is on the stack."""
    frame = sys._getframe(2)
    while frame is not None and frame.f_code.co_name != "_call_impl":
        frame = frame.f_back  # type: ignore[assignment]
    return 0 if frame is None else id(frame.f_locals["self"])


def batch_statistics(model: nn.Module) -> str:
    """The name of a layer that normalizes by statistics of the batch; empty where there is none.

    With such layers, parts of a batch train another way than the whole batch.
    """
    for name, module in model.named_modules():
        if isinstance(module, BatchNormBase) or has_running_statistics(module):
            return name
    return ""
