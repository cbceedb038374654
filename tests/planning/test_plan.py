"""Rotation, rounding to whole sub-layers, coverage, and plans on disk."""

from __future__ import annotations

import json
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedplt import Allocation, Layer, Layers, Plan, PlanError, TensorSpec, allocation_of, make_plan
from tests.support.layers import fcn_layers
from tests.support.work import executed_lines

FLEET = [1.0] * 5 + [0.29] * 15 + [0.06] * 30


@st.composite
def some_layers(draw):
    widths = draw(st.lists(st.integers(1, 12), min_size=1, max_size=5))
    inputs = draw(st.lists(st.integers(1, 20), min_size=len(widths), max_size=len(widths)))
    return Layers(
        tuple(
            Layer(f"l{i}", (TensorSpec(f"l{i}.w", (b, a)),), b)
            for i, (a, b) in enumerate(zip(inputs, widths, strict=True))
        )
    )


fleets = st.lists(st.floats(0.001, 1.0), min_size=1, max_size=30)


@given(some_layers(), fleets)
def test_clients_per_sublayer_differ_by_at_most_one(layers, ratios):
    plan = make_plan(layers, ratios)
    for index, layer in enumerate(layers):
        counted = np.zeros(layer.num_sublayers, dtype=int)
        for client in range(plan.num_clients):
            for part in plan.assignment(client).slices[index]:
                counted[part.start : part.stop] += 1
        assert counted.max() - counted.min() <= 1
        assert np.array_equal(counted, plan.coverage[index])


@given(some_layers(), fleets)
def test_assignments_are_what_the_plan_says(layers, ratios):
    plan = make_plan(layers, ratios)
    for client in range(plan.num_clients):
        assignment = plan.assignment(client)
        assert assignment == plan.assignment(client, round=7)
        assert assignment.counts == tuple(plan.counts[client])
        assert assignment.ratio == pytest.approx(plan.achieved_ratios[client])
        assert assignment.update_size == plan.update_sizes[client]
        assert assignment.num_trained >= 1
        assert all(len(ranges) <= 2 for ranges in assignment.slices)
        assert assignment.uploaded.segments == sorted(assignment.uploaded.segments)


@given(some_layers(), fleets)
def test_a_count_is_the_floor_or_the_ceiling_of_the_share(layers, ratios):
    plan = make_plan(layers, ratios)
    for client, ratio in enumerate(ratios):
        from fedplt import balanced_allocation

        wanted = balanced_allocation(layers.sizes, ratio).layer_ratios
        shares = np.array(wanted) * layers.num_sublayers
        if plan.counts[client].sum() > 1:
            assert np.all(np.abs(plan.counts[client] - shares) < 1 + 1e-6)


@given(some_layers(), fleets)
def test_survives_json(layers, ratios):
    plan = make_plan(layers, ratios)
    again = Plan.from_json(json.loads(json.dumps(plan.to_json())))
    assert again == plan
    assert again.assignment(0) == plan.assignment(0)


def test_achieved_ratios_of_the_fleet(fcn):
    plan = make_plan(fcn, FLEET)
    assert plan.achieved_ratios == pytest.approx(FLEET, rel=0.003)
    assert not plan.uncovered
    assert plan.assignment(0).layer_ratios == (1, 1, 1, 1)


def test_rounding_is_the_closest_choice(fcn):
    """No other choice of floors and ceilings comes closer to the ratio."""
    import itertools

    from fedplt import balanced_allocation

    weights = np.array([layer.sublayer_size for layer in fcn])
    for ratio in (0.29, 0.06, 0.17, 0.5):
        shares = np.array(balanced_allocation(fcn.sizes, ratio).layer_ratios) * fcn.num_sublayers
        choices = itertools.product(*[{np.floor(s + 1e-9), np.ceil(s - 1e-9)} for s in shares])
        best = min(abs(np.array(c) @ weights / fcn.size - ratio) for c in choices)
        achieved = make_plan(fcn, [ratio]).achieved_ratios[0]
        assert abs(achieved - ratio) == pytest.approx(best, abs=1e-12)


def test_clients_take_turns_where_a_sublayer_is_too_large():
    layers = Layers((Layer("big", (TensorSpec("w", (4, 1000)),), 4),))
    plan = make_plan(layers, [0.1] * 20)  # a share of 0.4 sub-layers each
    # Nobody is left with nothing, so here all get one; with a second layer they take turns.
    assert plan.counts.sum() == 20
    layers = Layers((*layers, Layer("small", (TensorSpec("v", (500, 1)),), 500)))
    plan = make_plan(layers, [0.15] * 20)
    shares = 4 * (0.15 * 4500 / 2) / 4000  # half of the budget, in sub-layers
    assert plan.counts[:, 0].mean() == pytest.approx(shares, abs=0.05)
    assert set(plan.counts[:, 0]) == {0, 1}
    assert "take turns" in plan.summary()


