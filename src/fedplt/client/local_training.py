"""Local training: a client trains its slices of the model on its own examples.

:func:`train_client` is the built-in loop; inside :func:`train_held` any loop can run.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedplt.client.slices import TrainableSlices
from fedplt.client.submodels import HeldModel
from fedplt.client.tasks import Loss, classification_loss
from fedplt.client.train_only import train_only
from fedplt.client.training_config import OPTIMIZERS, TrainingConfig
from fedplt.data import Augment, Samples
from fedplt.errors import CutError
from fedplt.kernels import (
    BlockForward,
    Chained,
    has_running_statistics,
    modules_with_running_statistics,
)
from fedplt.models import call_model
from fedplt.planning import DEFAULT_RECIPE, Assignment, LocalRecipe, dotted
from fedplt.seeds import generator, seeded_globals, torch_seed
from fedplt.text import brief
from fedplt.torch_internals import DisableTorchFunction, seed_torch


@dataclass(frozen=True)
class LocalTraining:
    """Local training: its settings, and the objects that the settings name or the method adds."""

    settings: TrainingConfig = TrainingConfig()  # noqa: RUF009 (it is frozen)
    loss: Loss = classification_loss
    augment: Augment | None = None
    recipe: LocalRecipe = DEFAULT_RECIPE
    """The method's changes to local training."""

    __repr__ = brief

    def with_settings(self, **changes: Any) -> LocalTraining:
        """The same training with other values of :class:`TrainingConfig`."""
        return replace(self, settings=self.settings.model_copy(update=changes))


def train_client(
    model: nn.Module,
    assignment: Assignment,
    samples: Samples,
    examples: range,
    training: LocalTraining,
    *,
    learning_rate: float,
    seed: int,
    round: int,
    client: int,
    on_write: Callable[[], None] = lambda: None,
    on_step: Callable[[], None] | None = None,
) -> float:
    """Train the assigned slices of the model and return the mean training loss.

    ``examples`` are the client's examples in ``samples``. All randomness (batches, dropout,
    augmentation, the global generators of torch, NumPy and Python) is keyed by (seed, round,
    client). ``on_write`` is called at the end if the model itself wrote to its parameters, so that
    untrained rows may have changed. ``on_step`` is called before every step; raising ends training.
    """
    random = generator(seed, "batches", round=round, client=client)
    seed_torch(torch_seed(seed, "training", round=round, client=client))
    augmenting = torch.Generator()
    augmenting.manual_seed(torch_seed(seed, "augment", round=round, client=client))
    model.train()
    losses: list[Tensor] = []
    settings, recipe, absent = training.settings, training.recipe, None
    with (
        seeded_globals(seed, "training", round=round, client=client),
        train_only(model, assignment, keep_old=False) as part,
        _static_norms(model, recipe.static_norm),
        _frozen_norms(model, part, recipe),
    ):
        step = _stepper(part, settings, learning_rate)
        fused: Callable[[Any, Any], Tensor | None] | None = None
        for indices in batches(len(examples), settings, random):
            if on_step is not None:
                on_step()
            shares: list[Tensor] = []
            for chosen, share in _micro_batches(indices, settings):
                with DisableTorchFunction():  # data has no parameters
                    inputs, targets = samples.batch(chosen.add_(examples.start))
                    if training.augment is not None:
                        inputs = training.augment(inputs, augmenting)
                fused = fused or _fused_steps(part, training, inputs)
                done = fused(inputs, targets)
                if done is not None:
                    losses.append(done)
                    continue
                outputs = call_model(model, inputs)
                if recipe.masked_loss:
                    if absent is None:
                        absent = _absent_classes(samples, examples, outputs)
                    outputs = outputs.masked_fill(absent, 0.0)
                loss = training.loss(outputs, targets)
                if share == 1:
                    part.backward(loss)
                else:  # not part.backward: its fused step would not wait for the others
                    loss = loss * share
                    loss.backward()
                shares.append(loss.detach())
            if shares:
                step()
                losses.append(shares[0] if len(shares) == 1 else torch.stack(shares).sum())
    if part.untrained_before is not None:
        _undo_writes(part, part.untrained_before)
        on_write()
    return float(torch.stack(losses).mean())


