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
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from fedplt import cut, make_plan, train_only
from fedplt.errors import FedpltError
from tests.support.fuzzed_families import COMPUTED_AGAIN_OTHERWISE, FAMILIES, Branches
from tests.support.fuzzed_layers import LAYERS, LENGTH, WIDTH
from tests.support.fuzzed_loops import Loop, random_loop, restore, train
from tests.support.fuzzed_pairs import BETWEENS, KINDS, Pair
from tests.support.masked_training import masks

STEPS, BATCH = 2, 5
TOLERANCE = 1e-10
"""Of the largest change of a parameter."""


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
    if depth == 0 or choice < 0.1:
        name = draw.choice(list(LAYERS))
        return name, LAYERS[name]()
    if choice < 0.6:
        name = draw.choice(list(FAMILIES))
        inner, module = compose(draw, depth - 1)
        if name.startswith(COMPUTED_AGAIN_OTHERWISE) and "checkpoint" in inner:
            return inner, module  # torch computes again with other weights than it was given
        if name == "another thread" and "hook on a weight" in inner:
            return inner, module  # asks parameters for requires_grad where no mode sees it
        return f"{name}({inner})", FAMILIES[name](module)
    (one, first), (two, second) = compose(draw, depth - 1), compose(draw, depth - 1)
    if choice < 0.9:
        return f"{one}, {two}", nn.Sequential(first, second)
    return f"branches({one}; {two})", Branches(first, second)


def run_case(seed: int, depth: int = 3) -> Outcome:
    """Build a network and a loop from a seed, and train it in both ways."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    name, body = compose(draw, depth)
    below, first = lowest(draw)
    model = network(*first, body)
    loop, ratio, client = random_loop(draw), draw.choice((0.1, 0.35, 0.7, 1.0)), draw.randrange(3)
    case = f"{below}{name} | {loop} | ratio {ratio}, client {client}"
    return compare(model, loop, ratio, client, case)


def lowest(draw: random.Random) -> tuple[str, list[nn.Module]]:
    """What comes before the body; where nothing does, its first layer is the lowest."""
    choice = draw.randrange(4)
    if choice == 0:
        return "", []
    if choice == 1:
        return "linear, ", [nn.Linear(WIDTH, WIDTH)]
    kind, between = draw.choice(KINDS), draw.choice(BETWEENS)
    return f"{kind} with {between}, ", [Pair(kind, between)]


def network(*body: nn.Module) -> nn.Sequential:
    """Modules of (batch, LENGTH, WIDTH), and an output layer."""
    return nn.Sequential(*body, Mean(), nn.Linear(WIDTH, 4)).double()


def compare(
    model: nn.Module, loop: Loop, ratio: float = 0.35, client: int = 1, case: str = ""
) -> Outcome:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _compare(model, loop, ratio, client, case)


def _compare(model: nn.Module, loop: Loop, ratio: float, client: int, case: str) -> Outcome:
    data = torch.randn(STEPS, BATCH, LENGTH, WIDTH).double()
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


def _kept_statistics(model):
    """Buffers of torch's normalization layers; others change as the model changes them."""
    for name, module in model.named_modules():
        if isinstance(module, (_BatchNorm, _InstanceNorm)):
            for key, buffer in module.named_buffers(recurse=False):
                yield f"{name}.{key}", buffer


def _distance(initial, ours, full, mask) -> tuple[float, float, str]:
    """The largest difference and change of all tensors, and the tensor that differs most."""
    restore(_kept_statistics(full), dict(initial.named_buffers()), mask)
    start, wanted, got = (dict(model.state_dict()) for model in (initial, full, ours))
    moved = max(float((wanted[name] - start[name]).abs().max()) for name in wanted)
    errors = {name: float((got[name] - wanted[name]).abs().max()) for name in wanted}
    worst = max(errors, key=lambda name: errors[name])
    return errors[worst] / max(moved, 1e-6), moved, worst
