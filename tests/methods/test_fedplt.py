"""FedPLT's slices may move on; by default they never do."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedplt import Plan
from fedplt.methods import PlanRequest, make_method
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