def _undo_writes(part: TrainableSlices, before: dict[str, Tensor]) -> None:
    """Reset untrained parameters that the model wrote to."""
    shared = {tensor.name for tensor in part.assignment.layers.tensors}
    for name, old in before.items():
        if torch.equal(part.untrained[name], old):
            continue
        with torch.no_grad():
            part.untrained[name].copy_(old)
        if name not in shared:  # shared ones get the server's values anyway
            warnings.warn(
                f"{name} is not trained, but the model changes it in training; it is put back to "
                "its initial value after every client.",
                stacklevel=3,
            )


def _stepper(
    part: TrainableSlices, settings: TrainingConfig, learning_rate: float
) -> Callable[[], None]:
    """The function to call after each backward pass. Plain SGD is fused into the backward pass."""
    if settings.is_plain_sgd:
        part.fuse_sgd(learning_rate)
        return part.step
    optimizer = OPTIMIZERS[settings.optimizer](
        part.parameters(), lr=learning_rate, **settings.optimizer_arguments
    )

    old = [leaf.detach().clone() for leaf in part.parameters()] if settings.proximal else []

    def step() -> None:
        for leaf, before in zip(part.parameters(), old, strict=False):
            if leaf.grad is not None:
                leaf.grad.add_(leaf.detach() - before, alpha=settings.proximal)
        optimizer.step()
        optimizer.zero_grad()

    return step


def _fused_steps(
    part: TrainableSlices, training: LocalTraining, inputs: Any
) -> Callable[[Any, Any], Tensor | None]:
    """A function that takes a step without autograd, if the model is a chain of Linear and ReLU.

    It returns the loss, or None if it did nothing. ``inputs``: an example of the batches.
    """
    forward = vars(part.model).get("forward")
    chained = forward.forward if type(forward) is BlockForward else None
    one_batch = not (training.recipe.masked_loss or training.settings.micro_batch)
    rate, state = part.state.rate, part.state
    if rate is None or training.loss is not classification_loss or not one_batch:
        return _no_step
    # An augmentation is the user's code: it may change the model between steps.
    if training.augment is not None or not isinstance(chained, Chained):
        return _no_step
    state.is_step, state.depth = True, 1
    try:
        return chained.steps(inputs, rate) or _no_step
    finally:
        state.is_step, state.depth = False, 0
        part.forget_uses()


def _no_step(inputs: Any, targets: Any) -> None:
    """Do nothing: every step needs autograd."""


def batches(
    num_examples: int, settings: TrainingConfig, random: np.random.Generator
) -> Iterator[Tensor]:
    """Yield the example indices of each batch."""
    size = settings.batch_of(num_examples)
    if settings.local_steps is not None:
        for _ in range(settings.local_steps):
            yield torch.from_numpy(random.permutation(num_examples)[:size])
        return
    for _ in range(settings.local_epochs or 1):
        yield from torch.from_numpy(random.permutation(num_examples)).split(size)


def _micro_batches(indices: Tensor, settings: TrainingConfig) -> Iterable[tuple[Tensor, float]]:
    """The micro-batches of a batch, and each one's share of its examples.

    Without ``micro_batch``, the whole batch.
    """
    with DisableTorchFunction():
        number = len(indices)
        if number <= (settings.micro_batch or number):
            return ((indices, 1.0),)
        return [(part, len(part) / number) for part in indices.split(settings.micro_batch)]


# Changes that a recipe makes to the model.


@contextmanager
def scaled(model: nn.Module, assignment: Assignment, recipe: LocalRecipe) -> Iterator[None]:
    """Inside the block, the sub-model's activations are divided by its rate (in training mode).

    Its layers sum over fewer units than those of the whole model: dividing preserves the scale.
    """
    divide = functools.partial(_divide, assignment.rate)
    divide_inputs = functools.partial(_divide_inputs, assignment.rate)
    with ExitStack() as stack:
        for name in assignment.scaled_modules(recipe.scaler):
            module = model.get_submodule(name)
            if recipe.scaler == "inputs":
                stack.enter_context(module.register_forward_pre_hook(divide_inputs))
            else:
                stack.enter_context(module.register_forward_hook(divide))
        yield


