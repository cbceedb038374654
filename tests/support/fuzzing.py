"""Random networks in random training loops: partial training against full gradients times mask.

``run_case(seed)`` builds a network from layers (:mod:`tests.support.fuzzed_layers`) and families
(:mod:`tests.support.fuzzed_families`), trains it in a block and without one, in float64, and says
by how much they differ. Refusals by fedplt are an outcome; every other exception is the caller's.
"""

from __future__ import annotations

import copy
import random
import warnings
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_full_backward_hook,
)
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim.swa_utils import AveragedModel

from fedplt import cut, make_plan, train_only
from fedplt.errors import FedpltError
from tests.support.fuzzed_families import FAMILIES, Branches
from tests.support.fuzzed_layers import LAYERS, LENGTH, WIDTH
from tests.support.masked_training import masks

STEPS, BATCH = 2, 4
TOLERANCE = 1e-10
"""Of the largest change of a parameter."""

# eps bounds the amplification of gradients that are zero but for rounding.
OPTIMIZERS = {
    "fused": lambda p: torch.optim.SGD(p, lr=0.05),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05),
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
LOSSES = ("square", "classes", "decay", "teacher")
EXTRAS = ("none", "none", "global hook", "global backward hook", "evaluation", "copy", "average")


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


@dataclass(frozen=True)
class Outcome:
    """What came of a network."""

    kind: Literal["equal", "different", "refused", "not trainable"]
    case: str
    words: str = ""
    error: float = 0.0
    """Largest difference, relative to the largest change."""
    moved: float = 0.0


@dataclass
class Tally:
    """What came of many."""

    outcomes: Counter[str] = field(default_factory=Counter)
    worst: float = 0.0

    def add(self, outcome: Outcome) -> None:
        self.outcomes[outcome.kind] += 1
        self.worst = max(self.worst, outcome.error)


class Mean(nn.Module):
    def forward(self, x):
        return x.mean(1)


def compose(draw: random.Random, depth: int) -> tuple[str, nn.Module]:
    """A module of (batch, LENGTH, WIDTH), and what it is made of."""
    choice = draw.random()
    if depth == 0 or choice < 0.15:
        name = draw.choice(list(LAYERS))
        return name, LAYERS[name]()
    if choice < 0.75:
        name = draw.choice(list(FAMILIES))
        inner, module = compose(draw, depth - 1)
        if "functional call" in name and "checkpoint" in inner:
            return inner, module  # torch computes again with other weights than it was given
        return f"{name}({inner})", FAMILIES[name](module)
    (one, first), (two, second) = compose(draw, depth - 1), compose(draw, depth - 1)
    if choice < 0.9:
        return f"{one}, {two}", nn.Sequential(first, second)
    return f"branches({one}; {two})", Branches(first, second)


def random_loop(draw: random.Random) -> Loop:
    optimizer = draw.choice(list(OPTIMIZERS))
    loss, extra = draw.choice(LOSSES), draw.choice(EXTRAS)
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


