"""The battery goes on: held parts of connected layers fit, and are as large as they may be.

How the models are wired is written down by hand here, so that it checks what the package finds.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from fedplt.methods import make_method
from tests.support.image_jobs import SMALL, TRAINS_SUBMODELS, plan_request
from tests.support.layers import segments

RATIOS = [0.06, 0.29, 0.6]
ROUNDS = range(0, 12, 3)
WIRING = {
    "fcn": {"fc1": ("image", "a"), "fc2": ("a", "b"), "fc3": ("b", "classes")},
    "cnn": {
        "conv1": ("image", "a"),
        "conv2": ("a", "b"),
        "fc1": ("b", "c"),  # behind the flatten: 2 x 2 columns for every channel
        "fc2": ("c", "classes"),
    },
    "resnet8": {
        "stem": ("image", "a"),
        "stem_norm": (None, "a"),
        "block1.conv1": ("a", "b"),
        "block1.norm1": (None, "b"),
        "block1.conv2": ("b", "a"),  # its outputs and the stem's are added
        "block1.norm2": (None, "a"),
        "block2.conv1": ("a", "c"),
        "block2.norm1": (None, "c"),
        "block2.conv2": ("c", "d"),
        "block2.norm2": (None, "d"),
        "block3.conv1": ("d", "e"),
        "block3.norm1": (None, "e"),
        "block3.conv2": ("e", "f"),
        "block3.norm2": (None, "f"),
        "fc": ("f", "classes"),
    },
}
"""By module: the units that it takes in (norms: that it has no columns for), and that it gives."""
WIDTHS = {
    "fcn": {"image": 64, "a": 12, "b": 8, "classes": 3},
    "cnn": {"image": 1, "a": 4, "b": 8, "c": 32, "classes": 3},
    "resnet8": {
        "image": 1, "a": 16, "b": 16, "c": 32, "d": 32, "e": 64, "f": 64, "classes": 3,
    },
}  # fmt: skip
DEPTHS = {
    "fcn": [["fc1"], ["fc2"], ["fc3"]],
    "cnn": [["conv1"], ["conv2"], ["fc1"], ["fc2"]],
    "resnet8": [["stem", "stem_norm"], ["block1"], ["block2"], ["block3"], ["fc"]],
}
"""What is trained together, from the input to the output."""

every_model = pytest.mark.parametrize("model", WIRING)


def parts(assignment):
    """What a client trains, as (tensor, is it trained: True or False per number)."""
    layers = assignment.layers
    trained = np.zeros(layers.state_size, dtype=bool)
    for start, stop in segments(assignment.uploaded):
        trained[start:stop] = True
    for offset, _, tensor in layers.placed:
        yield tensor, trained[offset : offset + tensor.num_elements].reshape(tensor.shape)


def num_trained(assignment):
    return sum(int(part.sum()) for tensor, part in parts(assignment) if not tensor.is_buffer)


def wired(model, tensor):
    return WIRING[model][tensor.name.rpartition(".")[0]]


@every_model
@pytest.mark.parametrize("method", TRAINS_SUBMODELS)
def test_held_rectangles_of_connected_layers_agree(method, model):
    plan = make_method(method).full_plan(plan_request(model, RATIOS))
    num_partly = 0
    for client, round in itertools.product(range(len(RATIOS)), ROUNDS):
        held = {
            "image": {(True,) * WIDTHS[model]["image"]},
            "classes": {(True,) * WIDTHS[model]["classes"]},
        }
        for tensor, part in parts(plan.assignment(client, round)):
            inputs, outputs = wired(model, tensor)
            flat = part.reshape(len(part), -1)
            rows, columns = flat.any(axis=1), flat.any(axis=0)
            assert np.array_equal(flat, np.outer(rows, columns)), tensor.name  # a rectangle
            held.setdefault(outputs, set()).add(tuple(rows.tolist()))
            if part.ndim == 1:
                continue
            of_unit = columns.reshape(WIDTHS[model][inputs], -1)  # a kernel, or what is flattened
            assert np.array_equal(of_unit.any(axis=1), of_unit.all(axis=1)), tensor.name
            held.setdefault(inputs, set()).add(tuple(of_unit.all(axis=1).tolist()))
        assert held.keys() == WIDTHS[model].keys()
        for units, seen in held.items():
            assert len(seen) == 1, f"client {client}, round {round}: {units} differ"
            (kept,) = seen
            assert len(kept) == WIDTHS[model][units] and any(kept)
            num_partly += not all(kept)
    assert num_partly > len(RATIOS) * len(ROUNDS)


def size_of(model, layers, kept):
    """Parameters of a sub-model by hand, from the number of units that it keeps."""
    total = 0.0
    for _, _, tensor in layers.placed:
        size = 0.0 if tensor.is_buffer else float(tensor.num_elements)
        inputs, outputs = wired(model, tensor)
        for units in (inputs, outputs) if len(tensor.shape) > 1 else (outputs,):
            size *= kept[units] / WIDTHS[model][units] if units in kept else 1.0
        total += size
    return total


def hidden(model):
    return {u: w for u, w in WIDTHS[model].items() if u not in ("image", "classes")}


@every_model
@pytest.mark.parametrize("method", ["heterofl", "fedrolex", "federated-dropout", "fedecover"])
def test_no_width_rate_comes_closer(method, model):
    plan = make_method(method).full_plan(plan_request(model, RATIOS))
    rates = np.concatenate(
        [np.linspace(0.001, 1, 300), *(np.arange(1, w + 1) / w for w in hidden(model).values())]
    )
    sizes = {
        size_of(model, plan.layers, {u: math.ceil(w * s - 1e-9) for u, w in hidden(model).items()})
        for s in rates
    }
    for client, ratio in enumerate(RATIOS):
        wanted = ratio * plan.layers.size
        best = min(abs(size - wanted) for size in sizes)
        for round in ROUNDS:
            assert abs(num_trained(plan.assignment(client, round)) - wanted) == pytest.approx(best)


@every_model
def test_no_keep_rate_comes_closer_on_average(model):
    plan = make_method("feddrop").full_plan(plan_request(model, RATIOS))
    widths = hidden(model)
    sizes = [  # a space that would be empty keeps one unit
        size_of(model, plan.layers, {u: w * p + (1 - p) ** w for u, w in widths.items()})
        for p in np.linspace(1 / max(widths.values()), 1, 500)  # never less than one unit
    ]
    for client, ratio in enumerate(RATIOS):
        wanted = ratio * plan.layers.size
        drawn = [plan.assignment(client, round).num_trained for round in range(200)]
        noise = 4 * np.std(drawn) / math.sqrt(len(drawn))
        error = abs(np.mean(drawn) - wanted)
        assert error <= min(abs(size - wanted) for size in sizes) + noise
        assert plan.assignment(client, 7).num_trained == num_trained(plan.assignment(client, 7))


@every_model
def test_no_depth_comes_closer(model):
    plan = make_method("fedpmt").full_plan(plan_request(model, RATIOS))
    module = SMALL[model][0]()
    each = [
        sum(p.numel() for name in names for p in module.get_submodule(name).parameters())
        for names in DEPTHS[model]
    ]
    sizes = [sum(each[depth:]) for depth in range(len(each))]
    assert sizes[0] == plan.layers.size
    for client, ratio in enumerate(RATIOS):
        trained, wanted = num_trained(plan.assignment(client)), ratio * plan.layers.size
        assert trained in sizes
        assert abs(trained - wanted) == pytest.approx(min(abs(size - wanted) for size in sizes))


@pytest.mark.parametrize("model", SMALL)
@pytest.mark.parametrize("rotate_every", [0, 2])
def test_no_other_rounding_of_balanced_slices_comes_closer(model, rotate_every):
    """Counts are shares rounded down or up; where a share is below one, clients take turns."""
    method = make_method("fedplt", {"rotate_every": rotate_every})
    plan = method.full_plan(plan_request(model, RATIOS))
    sizes, numbers = np.array(plan.layers.sizes), np.array(plan.layers.num_sublayers)
    for client, ratio in enumerate(RATIOS):
        low, high = 0.0, float(sizes.max())
        wanted = ratio * sizes.sum()
        for _ in range(100):  # every layer trains the same number of parameters, if it has them
            level = (low + high) / 2
            low, high = (level, high) if np.minimum(sizes, level).sum() < wanted else (low, level)
        shares = np.minimum(sizes, high) / sizes * numbers
        counts, turns = np.array(plan.assignment(client).counts), shares < 1 - 1e-6
        assert set(counts[turns].tolist()) <= {0, 1}
        floors = np.where(turns, counts, np.floor(shares + 1e-6)).astype(int)
        is_open = ~turns & (shares - floors > 1e-6)
        steps = [(0, 1) if value else (0,) for value in is_open]
        allowed = floors + np.array(list(itertools.product(*steps)))
        errors = np.abs(allowed @ (sizes // numbers) - wanted)
        assert any(np.array_equal(counts, choice) for choice in allowed)
        for round in ROUNDS:
            assert abs(num_trained(plan.assignment(client, round)) - wanted) == pytest.approx(
                errors.min(), abs=1e-3
            )


@pytest.mark.parametrize("model", SMALL)
@pytest.mark.parametrize("method", ["fedavg", "fedbn"])
def test_who_has_no_knob_trains_everything(method, model):
    plan = make_method(method).full_plan(plan_request(model, RATIOS))
    assert plan.achieved_ratios.tolist() == [1.0] * len(RATIOS)
