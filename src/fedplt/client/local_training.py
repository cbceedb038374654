"""Local training: a client trains its slices of the model on its own examples."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedplt.client.recipe_blocks import absent_classes, frozen_norms, static_norms
from fedplt.client.slices import TrainableSlices
from fedplt.client.tasks import Loss, classification_loss
from fedplt.client.train_only import train_only
from fedplt.data import Augment, Samples
from fedplt.kernels import call_model
from fedplt.planning import DEFAULT_RECIPE, Assignment, LocalRecipe
from fedplt.seeds import generator, seeded_globals, torch_seed
from fedplt.text import brief

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    kind.__name__.lower(): kind
    for kind in (
        torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam,
        torch.optim.RAdam, torch.optim.Adamax, torch.optim.Adagrad, torch.optim.Adadelta,
        torch.optim.RMSprop, torch.optim.Rprop, torch.optim.ASGD,
    )
}  # fmt: skip
"""Optimizers that treat each coordinate independently, by name."""


@dataclass(frozen=True)
class LocalTraining:
    """The settings of local training. A client creates a new optimizer in every round."""

    local_epochs: int | None = 1
    """Passes over the client's examples. Ignored if ``local_steps`` is set."""
    local_steps: int | None = None
    """Number of steps; each draws a new batch from the client's examples."""
    batch_size: int | None = 64
    """None: all examples of the client in one batch."""
    optimizer: str = "sgd"
    optimizer_options: dict[str, Any] = field(default_factory=dict)
    """``momentum``, ``weight_decay``, ``betas``, ... as the optimizer names them."""
    loss: Loss = classification_loss
    augment: Augment | None = None
    proximal: float = 0.0
    """FedProx: strength of the proximal term that pulls the slices to the global values."""
    recipe: LocalRecipe = DEFAULT_RECIPE
    """What the method changes in local training."""

    __repr__ = brief


def train_client(
    model: nn.Module,
    assignment: Assignment,
    samples: Samples,
    examples: range,
    settings: LocalTraining,
    *,
    learning_rate: float,
    seed: int,
    round: int,
    client: int,
    on_changed_frozen: Callable[[], None] = lambda: None,
    on_step: Callable[[], None] | None = None,
) -> float:
    """Train the assigned slices of the model and return the mean training loss.

    ``examples`` are the client's examples in ``samples``. All randomness (batches, dropout,
    augmentation, the global generators of torch, NumPy and Python) is keyed by (seed, round,
    client). ``on_changed_frozen`` is called at the end if
    the model wrote to its parameters itself, so that those not trained may have changed, too.
    ``on_step`` is called before every step; it ends the training by raising.
    """
    random = generator(seed, "batches", round=round, client=client)
    torch.manual_seed(torch_seed(seed, "training", round=round, client=client))
    augmenting = torch.Generator()
    augmenting.manual_seed(torch_seed(seed, "augment", round=round, client=client))
    model.train()
    losses: list[Tensor] = []
    recipe, absent = settings.recipe, None
    with (
        seeded_globals(seed, "training", round=round, client=client),
        train_only(model, assignment, keep_old=False) as part,
        static_norms(model, recipe.static_norm),
        frozen_norms(model, part, recipe),
    ):
        step = _stepper(part, settings, learning_rate)
        for indices in batches(len(examples), settings, random):
            if on_step is not None:
                on_step()
            with torch._C.DisableTorchFunction():  # no parameter is in data: nothing to see there
                inputs, targets = samples.batch(indices.add_(examples.start))
                if settings.augment is not None:
                    inputs = settings.augment(inputs, augmenting)
            outputs = call_model(model, inputs)
            if recipe.masked_loss:
                if absent is None:
                    absent = absent_classes(samples, examples, outputs)
                outputs = outputs.masked_fill(absent, 0.0)
            loss = settings.loss(outputs, targets)
            part.backward(loss)
            step()
            losses.append(loss.detach())
    if part.own_writes.happened:
        part.own_writes.put_back({tensor.name for tensor in assignment.layers.tensors})
        on_changed_frozen()
    return float(torch.stack(losses).mean())


def _stepper(
    part: TrainableSlices, settings: LocalTraining, learning_rate: float
) -> Callable[[], None]:
    """The function to call after each backward pass. Plain SGD is fused into the backward pass."""
    plain = settings.optimizer == "sgd" and not any(settings.optimizer_options.values())
    if plain and not settings.proximal:
        part.fuse_sgd(learning_rate)
        return part.step
    optimizer = OPTIMIZERS[settings.optimizer](
        part.parameters(), lr=learning_rate, **settings.optimizer_options
    )

    old = [leaf.detach().clone() for leaf in part.parameters()] if settings.proximal else []

    def step() -> None:
        for leaf, before in zip(part.parameters(), old, strict=False):
            if leaf.grad is not None:
                leaf.grad.add_(leaf.detach() - before, alpha=settings.proximal)
        optimizer.step()
        optimizer.zero_grad()

    return step


def batches(
    num_examples: int, settings: LocalTraining, random: np.random.Generator
) -> Iterator[Tensor]:
    """Yield the example indices of each batch."""
    size = min(settings.batch_size or num_examples, num_examples)
    if settings.local_steps is not None:
        for _ in range(settings.local_steps):
            yield torch.from_numpy(random.permutation(num_examples)[:size])
        return
    for _ in range(settings.local_epochs or 1):
        yield from torch.from_numpy(random.permutation(num_examples)).split(size)


def num_steps(num_examples: int, settings: LocalTraining) -> int:
    """The number of batches that :func:`batches` yields."""
    if settings.local_steps is not None:
        return settings.local_steps
    size = min(settings.batch_size or num_examples, num_examples)
    return (settings.local_epochs or 1) * -(-num_examples // size)
