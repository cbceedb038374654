"""Rules that bound what one client changes: literal numbers, and the obvious formulas."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedplt import ClientUpdate, Layer, Layers, TensorSpec, make_plan
from fedplt.planning.assignment import SliceAssignment
from fedplt.planning.submodels import Spaces, SubmodelAssignment, TensorUnits
from fedplt.server import RULES, outliers, robust
from fedplt.server.aggregation_rules import ClippedMean, Mean, Median, TrimmedMean

LAYERS = Layers(
    (
        Layer("a", (TensorSpec("a.w", (6, 3)), TensorSpec("a.b", (6,))), 6),
        Layer("t", (TensorSpec("t.w", (2, 8, 3), axis=1),), 4),
        Layer("qkv", (TensorSpec("q.w", (12, 2), repeats=3),), 2),
    )
)
THREE = Layers((Layer("l", (TensorSpec("w", (3, 1)),), 3),))
WHOLE = SliceAssignment(THREE, ((range(3),),))
FIRST = SliceAssignment(THREE, ((range(1),),))


def sent(values, num_examples=1):
    return ClientUpdate(np.asarray(values, dtype=np.float32), num_examples, 0.0)


def joined(rule, layers, updates, state=None):
    state = torch.zeros(layers.state_size) if state is None else state
    aggregator = rule.start(layers)
    for update, assignment in updates:
        aggregator.add(update, assignment)
    aggregator.apply(state)
    return state, aggregator


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (Median(), [2.0, 5.0, 0.5]),
        (TrimmedMean(trim=0.25), [2.0, 5.0, 0.5]),
        (TrimmedMean(trim=0.2), [2.0, 5.0, 0.5]),  # of 4: 0; of 5: 1
        (Median(min_contributors=5), [2.0, 0.0, 0.0]),
    ],
)
def test_each_block_has_its_own_contributors(rule, expected):
    updates = [
        (sent([1, 5, 0.5], 10**6), WHOLE),
        (sent([2, 5, 0.5]), WHOLE),
        (sent([3, 5, 0.5]), WHOLE),
        (sent([-1e30, 5, 0.5]), WHOLE),
        (sent([1e30]), FIRST),
    ]
    state, aggregator = joined(rule, THREE, updates)
    assert state.tolist() == expected
    assert aggregator.touched().tolist() == [value != 0 for value in expected]


def test_what_nobody_trained_keeps_its_bits():
    for name in ("median", "trimmed-mean", "clipped-mean"):
        state, _ = joined(RULES[name](), THREE, [(sent([1.0]), FIRST)], -torch.zeros(3))
        assert state.tolist() == [1.0, 0.0, 0.0]
        assert torch.signbit(state).tolist() == [False, True, True]
        empty, aggregator = joined(RULES[name](), THREE, [], torch.ones(3))
        assert empty.tolist() == [1, 1, 1] and not aggregator.touched().any()


@given(
    st.lists(st.floats(0.05, 1), min_size=1, max_size=7),
    st.integers(0, 2**31),
    st.sampled_from([None, 0.0, 0.2, 0.34]),
    st.sampled_from([7, 40, robust.TABLE]),
)
def test_equals_the_obvious_formula(ratios, seed, trim, size):
    random, plan = np.random.default_rng(seed), make_plan(LAYERS, ratios)
    table = np.full((len(ratios), LAYERS.state_size), np.nan)
    updates = []
    for client in range(len(ratios)):
        assignment = plan.assignment(client)
        values = random.normal(size=assignment.update_size).astype(np.float32)
        where = np.concatenate([np.arange(*segment) for segment in assignment.uploaded.segments])
        table[client, where] = values
        updates.append((sent(values), assignment))
    rule = Median() if trim is None else TrimmedMean(trim=trim)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(robust, "TABLE", size)
        state, _ = joined(rule, LAYERS, updates)
    for place, column in enumerate(table.T):
        values = np.sort(column[~np.isnan(column)])
        cut = 0 if trim is None else int(trim * len(values))
        kept = values[cut : len(values) - cut]
        expected = 0.0 if not len(kept) else np.median(kept) if trim is None else kept.mean()
        assert state[place] == pytest.approx(expected, abs=1e-6)


def test_sub_models_are_joined_element_by_element():
    square = Layers(
        (
            Layer("a", (TensorSpec("a.weight", (2, 1)),), 2),
            Layer("b", (TensorSpec("b.weight", (2, 2)),), 2),
        )
    )
    spaces = Spaces((2,), (TensorUnits("a.weight", 0, None), TensorUnits("b.weight", None, 0)))
    small = SubmodelAssignment(square, frozenset(), spaces, (np.array([0]),), 0.5)
    whole = SliceAssignment(square, ((range(2),), (range(2),)))
    updates = [(sent([9] * 3), small), (sent([1] * 6), whole), (sent([2] * 6), whole)]
    state, _ = joined(Median(), square, updates)
    assert state.tolist() == [2, 1.5, 2, 1.5, 2, 1.5]
    # The small one is clipped by its own values, to twice the median of each layer.
    state, aggregator = joined(ClippedMean(clip=2.0), square, updates)
    assert aggregator.factors == pytest.approx([4 / 9, 1, 1])
    assert state.tolist() == pytest.approx([7 / 3, 1.5] * 3)


def test_clipping_bounds_the_change_and_not_the_size_of_a_slice():
    rule = ClippedMean(clip=2.0)
    updates = [(sent([1, 1, 1]), WHOLE), (sent([1.0]), FIRST), (sent([100, 0, 0]), WHOLE)]
    state, aggregator = joined(rule, THREE, updates)
    # Norms differ, root mean squares do not: only the third is scaled, to twice the median of 1.
    assert aggregator.factors == pytest.approx([1, 1, 2 / np.sqrt(100**2 / 3)])
    assert state.tolist() == pytest.approx([(1 + 1 + 2 * np.sqrt(3)) / 3, 0.5, 0.5])


def test_outliers_by_literal_numbers():
    updates = dict(enumerate(map(sent, ([1, 1, 1], [2.0], [0, 3, 0], [0, 0, 50]))))
    assignments = {0: WHOLE, 1: FIRST, 2: WHOLE, 3: WHOLE}
    # Root mean squares 1, 2, 1.73 and 28.9: the median is 1.87.
    assert list(outliers(updates, assignments, 15.0)) == ["3"]
    assert "layer l is 15.5 times the median" in outliers(updates, assignments, 15.0)["3"]
    assert outliers(updates, assignments, 16.0) == {}
    assert outliers({}, {}, 2.0) == {}
    assert outliers({0: sent([0, 0, 0]), 1: sent([0, 0, 9]), 2: sent([0, 0, 0])},
                    dict.fromkeys(range(3), WHOLE), 2.0) == {}  # fmt: skip


@given(st.integers(0, 2**31), st.floats(1.0, 20.0))
def test_outliers_by_the_definition(seed, most):
    """In any order of the clients, and with all updates times a number."""
    random = np.random.default_rng(seed)
    plan = make_plan(LAYERS, [1.0, 0.5, 0.5, 0.2, 1.0])
    parts = {client: plan.assignment(client) for client in range(5)}
    scales = 10.0 ** random.integers(-1, 3, size=5)
    updates = {
        k: sent(scales[k] * random.normal(size=part.update_size)) for k, part in parts.items()
    }
    sizes = np.array(
        [
            [
                np.sqrt(np.mean(np.concatenate(
                    [np.square(updates[k].values[p.start : p.stop].astype(np.float64))
                     for p in part.update_parts if p.layer_index == layer]
                )))
                for layer in range(3)
            ]
            for k, part in parts.items()
        ]
    )  # fmt: skip
    times = (sizes / np.median(sizes, axis=0)).max(axis=1)
    if np.abs(times / most - 1).min() < 1e-6:
        return  # either is right
    expected = {str(k) for k in np.flatnonzero(times > most)}
    assert set(outliers(updates, parts, most)) == expected
    turned = {k: sent(4 * updates[k].values) for k in reversed(range(5))}
    assert set(outliers(turned, parts, most)) == expected


def test_running_statistics_are_no_outliers():
    specs = (TensorSpec("w", (2, 1)), TensorSpec("var", (2,), is_buffer=True))
    layers = Layers((Layer("l", specs, 2),))
    whole = SliceAssignment(layers, ((range(2),),))
    updates = {k: sent([1, 1, size, size]) for k, size in enumerate([50, 50, 5000])}
    assert outliers(updates, dict.fromkeys(range(3), whole), 2.0) == {}


def test_running_statistics_are_clipped_apart():
    specs = (TensorSpec("w", (2, 1)), TensorSpec("var", (2,), is_buffer=True))
    layers = Layers((Layer("l", specs, 2),))
    whole = SliceAssignment(layers, ((range(2),),))
    values = [[1, 1, 50, 50], [1, 1, 50, 50], [1, 1, 5000, 5000]]
    state, _ = joined(ClippedMean(clip=1.0), layers, [(sent(v), whole) for v in values])
    assert state.tolist() == pytest.approx([1, 1, 50, 50])


@pytest.mark.parametrize(
    ("rule", "number"),
    [
        (Median(), 3),
        (TrimmedMean(trim=0.2), 5),
        (TrimmedMean(trim=0.3), 4),
        (TrimmedMean(trim=0.0), 0),
        (Mean(), 0),
    ],
)
def test_with_so_many_contributors_one_is_outvoted(rule, number):
    assert rule.fewest_to_outvote_one() == number
    if number:
        honest = [(sent([1, 1, 1]), WHOLE)] * (number - 1)
        state, _ = joined(rule, THREE, [*honest, (sent([1e20] * 3), WHOLE)])
        assert state.tolist() == [1, 1, 1]
        state, _ = joined(rule, THREE, [*honest[1:], (sent([1e20] * 3), WHOLE)])
        assert state.max() > 1e18
