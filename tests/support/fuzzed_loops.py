"""Training loops of all habits, the same in a block and without one, where gradients are masked."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterable
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.module import register_module_forward_hook, register_module_full_backward_hook
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim.swa_utils import AveragedModel


class AssignsData(torch.optim.SGD):
    """SGD by hand, as many write it."""

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.data = p.data - group["lr"] * p.grad


class HalvedInPlace(torch.autograd.Function):
    """Its backward changes the gradient that it is given."""

    @staticmethod
    def forward(ctx, loss):
        return loss.view_as(loss)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.mul_(0.5)


# eps bounds the amplification of gradients that are zero but for rounding.
OPTIMIZERS = {
    "fused": lambda p: torch.optim.SGD(p, lr=0.05),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05),
    "assigned data": lambda p: AssignsData(p, lr=0.05),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.1),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, eps=1e-3),
    "adam in one kernel": lambda p: torch.optim.Adam(p, lr=0.01, eps=1e-3, fused=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, eps=1e-3, weight_decay=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, eps=1e-3),
}
SCHEDULERS = {
    "none": lambda optimizer: None,
    "steps": lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5),
    "cosine": lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4),
}
ZERO = ("optimizer", "model", "zeros", "each None", "each zero_")
BACKWARD = ("loss", "part", "autograd", "twice", "inputs")
CLIP = ("none", "none", "norm", "norm of the part", "value")
LOSSES = ("square", "classes", "decay", "teacher", "halved in place")
EXTRAS = (
    "none", "none", "global hook", "global backward hook", "evaluation", "copy", "average",
    "hooks on slices", "gradient elsewhere",
)  # fmt: skip


@dataclass(frozen=True)
class Loop:
    """How a network is trained."""

    optimizer: str
    scheduler: str = "none"
    zero: str = "optimizer"
    backward: str = "loss"
    clip: str = "none"
    loss: str = "square"
    extra: str = "none"
    num_parts: int = 1
    """Batches whose gradients are added up."""


def random_loop(draw: random.Random) -> Loop:
    optimizer = draw.choice(list(OPTIMIZERS))
    loss, extra = draw.choice(LOSSES), draw.choice(EXTRAS)
    if optimizer == "fused" and extra == "gradient elsewhere":
        extra = "none"  # a step that is fused is taken elsewhere, too
    if optimizer == "fused":
        return Loop(optimizer, backward="part", loss=loss, extra=extra)
    return Loop(
        optimizer,
        draw.choice(list(SCHEDULERS)),
        draw.choice(ZERO),
        draw.choice(BACKWARD),
        draw.choice(CLIP),
        loss,
        extra,
        draw.choice((1, 1, 2)),
    )


def train(model, loop, data, *, part=None, mask=None):
    """The same loop in a block (``part``), and without one, where gradients are masked."""
    model.train()
    leaves = list(model.parameters() if part is None else part.parameters())
    optimizer = OPTIMIZERS[loop.optimizer](leaves)
    scheduler = SCHEDULERS[loop.scheduler](optimizer)
    is_fused = loop.optimizer == "fused" and part is not None
    if is_fused:
        part.fuse_sgd(0.05)
    # Reading parameters turns fused steps off, so it is done only where it must be.
    teacher = _values(model) if loop.loss == "teacher" else {}
    handles = _hooks(loop.extra, leaves)
    try:
        for number, batch in enumerate(data):
            torch.manual_seed(number)
            if not is_fused:
                _zero(loop.zero, model, optimizer)
            with _elsewhere(loop.extra, model, leaves, mask):
                for index in range(loop.num_parts):
                    loss = _loss(loop.loss, model, batch[index :: loop.num_parts], teacher)
                    loss = loss if loop.num_parts == 1 else loss / loop.num_parts
                    _backward(loop.backward, loss, leaves, part)
            if mask is not None:
                _mask_gradients(model, mask)
            _clip(loop.clip, model, leaves)
            before = {} if mask is None else _values(model)
            if is_fused:
                part.step()
            else:
                optimizer.step()
            if mask is not None:
                restore(model.named_parameters(), before, mask)
            if scheduler is not None:
                scheduler.step()
            _between_steps(loop.extra, model, batch)
            for name, value in model.named_parameters() if teacher else ():
                teacher[name].mul_(0.9).add_(value.detach(), alpha=0.1)
    finally:
        for handle in handles:
            handle.remove()


def _values(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in model.named_parameters()}


def _loss(kind: str, model: nn.Module, x: Tensor, teacher: dict[str, Tensor]) -> Tensor:
    outputs = model(x)
    if kind == "classes":
        return F.cross_entropy(outputs, torch.arange(len(x)) % 4)
    loss = outputs.pow(2).mean()
    if kind == "halved in place":
        return HalvedInPlace.apply(loss)
    if kind == "decay":
        loss = loss + 0.1 * sum(p.pow(2).sum() for p in model.parameters())
    elif kind == "teacher":
        with torch.no_grad():
            wanted = functional_call(model, teacher, (x,))
        loss = loss + (outputs - wanted).pow(2).mean()
    return loss


def _zero(kind: str, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    if kind == "optimizer":
        optimizer.zero_grad()
    elif kind in ("model", "zeros"):
        model.zero_grad(set_to_none=kind == "model")
    for parameter in model.parameters() if kind.startswith("each") else ():
        if kind == "each None":
            parameter.grad = None
        elif parameter.grad is not None:
            parameter.grad.zero_()


def _backward(kind: str, loss: Tensor, leaves: list[Tensor], part) -> None:
    if kind == "part" and part is not None:
        part.backward(loss)
    elif kind == "autograd":
        torch.autograd.backward([loss])
    elif kind == "inputs":
        loss.backward(inputs=[leaf for leaf in leaves if leaf.requires_grad])
    else:
        loss.backward(retain_graph=kind == "twice")
        if kind == "twice":
            loss.backward()


def _clip(kind: str, model: nn.Module, leaves: list[Tensor]) -> None:
    if kind == "value":
        clip_grad_value_(model.parameters(), 0.01)
    elif kind != "none":
        clip_grad_norm_(model.parameters() if kind == "norm" else leaves, 0.05)


@contextmanager
def _elsewhere(extra: str, model: nn.Module, leaves: list[Tensor], mask):
    """Inside the block the trained values are others, as in SAM; the old tensors are put back."""
    if extra != "gradient elsewhere":
        yield
        return
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    leaves = [leaf for leaf in leaves if leaf.requires_grad]
    old = [leaf.data for leaf in leaves]
    for leaf in leaves:
        trained = torch.ones(()) if mask is None else mask.get(names[id(leaf)], torch.zeros(()))
        leaf.data = leaf.data + 0.01 * trained.to(leaf)
    yield
    for leaf, values in zip(leaves, old, strict=True):
        leaf.data = values


def _hooks(extra: str, leaves: list[Tensor]):
    if extra == "hooks on slices":
        return [leaf.register_hook(lambda g: 0.5 * g) for leaf in leaves if leaf.requires_grad]
    if extra == "global hook":
        return [
            register_module_forward_hook(
                lambda module, inputs, output: (
                    1.05 * output if isinstance(module, nn.Linear) else None
                )
            )
        ]
    if extra == "global backward hook":
        return [register_module_full_backward_hook(lambda module, inputs, outputs: None)]
    return []


def _between_steps(extra: str, model: nn.Module, batch: Tensor) -> None:
    if extra == "evaluation":
        model.eval()
        with torch.no_grad():
            model(batch)
        model.train()
    elif extra == "copy":
        copied = copy.deepcopy(model)
        copied(batch).sum().backward()
    elif extra == "average":
        average = AveragedModel(model)
        average.update_parameters(model)
        average(batch)


def _mask_gradients(model: nn.Module, mask: dict[str, Tensor]) -> None:
    for name, parameter in model.named_parameters():
        if name not in mask:
            parameter.grad = None
        elif parameter.grad is not None:
            parameter.grad.mul_(mask[name])


def restore(
    tensors: Iterable[tuple[str, Tensor]], before: dict[str, Tensor], mask: dict[str, Tensor]
) -> None:
    with torch.no_grad():
        for name, tensor in tensors:
            keep = mask.get(name, torch.zeros(())).bool()
            tensor.copy_(torch.where(keep, tensor, before[name]))