def test_names_what_nobody_trains(fcn):
    plan = make_plan(fcn, [0.01] * 3)
    uncovered = {entry.layer: entry for entry in plan.uncovered}
    assert set(uncovered) == {"fc1", "fc2", "fc3"}
    covered = int(plan.counts[:, 0].sum())
    assert uncovered["fc1"].sublayers == range(covered, 512)
    assert "more clients" in uncovered["fc1"].advice
    assert "WARNING: layer fc1: no client trains" in plan.summary()


def test_the_advice_works(fcn):
    plan = make_plan(fcn, [0.01] * 3)
    more = int(plan.uncovered[0].advice.split()[1])
    assert not make_plan(fcn, [0.01] * (3 + more)).uncovered


def test_takes_allocations_of_ones_own(fcn):
    deep = allocation_of(fcn.sizes, [0.0, 0.0, 1.0, 1.0])
    plan = make_plan(fcn, [deep, 0.29])
    assert plan.assignment(0).layer_ratios == (0, 0, 1, 1)
    with pytest.raises(PlanError, match="this model's have"):
        make_plan(fcn, [Allocation((1, 2), (0.5, 0.5))])


def test_many_layers_are_rounded_greedily():
    layers = Layers(
        tuple(Layer(f"l{i}", (TensorSpec(f"w{i}", (7, 10 + i)),), 7) for i in range(30))
    )
    plan = make_plan(layers, [0.33] * 4)
    assert plan.achieved_ratios == pytest.approx([0.33] * 4, rel=0.02)


def test_refuses_what_is_no_fleet(fcn):
    with pytest.raises(PlanError, match="client 1 has ratio"):
        make_plan(fcn, [0.5, 1.5])
    with pytest.raises(PlanError, match=r"ratios is \[\]"):
        make_plan(fcn, [])
    with pytest.raises(PlanError, match="there is no client 2"):
        make_plan(fcn, [0.5, 0.5]).assignment(2)


def test_refuses_plans_that_were_changed_on_disk(fcn):
    data = make_plan(fcn, FLEET).to_json()
    data["counts"][7][0] += 1
    with pytest.raises(PlanError, match="edited or damaged"):
        Plan.from_json(data)
    with pytest.raises(PlanError, match="format 99"):
        Plan.from_json({**data, "format": 99})


def test_a_hundred_thousand_clients():
    """Equal ratios are planned once; per client there is next to nothing to do or to keep."""
    number = 100_000
    ratios = np.tile([1.0, 0.29, 0.06, 0.06], number // 4)

    def use():
        plan = make_plan(fcn_layers(), ratios)
        assert np.allclose(plan.achieved_ratios, ratios, rtol=0.003, atol=0)
        assert plan.assignment(number - 1).ratio == pytest.approx(0.06, rel=0.003)
        assert plan.summary().startswith("100,000 clients")

    tracemalloc.start()
    use()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100e6
    assert executed_lines(use) < 10 * number


def test_summary_groups_many_ratios(fcn):
    text = make_plan(fcn, np.linspace(0.01, 1, 500)).summary()
    assert len(text.splitlines()) < 30


def test_fingerprints_tell_plans_apart(fcn):
    one, two = make_plan(fcn, [0.5, 0.29]), make_plan(fcn, [0.29, 0.5])
    assert one != two
    assert one.fingerprint == make_plan(fcn, [0.5, 0.29]).fingerprint
    assert len({one, two, make_plan(fcn, [0.5, 0.29])}) == 2


def test_long_module_names_are_shortened_and_stay_different():
    prefix = "base_model.model.encoder.layer"
    names = [
        f"{prefix}.{i}.attention.self.{part}.lora_A.default" for i in (0, 11) for part in "qkv"
    ]
    layers = Layers(
        tuple(Layer(name, (TensorSpec(f"{name}.w", (4, 8)),), 4) for name in [*names, "head"])
    )
    summary, cut = make_plan(layers, [1.0, 0.5]).summary(), layers.summary()
    for text in (summary, cut):
        assert "base_model" not in text
        assert max(map(len, text.splitlines())) < 260
        assert all(f"layer.{i}.attention.self.{p}..." in text for i in (0, 11) for p in "qkv")
