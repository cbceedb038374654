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
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from fedplt.client.local_training import OPTIMIZERS, LocalTraining, scaled, train_client
from fedplt.client.outputs import logits_of
from fedplt.client.submodels import HeldModels
from fedplt.client.train_only import train_only
from fedplt.data import TensorSamples
from fedplt.kernels import bind_state, has_running_statistics
from fedplt.models import call_model, copy_model, model_mode
from fedplt.planning import BYTES_PER_NUMBER, Assignment, upload_bytes
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
    weights: int
    buffers: int


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

    def memory(
        self, assignment: Assignment, batch_size: int, micro_batch: int | None = None
    ) -> TrainingMemory:
        """Of a client with this assignment; ``micro_batch``: see :class:`LocalTraining`."""
        is_split = micro_batch is not None and micro_batch < batch_size
        size = min(micro_batch or batch_size, batch_size)
        held = assignment.on_client
        key = (held.layers.size, held.slices, is_split)
        pair = self._recorded.get(key)
        if pair is None:
            first, second = (self._record(assignment, number, is_split) for number in SIZES)
            if len(first.allocations) == len(second.allocations):
                self._recorded[key] = first, second
            else:  # the model computes them in different ways: no other size follows from these
                first = second = self._record(assignment, size, is_split)
        else:
            first, second = pair

        def at_size(one: int, other: int) -> int:
            return one + (size - SIZES[0]) * (other - one)

        saved = {
            name: at_size(number, second.saved.get(name, number))
            for name, number in first.saved.items()
        }
        steps = accumulate(map(at_size, first.allocations, second.allocations), initial=0)
        update, trained = upload_bytes(assignment), BYTES_PER_NUMBER * held.num_trained
        return TrainingMemory(
            weights=first.weights, buffers=first.buffers, update=update,
            optimizer=round(self._state_per_number() * trained),
            gradients=0 if self._is_fused(is_split) else trained,
            activations=sum(saved.values()),
            peak=first.weights + first.buffers + update + max(steps),
            saved=saved,
        )  # fmt: skip

    def measure(self, assignment: Assignment, batch_size: int) -> int:
        """The peak of a real training with this batch size on this machine."""
        real = self._record(assignment, batch_size, False)
        most = max(accumulate(real.allocations, initial=0))
        return real.weights + real.buffers + upload_bytes(assignment) + most

    def _is_fused(self, is_split: bool) -> bool:
        settings = self.training
        plain = settings.optimizer == "sgd" and not any(settings.optimizer_options.values())
        return plain and not settings.proximal and not is_split

    def _state_per_number(self) -> float:
        """Numbers of optimizer state per trained number."""
        settings, numbers = self.training, nn.Parameter(torch.zeros(1000))
        optimizer = OPTIMIZERS[settings.optimizer]([numbers], lr=0.1, **settings.optimizer_options)
        numbers.grad = torch.ones(1000)
        optimizer.step()
        state = [value for value in optimizer.state[numbers].values() if torch.is_tensor(value)]
        found = sum(value.numel() == len(numbers) for value in state)
        return found + (settings.proximal > 0)  # the proximal term needs the global values

    def _record(self, assignment: Assignment, size: int, is_split: bool) -> _Recorded:
        number = 2 * size if is_split else size
        settings = replace(
            self.training, local_epochs=None, local_steps=2, batch_size=number,
            micro_batch=size if is_split else None, augment=None,
        )  # fmt: skip
        model = copy_model(self.model)  # training changes it
        held = assignment.build(HeldModels(model, bind_state(model, assignment.layers))).module
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # as the simulator; some operations need memory per thread
        try:
            with (
                torch.random.fork_rng(devices=[]),
                warnings.catch_warnings(),
                scaled(held, assignment, settings.recipe),
            ):
                warnings.simplefilter("ignore")
                samples, loss = self._samples_and_loss(held, number)
                with recorded_allocations() as allocations:
                    train_client(
                        held, assignment.on_client, samples, range(number),
                        replace(settings, loss=loss),
                        learning_rate=0.0, seed=0, round=0, client=0,
                    )  # fmt: skip
                saved = saved_bytes(held, assignment, samples.batch(torch.arange(size)), loss)
        finally:
            torch.set_num_threads(threads)
        return _Recorded(allocations, saved, _bytes(held.parameters()), _bytes(held.buffers()))

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
    batch: tuple[Any, Any],
    loss: Callable[[Any, Any], Tensor],
) -> dict[str, int]:
    """Bytes that a forward pass saves for its backward pass, by module; parameters do not count.

    Memory that several modules save counts for the first of them.
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
    """The name of a layer that normalizes by statistics of the batch; empty where there is none.

    With such layers, parts of a batch train another way than the whole batch.
    """
    for name, module in model.named_modules():
        if isinstance(module, BatchNormBase) or has_running_statistics(module):
            return name or type(module).__name__
    return ""