def _divide(rate: float, module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    return output / rate if module.training else output


def _divide_inputs(rate: float, module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return (inputs[0] / rate, *inputs[1:]) if module.training else inputs


@contextmanager
def _static_norms(model: nn.Module, wanted: bool) -> Iterator[None]:
    """Inside the block, normalization layers use batch statistics; running ones do not change."""
    with ExitStack() as stack:
        for module in modules_with_running_statistics(model) if wanted else []:
            stack.callback(setattr, module, "momentum", module.momentum)
            module.momentum = 0.0
        yield


@contextmanager
def _frozen_norms(model: nn.Module, part: TrainableSlices, recipe: LocalRecipe) -> Iterator[None]:
    """Inside the block, normalization layers without a trained row stay in evaluation mode."""
    wanted = recipe.evaluate_frozen_norms and not recipe.local_norms
    still: list[tuple[Any, bool]] = []
    try:
        for module in model.modules() if wanted else ():
            if has_running_statistics(module) and not part.trains_some_of(module):
                still.append((module, module.training))
                module.eval()
                module.train = functools.partial(_stay, module)  # type: ignore[method-assign]
        yield
    finally:
        for module, before in still:
            del module.train
            module.train(before)


def _stay(module: nn.Module, mode: bool = True) -> nn.Module:
    return module


def _absent_classes(samples: Samples, examples: range, outputs: Tensor) -> Tensor:
    """Mask of the outputs whose class does not occur in these examples, (classes,)."""
    labels = torch.from_numpy(samples.labels()[examples.start : examples.stop])
    absent = torch.ones(outputs.shape[-1], dtype=torch.bool)
    absent[labels] = False
    return absent.to(outputs.device)


# Any training loop.


@contextmanager
def train_held(
    held: HeldModel, assignment: Assignment, recipe: LocalRecipe
) -> Iterator[TrainableSlices]:
    """:func:`train_only` with what the recipe changes in the model.

    Inside the block ``held.module.parameters()`` are the trained slices, so an optimizer made from
    the model's parameters optimizes the slices.
    """
    module = held.module
    with (
        scaled(module, assignment, recipe),
        train_only(module, assignment.on_client) as part,
        _static_norms(module, recipe.static_norm),
        _frozen_norms(module, part, recipe),
        _only_slices(module, part),
    ):
        yield part
        _refuse_moved(held)


@contextmanager
def _only_slices(model: nn.Module, part: TrainableSlices) -> Iterator[None]:
    """Inside the block, ``parameters()`` of every module are its trained slices."""
    leaves = list(part.named_parameters())
    modules: list[tuple[str, Any]] = list(model.named_modules())
    try:
        for name, module in modules:
            start = dotted(name, "")
            own = [(key[len(start) :], leaf) for key, leaf in leaves if key.startswith(start)]
            module.named_parameters = _NamedSlices(module, own)
        yield
    finally:
        for _, module in modules:
            vars(module).pop("named_parameters", None)


class _NamedSlices:
    """Replaces a module's ``named_parameters``; a copy of the module gets the original."""

    def __init__(self, module: nn.Module, leaves: list[tuple[str, nn.Parameter]]) -> None:
        self.module, self.leaves = module, leaves

    def __call__(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        for name, leaf in self.leaves:
            if recurse or "." not in name:
                yield dotted(prefix, name), leaf

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        copied: nn.Module = memo[id(self.module)]
        return functools.partial(type(copied).named_parameters, copied)


def _refuse_moved(held: HeldModel) -> None:
    devices = {
        parameter.device
        for module in held.module.modules()
        for parameter in module._parameters.values()
        if parameter is not None
    }
    if devices - {held.state.device}:
        raise CutError(
            f"the model was moved from {held.state.device} while its slices were trained; move it "
            "to its device before the block."
        )
