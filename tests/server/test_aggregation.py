"""Block-wise weighted means, with literal numbers and against the obvious formula."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedplt import Aggregator, ClientUpdate, Layer, Layers, TensorSpec, cut, make_plan
from fedplt.models import fcn
from fedplt.planning.assignment import SliceAssignment
from fedplt.planning.submodels import Spaces, SubmodelAssignment, TensorUnits

THREE = Layers((Layer("l", (TensorSpec("w", (3, 1)),), 3),))


def sent(values, num_examples):
    return ClientUpdate(np.asarray(values, dtype=np.float32), num_examples, 0.0)


def test_three_numbers():
    state = torch.tensor([10.0, 20.0, -0.0])
    aggregator = Aggregator(THREE)
    aggregator.add(sent([1.0, 2.0], 1), SliceAssignment(THREE, ((range(2),),)))
    aggregator.add(sent([4.0], 3), SliceAssignment(THREE, ((range(1, 2),),)))
    aggregator.apply(state)
    assert state.tolist() == [11.0, 23.5, 0.0]  # 20 + (1 * 2 + 3 * 4) / 4
    assert torch.signbit(state[2])  # nobody trained it: not even its sign of zero changes


@given(st.lists(st.floats(0.05, 1), min_size=1, max_size=6), st.integers(0, 2**31))
def test_equals_the_papers_weighted_mean(ratios, seed):
    layers = Layers(
        (
            Layer("a", (TensorSpec("a.w", (6, 3)), TensorSpec("a.b", (6,))), 6),
            Layer("t", (TensorSpec("t.w", (2, 8, 3), axis=1),), 4),
            Layer("qkv", (TensorSpec("q.w", (12, 2), repeats=3),), 2),
        )
    )
    random = np.random.default_rng(seed)
    plan = make_plan(layers, ratios)
    state = torch.from_numpy(random.normal(size=layers.state_size).astype(np.float32))
    total, weight = np.zeros(layers.state_size), np.zeros(layers.state_size)
    aggregator = Aggregator(layers)
    for client in range(len(ratios)):
        assignment = plan.assignment(client)
        values = random.normal(size=assignment.update_size).astype(np.float32)
        number = int(random.integers(1, 50))
        aggregator.add(sent(values, number), assignment)
        where = np.concatenate([np.arange(*segment) for segment in assignment.uploaded.segments])
        local = state.numpy()[where].astype(np.float64) + values
        total[where] += number * local
        weight[where] += number
    expected = np.where(weight > 0, total / np.maximum(weight, 1), state.numpy())
    aggregator.apply(state)
    np.testing.assert_allclose(state.numpy(), expected, atol=1e-4)


def test_expected_clients_are_the_divisor():
    state = torch.tensor([10.0, 20.0, -0.0])
    aggregator = Aggregator(THREE)
    first, second = (
        SliceAssignment(THREE, ((range(2),),)),
        SliceAssignment(THREE, ((range(1, 3),),)),
    )
    aggregator.expect(first, 1)
    aggregator.expect(second, 3)
    assert aggregator.divisors().tolist() == [1, 4, 3]
    aggregator.add(sent([1.0, 2.0], 1), first, weight=1 / 0.5)  # chosen with probability a half
    aggregator.apply(state)
    assert aggregator.touched().tolist() == [True, True, False]
    assert state.tolist() == [12.0, 21.0, 0.0]  # 20 + 2 * 2 / 4
    assert torch.signbit(state[2])  # its client was not chosen


def test_participants_who_did_not_train_vote_for_the_old_value():
    state = torch.tensor([10.0, 20.0, -0.0])
    aggregator = Aggregator(THREE, "participants")
    aggregator.add(sent([1.0, 2.0], 1), SliceAssignment(THREE, ((range(2),),)))
    aggregator.add(sent([4.0], 3), SliceAssignment(THREE, ((range(1, 2),),)))
    aggregator.apply(state)
    assert state.tolist() == [10.25, 23.5, 0.0]  # 10 + 1 * 1 / 4
    assert torch.signbit(state[2])
    assert aggregator.touched().tolist() == [True, True, False]


SQUARE = Layers(
    (
        Layer("a", (TensorSpec("a.weight", (2, 1)),), 2),
        Layer("b", (TensorSpec("b.weight", (2, 2)),), 2),
    )
)
SPACES = Spaces((2,), (TensorUnits("a.weight", 0, None), TensorUnits("b.weight", None, 0)))


def submodel(*units):
    return SubmodelAssignment(SQUARE, frozenset(), SPACES, (np.array(units),), 0.5)


@pytest.mark.parametrize(
    ("normalizer", "expected"),
    [
        # n = 1 holds unit 0 and n = 3 holds everything; unit 0 is column 0 of b.
        ("contributors", [2.5, 3.0, 2.5, 3.0, 2.5, 3.0]),
        ("participants", [2.5, 2.25, 2.5, 2.25, 2.5, 2.25]),
    ],
)
def test_rectangles_are_averaged_element_by_element(normalizer, expected):
    aggregator, state = Aggregator(SQUARE, normalizer), torch.zeros(6)
    small = submodel(0)
    assert small.uploaded.positions.tolist() == [0, 2, 4]
    aggregator.add(sent([1.0, 1.0, 1.0], 1), small)
    aggregator.add(sent([3.0] * 6, 3), SliceAssignment(SQUARE, ((range(2),), (range(2),))))
    aggregator.apply(state)
    assert aggregator.touched().all()
    assert state.tolist() == expected


def test_elements_that_nobody_holds_keep_their_bits():
    aggregator, state = Aggregator(SQUARE), torch.full((6,), -0.0)
    aggregator.add(sent([1.0, 1.0, 1.0], 1), submodel(1))
    aggregator.apply(state)
    assert aggregator.touched().tolist() == [False, True, False, True, False, True]
    assert torch.signbit(state).tolist() == [True, False, True, False, True, False]


def test_tensors_that_stay_with_the_clients_are_left_alone():
    aggregator, state = Aggregator(SQUARE), torch.full((6,), -0.0)
    whole = SliceAssignment(SQUARE, ((range(2),), (range(2),)), frozenset({"a.weight"}))
    aggregator.add(sent([1.0] * 4, 1), whole)
    aggregator.apply(state)
    assert aggregator.touched().tolist() == [False] * 2 + [True] * 4
    assert torch.signbit(state).tolist() == [True] * 2 + [False] * 4


@pytest.mark.parametrize("rotate_every", [0, 2])
def test_all_clients_at_once_give_the_same_bits(rotate_every):
    layers = cut(fcn(num_inputs=8))
    ratios = np.resize([1.0, 0.29, 0.06, 0.5, 0.9], 203)
    plan = dataclasses.replace(make_plan(layers, list(ratios)), rotate_every=rotate_every)
    weights = np.random.default_rng(0).integers(1, 10**9, 203)
    clients = [client for client in range(203) if client % 7]
    for round in (0, 5):
        one_by_one, together = Aggregator(layers), Aggregator(layers)
        for client in clients:
            one_by_one.expect(plan.assignment(client, round), int(weights[client]))
        together.expect_all(plan.in_round(round), clients, weights[clients])
        assert torch.equal(one_by_one.divisors(), together.divisors())
        assert one_by_one._expected.total == together._expected.total
        assert np.array_equal(one_by_one._expected.numbers, together._expected.numbers)
