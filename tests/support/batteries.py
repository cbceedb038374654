"""Comparisons of the package with slow and obvious references, counted: docs/correctness.md.

Each battery takes how many models, networks or draws to try, and says what came of them.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from fedplt import Aggregator, ClientUpdate, check, cut, make_plan, train_only
from fedplt.client import CheckReport, TrainableSlices, interception
from fedplt.cutting import ChannelPaths, find_spaces
from fedplt.kernels import Slices, TrainedRows, chain, linear, norm
from fedplt.methods import PlanRequest, make_method
from fedplt.models import MODELS, build_model
from fedplt.planning import balanced_allocation, exact_flops
from fedplt.sampling import sampling_probabilities, sampling_variance
from tests.support.flops import flop_counter
from tests.support.fuzzed_families import FAMILIES
from tests.support.fuzzed_layers import LAYERS, WIDTH
from tests.support.fuzzed_loops import Loop
from tests.support.fuzzing import TOLERANCE, Outcome, compare, network, run_case
from tests.support.image_jobs import SMALL, TRAINS_SUBMODELS
from tests.support.zoo import ZOO

RATIOS = [1.0, 0.5, 0.3, 0.1]


@dataclass
class Result:
    """What came of a battery."""

    models: int = 0
    comparisons: int = 0
    worst: float = 0.0
    """Largest difference."""
    refused: Counter[str] = field(default_factory=Counter)
    """By the words of the refusal."""
    not_decided: int = 0
    left_out: int = 0
    """Networks that torch itself cannot train, or in which nothing moves."""
    wrong: list[str] = field(default_factory=list)

    def add(self, name: str, error: float, tolerance: float, comparisons: int = 1) -> None:
        self.models += 1
        self.comparisons += comparisons
        self.worst = max(self.worst, error)
        if not error <= tolerance:
            self.wrong.append(f"{name}: {error:.2g}")

    def add_report(self, name: str, report: CheckReport) -> None:
        self.add(name, report.worst, 1e-9, len(report.differences))
        self.not_decided += report.verdict == "not decided"
        self.wrong += [f"{name}: {entry.tensor}" for entry in report.wrong]

    def add_outcome(self, name: str, outcome: Outcome) -> None:
        if outcome.kind == "refused":
            self.models += 1
            self.refused[outcome.words] += 1
        elif outcome.kind == "not trainable" or outcome.moved < 1e-6:
            self.left_out += 1
        else:
            self.add(name, outcome.error, TOLERANCE)


def built_in_models(number: int) -> Result:
    result = Result()
    for name in list(MODELS)[:number]:
        example = MODELS[name].example()
        if example.is_floating_point():
            example = torch.randn_like(example)
        result.add_report(name, check(build_model(name, {}, seed=0), example, ratios=RATIOS))
    return result


def hand_made_models(number: int) -> Result:
    result = Result()
    for name, (make, batch) in itertools.islice(ZOO.items(), number):
        torch.manual_seed(0)
        result.add_report(name, check(make(), batch(4), ratios=RATIOS))
    return result


def families(number: int) -> Result:
    """Every family around every layer, spread evenly where not all are wanted."""
    pairs = list(itertools.product(FAMILIES, LAYERS))
    result, loop = Result(), Loop("fused", backward="part")
    for place in np.linspace(0, len(pairs) - 1, min(number, len(pairs))).round().astype(int):
        family, layer = pairs[place]
        torch.manual_seed(0)
        around = FAMILIES[family](LAYERS[layer]())
        model = network(nn.Linear(WIDTH, WIDTH), around, nn.Linear(WIDTH, WIDTH))
        result.add_outcome(f"{family}({layer})", compare(model, loop))
    return result


def fuzzed_networks(number: int) -> Result:
    """Until so many could be trained by torch."""
    result, seeds = Result(), itertools.count(1_000_000)
    while result.models < number:
        seed = next(seeds)
        result.add_outcome(f"seed {seed}", run_case(seed))
    return result


MISTAKES: dict[str, tuple[Any, str, Any]] = {
    "gradients of a Linear": (
        linear, "move_rows", lambda right: lambda rows, g, *rest: right(rows, 1.01 * g, *rest),
    ),
    "outputs of a chain": (
        chain, "_run_chain", lambda right: lambda links, x: 1.01 * right(links, x),
    ),
    "gradients of inputs": (
        linear, "input_gradient", lambda right: lambda *given: 1.01 * right(*given),
    ),
    "columns left out that are needed": (
        TrainedRows, "needed", lambda right: lambda rows, columns: columns,
    ),
    "permuted channels": (ChannelPaths, "is_unpermuted", lambda right: lambda *given: True),
    "steps fused too early": (TrainedRows, "is_used_once", lambda right: True),
    "statistics of rows that are not trained": (
        norm, "_copy_trained",
        lambda right: lambda statistics, mean, var: statistics.mean.copy_(mean),
    ),
    "gradients of other operations lost": (
        Slices, "scatter_gradient", lambda right: lambda slices, parameter: None,
    ),
    "values that do not reach the model": (
        TrainableSlices, "set_data",
        lambda right: lambda part, tensor, value: setattr(tensor, "data", value),
    ),
    "hooks that do not see all gradients": (
        Slices, "carrier", lambda right: lambda slices: slices.parameter,
    ),
    "shadowed weights not seen": (
        interception, "is_shadowed", lambda right: lambda module: False,
    ),
    "gradients not cleared": (
        Slices, "forget_gradient", lambda right: lambda slices: None,
    ),
}  # fmt: skip
"""Where to put a mistake: an owner, a name, and what to make of what is there."""


def planted_mistakes(number: int) -> Result:
    """Each is tried on random networks until one of them is wrong, refused in words, or raises.

    Without a mistake, none of these networks is.
    """
    result = Result()
    for name, (owner, key, change) in itertools.islice(MISTAKES.items(), number):
        with mock.patch.object(owner, key, change(getattr(owner, key))):
            tried = next((seed for seed in range(300) if _goes_wrong(seed)), None)
        result.models += 1
        result.comparisons += 300 if tried is None else tried + 1
        if tried is None:
            result.wrong.append(f"not found: {name}")
    return result


def _goes_wrong(seed: int) -> bool:
    try:
        return run_case(seed).kind in ("different", "refused")
    except (RuntimeError, IndexError):
        return True


def _checked(model: nn.Module, example: torch.Tensor, method: str) -> CheckReport:
    layers, made = cut(model, example), make_method(method)
    request = PlanRequest(layers, RATIOS, find_spaces=lambda: find_spaces(model, layers, example))
    return check(model, example, plan=made.plan(request), recipe=made.recipe)


def sub_models(number: int) -> Result:
    """Of the built-in models, then of random convolutional networks."""
    result, draw = Result(), random.Random(0)
    built = list(itertools.product(["fcn", "cnn", "resnet8"], TRAINS_SUBMODELS))
    for name, method in built[:number]:
        torch.manual_seed(0)
        build, shape = SMALL[name]
        report = _checked(build(), torch.randn(4, *shape), method)
        result.add_report(f"{name}, {method}", report)
    for index in range(number - len(built)):
        torch.manual_seed(index)
        method = draw.choice(TRAINS_SUBMODELS)
        report = _checked(_random_network(draw), torch.randn(4, 2, 6, 6), method)
        result.add_report(f"network {index}, {method}", report)
    return result


def _random_network(draw: random.Random) -> nn.Sequential:
    modules: list[nn.Module] = []
    width = 2
    for _ in range(draw.randint(1, 3)):
        wider = draw.randint(3, 10)
        modules += [
            nn.Conv2d(width, wider, 3, padding=1, bias=draw.random() < 0.5),
            draw.choice([nn.BatchNorm2d(wider), nn.Identity(), nn.Dropout(0.2)]),
            draw.choice([nn.ReLU(), nn.Sigmoid(), nn.GELU(), nn.MaxPool2d(3, 1, 1)]),
        ]
        width = wider
    pool = draw.choice([nn.AdaptiveAvgPool2d(1), nn.Identity()])
    size = width if isinstance(pool, nn.AdaptiveAvgPool2d) else 36 * width
    hidden = draw.randint(4, 12)
    head = [nn.Linear(size, hidden), nn.Tanh(), nn.Linear(hidden, 3)]
    return nn.Sequential(*modules, pool, nn.Flatten(), *head)


def aggregation(number: int) -> Result:
    """Rounds of random clients on built-in models."""
    result = Result()
    layers = cut(SMALL["resnet8"][0](), torch.zeros(2, 1, 8, 8))
    for seed in range(number):
        draw = np.random.default_rng(seed)
        plan = make_plan(layers, draw.uniform(0.05, 1, draw.integers(1, 8)).tolist())
        state = torch.from_numpy(draw.normal(size=layers.state_size).astype(np.float32))
        total, weight = np.zeros(layers.state_size), np.zeros(layers.state_size)
        aggregator = Aggregator(layers)
        for client in range(plan.num_clients):
            assignment, examples = plan.assignment(client), int(draw.integers(1, 50))
            values = draw.normal(size=assignment.update_size).astype(np.float32)
            aggregator.add(ClientUpdate(values, examples, 0.0), assignment)
            segments = assignment.uploaded.segments
            where = np.concatenate([np.arange(*segment) for segment in segments])
            total[where] += examples * (state.numpy()[where].astype(np.float64) + values)
            weight[where] += examples
        expected = np.where(weight > 0, total / np.maximum(weight, 1), state.numpy())
        aggregator.apply(state)
        error = float(np.abs(state.numpy() - expected).max() / np.abs(expected).max())
        result.add(f"round {seed}", error, 1e-5)
    return result


def allocations(number: int) -> Result:
    """The level of the water by bisection."""
    result = Result()
    for seed in range(number):
        draw = np.random.default_rng(seed)
        sizes = draw.integers(1, 10 ** draw.integers(1, 8), draw.integers(1, 12))
        ratio = float(draw.uniform(1e-3, 1))
        budget, (low, high) = ratio * sizes.sum(), (0.0, float(sizes.max()))
        for _ in range(200):
            level = (low + high) / 2
            low, high = (level, high) if np.minimum(sizes, level).sum() < budget else (low, level)
        expected = np.minimum(sizes, high) / sizes
        found = np.array(balanced_allocation(sizes.tolist(), ratio).layer_ratios)
        result.add(f"draw {seed}", float(np.abs(found - expected).max()), 1e-9)
    return result


def sampling(number: int) -> Result:
    """How much variance a small move between two clients could still save."""
    result = Result()
    for seed in range(number):
        draw = np.random.default_rng(seed)
        clients = int(draw.integers(2, 30))
        norms, examples = draw.uniform(0.05, 20, clients), draw.integers(1, 100, clients)
        ratios = draw.uniform(0.05, 1, clients)
        budget = float(draw.uniform(0.1, 1) * ratios.sum())
        best = sampling_probabilities(norms, examples, ratios, budget)
        variance, saved = sampling_variance(best, norms, examples), 0.0
        for one, other in draw.integers(0, clients, (50, 2)):
            moved = best.copy()
            step = 1e-4 * min(moved[one] * ratios[one], ratios[other])
            moved[one] -= step / ratios[one]
            moved[other] += step / ratios[other]
            if one != other and moved[other] <= 1:
                saved = max(saved, 1 - sampling_variance(moved, norms, examples) / variance)
        result.add(f"fleet {seed}", saved, 1e-9, 50)
    return result


def costs(number: int) -> Result:
    """FLOPs of a step, fused and not, at several ratios."""
    result = Result()
    for name in ["fcn", "cnn", "resnet8"][:number]:
        build, shape = SMALL[name]
        model = build()
        layers = cut(model, torch.randn(2, *shape), groups=MODELS[name].groups)
        plan = make_plan(layers, RATIOS)
        errors = []
        for client, fused in itertools.product(range(plan.num_clients), (True, False)):
            assignment, counter = plan.assignment(client), flop_counter()
            with train_only(model, assignment) as part, counter:
                if fused:
                    part.fuse_sgd(0.1)
                outputs = model(torch.randn(6, *shape))
                part.backward(F.cross_entropy(outputs, torch.zeros(6, dtype=torch.long)))
                part.step()
            counted = counter.get_total_flops() / 6
            errors.append(abs(exact_flops(assignment).total / counted - 1))
        result.add(name, max(errors), 1e-9, len(errors))
    return result