def run_case(seed: int, depth: int = 3) -> Outcome:
    """Build a network and a loop from a seed, and train it in both ways."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    name, body = compose(draw, depth)
    model = network(*([nn.ReLU()] if draw.random() < 0.5 else []), body)
    loop, ratio, client = random_loop(draw), draw.choice((0.1, 0.35, 0.7, 1.0)), draw.randrange(3)
    case = f"{name} | {loop} | ratio {ratio}, client {client}"
    return compare(model, loop, ratio, client, case)


def network(*body: nn.Module) -> nn.Sequential:
    """Modules of (batch, LENGTH, WIDTH) between an input and an output layer."""
    return nn.Sequential(nn.Linear(3, WIDTH), *body, Mean(), nn.Linear(WIDTH, 4)).double()


def compare(
    model: nn.Module, loop: Loop, ratio: float = 0.35, client: int = 1, case: str = ""
) -> Outcome:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _compare(model, loop, ratio, client, case)


def _compare(model: nn.Module, loop: Loop, ratio: float, client: int, case: str) -> Outcome:
    data = torch.randn(STEPS, BATCH, LENGTH, 3).double()
    try:
        with torch.random.fork_rng(devices=[]):
            train(copy.deepcopy(model), loop, data)
    except RuntimeError as error:  # torch itself refuses this model in this loop
        return Outcome("not trainable", case, str(error).splitlines()[0])
    ours, full = copy.deepcopy(model), copy.deepcopy(model)
    try:
        layers = cut(model, data[0, :2])
        assignment = make_plan(layers, [ratio] * 3).assignment(client)
        with train_only(ours, assignment) as part:
            train(ours, loop, data, part=part)
    except FedpltError as error:
        return Outcome("refused", case, str(error))
    mask = masks(assignment)
    train(full, loop, data, mask=mask)
    error, moved, worst = _distance(model, ours, full, mask)
    kind = "equal" if error <= TOLERANCE else "different"
    return Outcome(kind, case, worst, error, moved)


def train(model, loop, data, *, part=None, mask=None):
    """The same loop in a block (``part``), and without one, where gradients are masked."""
    model.train()
    leaves = list(model.parameters() if part is None else part.parameters())
    optimizer = OPTIMIZERS[loop.optimizer](leaves)
    scheduler = SCHEDULERS[loop.scheduler](optimizer)
    is_fused = loop.optimizer == "fused" and part is not None
    if is_fused:
        part.fuse_sgd(0.05)
    teacher = {name: value.detach().clone() for name, value in model.named_parameters()}
    handles = _global_hooks(loop.extra)
    try:
        for number, batch in enumerate(data):
            torch.manual_seed(number)
            if not is_fused:
                _zero(loop.zero, model, optimizer)
            for index in range(loop.num_parts):
                loss = _loss(loop.loss, model, batch[index :: loop.num_parts], teacher)
                _backward(loop.backward, loss / loop.num_parts, leaves, part)
            if mask is not None:
                _mask_gradients(model, mask)
            _clip(loop.clip, model, leaves)
            before = {name: value.detach().clone() for name, value in model.named_parameters()}
            if is_fused:
                part.step()
            else:
                optimizer.step()
            if mask is not None:
                _restore(model.named_parameters(), before, mask)
            if scheduler is not None:
                scheduler.step()
            _between_steps(loop.extra, model, batch)
            for name, value in model.named_parameters():
                teacher[name].mul_(0.9).add_(value.detach(), alpha=0.1)
    finally:
        for handle in handles:
            handle.remove()


def _loss(kind: str, model: nn.Module, x: Tensor, teacher: dict[str, Tensor]) -> Tensor:
    outputs = model(x)
    if kind == "classes":
        return F.cross_entropy(outputs, torch.arange(len(x)) % 4)
    loss = outputs.pow(2).mean()
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


def _global_hooks(extra: str):
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


def _restore(
    tensors: Iterable[tuple[str, Tensor]], before: dict[str, Tensor], mask: dict[str, Tensor]
) -> None:
    with torch.no_grad():
        for name, tensor in tensors:
            keep = mask.get(name, torch.zeros(())).bool()
            tensor.copy_(torch.where(keep, tensor, before[name]))


def _distance(initial, ours, full, mask) -> tuple[float, float, str]:
    """The largest difference and change of all tensors, and the tensor that differs most."""
    _restore(full.named_buffers(), dict(initial.named_buffers()), mask)
    start, wanted, got = (dict(model.state_dict()) for model in (initial, full, ours))
    moved = max(float((wanted[name] - start[name]).abs().max()) for name in wanted)
    errors = {name: float((got[name] - wanted[name]).abs().max()) for name in wanted}
    worst = max(errors, key=lambda name: errors[name])
    return errors[worst] / max(moved, 1e-6), moved, worst
