"""FedPLT's slices may move on; by default they never do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedplt import Plan, make_plan
from fedplt.methods import PlanRequest, make_method
from fedplt.planning.layers import Layer, Layers, TensorSpec
from tests.support.layers import fcn_layers


def plan(ratios, rotate_every):
    options = {"rotate_every": rotate_every}
    return make_method("fedplt", options).plan(PlanRequest(fcn_layers(64), ratios))


def test_never_by_default():
    fixed = plan([0.3, 0.1, 0.06], 0)
    assert all(fixed.assignment(1, round) == fixed.assignment(1) for round in range(50))
    assert fixed == make_method("fedplt").plan(PlanRequest(fcn_layers(64), [0.3, 0.1, 0.06]))
    assert plan([0.3, 0.1, 0.06], 2) != fixed


def test_every_few_rounds():
    moving = plan([0.3, 0.1, 0.06], 3)
    assert Plan.from_json(moving.to_json()) == moving
    first, second = moving.assignment(1, 0), moving.assignment(1, 3)
    assert moving.assignment(1, 2) == first and moving.assignment(1, 5) == second
    assert first.slices[0] != second.slices[0] and first.counts == second.counts


@settings(max_examples=25)
@given(st.lists(st.floats(0.03, 1), min_size=2, max_size=8), st.integers(0, 40))
def test_coverage_stays_as_even(ratios, round):
    moving = plan(ratios, 1)
    for index, layer in enumerate(moving.layers):
        clients = np.zeros(layer.num_sublayers, dtype=int)
        for client in range(len(ratios)):
            for part in moving.assignment(client, round).slices[index]:
                clients[part.start : part.stop] += 1
        assert clients.max() - clients.min() <= 1


def test_everybody_meets_every_sublayer_in_the_end():
    moving = plan([0.1] * 4, 1)
    seen = set()
    for round in range(512):
        for part in moving.assignment(2, round).slices[0]:
            seen |= set(part)
    assert seen == set(range(512))


@settings(max_examples=60)
@given(st.data())
def test_what_is_never_reached_is_named(data):
    """Against every round of a whole turn, in which a slice comes back to where it began."""
    widths = data.draw(st.lists(st.integers(1, 24), min_size=1, max_size=4))
    layers = Layers(
        tuple(Layer(f"l{i}", (TensorSpec(f"w{i}", (n, 5)),), n) for i, n in enumerate(widths))
    )
    number, every = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 3))
    counts = [[data.draw(st.integers(0, n)) for n in widths] for _ in range(number)]
    moving = replace(
        make_plan(layers, [1.0] * number), counts=np.array(counts, np.int32), rotate_every=every
    )
    reached = [set() for _ in widths]
    for round in range(0, every * max(widths), every):
        for client in range(number):
            for seen, ranges in zip(reached, moving.assignment(client, round).slices, strict=True):
                seen.update(*ranges)
    never = {
        layer.name: set(range(layer.num_sublayers)) - seen
        for layer, seen in zip(layers, reached, strict=True)
    }
    said = {entry.layer: set(entry.sublayers) for entry in moving.uncovered}
    assert said == {name: missing for name, missing in never.items() if missing}


def test_a_layer_that_nobody_trains_is_named_also_where_slices_move():
    from fedplt import allocation_of

    layers = fcn_layers(64)
    without = allocation_of(layers.sizes, [0.0, 0.1, 0.1, 0.1])
    moving = make_method("fedplt", {"rotate_every": 2}).plan(PlanRequest(layers, [without] * 3))
    (missing,) = moving.uncovered
    assert (missing.layer, missing.sublayers) == ("fc1", range(512))
    assert "WARNING: layer fc1: no client trains 512 of its 512 sub-layers" in moving.summary()
