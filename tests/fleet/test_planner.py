"""Times, ratios and reasons; the paper's numerical example."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedplt.configs import builtin_fleets
from fedplt.configuration.device_files import read_fleet
from fedplt.errors import FleetError
from fedplt.federation.assigned_devices import workload_from_config
from fedplt.fleet import (
    DeviceProfile,
    ExactWorkload,
    PaperWorkload,
    fleet_json,
    fleet_summary,
    plan_deadlines,
    plan_fleet,
    round_time,
)

EXAMPLE = builtin_fleets()["paper-example"]
FULL_TIMES = [5.59, 4.35, 9.52, 13.85, 17.65]
RATIOS = [0.69, 1.00, 0.21, 0.078, 0.03]


@pytest.fixture(scope="module")
def example():
    file = read_fleet(EXAMPLE)
    workload = workload_from_config(file.work)
    return file.devices, workload, plan_fleet(file.devices, workload)


def test_the_papers_times_and_ratios(example):
    *_, plan = example
    assert [round(entry.full.total, 2) for entry in plan.devices] == FULL_TIMES
    # The paper prints two digits, three for C4: 0.6930, 1, 0.2132, 0.0777 and 0.0297.
    digits = [2, 2, 2, 3, 2]
    shown = [round(entry.ratio, n) for entry, n in zip(plan.devices, digits, strict=True)]
    assert shown == RATIOS
    assert plan.target_seconds == pytest.approx(4.35)
    assert plan.full_round_seconds == pytest.approx(17.65, abs=5e-3)
    assert plan.round_seconds == pytest.approx(4.35)


def test_the_papers_computation_table(example):
    devices, workload, _ = example
    work = [workload.work(ratio) for ratio in RATIOS]
    assert [round(w.flops / 1e9, 2) for w in work] == [3.57, 4.50, 2.13, 1.73, 1.59]
    milliseconds = [
        1e3 * w.flops / device.flops_per_second for w, device in zip(work, devices, strict=True)
    ]
    # The paper's third and fourth are rounded from the rounded workload.
    assert milliseconds == pytest.approx([44.6, 150.0, 118.3, 173.4, 198.8], abs=0.06)
    full = [1e3 * 4.5e9 / device.flops_per_second for device in devices]
    assert full == pytest.approx([56.3, 150.0, 250.0, 450.0, 562.5], abs=0.06)
    saved = [100 * (1 - w.flops / workload.work(1.0).flops) for w in work]
    assert saved == pytest.approx([20.7, 0.0, 52.7, 61.5, 64.7], abs=0.06)


def test_the_papers_communication_table(example):
    _, workload, _ = example
    total = [(w.bytes_down + w.bytes_up) / 1e6 for w in map(workload.work, RATIOS)]
    assert total == pytest.approx([33.8, 40.0, 24.2, 21.56, 20.6], abs=1e-3)


def test_the_papers_idle_times(example):
    """In percent of a full round; computed there from the rounded times."""
    *_, plan = example
    percent = [100 * plan.full_idle(entry) / plan.full_round_seconds for entry in plan.devices]
    assert percent == pytest.approx([68.33, 75.35, 46.06, 21.53, 0.0], abs=0.03)


def test_idle_times_of_the_plan(example):
    *_, plan = example
    assert [round(plan.full_idle(entry), 2) for entry in plan.devices] == [
        12.06, 13.30, 8.13, 3.80, 0.0,
    ]  # fmt: skip
    assert all(plan.idle(entry) == pytest.approx(0, abs=1e-9) for entry in plan.devices)
    text = fleet_summary(plan)
    assert "0.6930" in text
    assert "75.4 % less" in text


profiles = st.builds(
    DeviceProfile,
    name=st.just("d"),
    flops_per_second=st.floats(1e6, 1e13),
    down_bits_per_second=st.floats(1e4, 1e10),
    up_bits_per_second=st.floats(1e4, 1e10),
    latency_seconds=st.floats(0, 10),
    memory_bytes=st.none() | st.floats(1e5, 1e10),
    count=st.integers(1, 5),
)
targets = st.one_of(
    st.just({}),
    st.fixed_dictionaries({"deadline_seconds": st.floats(0.01, 1e4)}),
    st.fixed_dictionaries({"percentile": st.floats(0, 100)}),
)


@given(st.lists(profiles, min_size=1, max_size=6), targets, st.booleans())
def test_who_is_feasible_meets_the_target_and_nobody_could_train_more(devices, target, cut_steps):
    workload = PaperWorkload(300_000, local_steps=20, batch_size=16)
    plan = plan_fleet(devices, workload, **target, may_cut_steps=cut_steps)
    for entry in plan.devices:
        device = entry.device
        assert 0.01 <= entry.ratio <= 1
        assert entry.planned == round_time(device, entry.work)
        if entry.feasible:
            assert entry.planned.total <= plan.target_seconds * (1 + 1e-9)
            assert device.memory_bytes is None or entry.memory_bytes <= device.memory_bytes
            if entry.ratio < 1 and entry.local_steps == workload.local_steps:
                more = min(1.0, entry.ratio * 1.001 + 1e-9)
                time = round_time(device, workload.work(more)).total
                slow = time > plan.target_seconds * (1 - 1e-9)
                assert slow or workload.memory_bytes(more) > device.memory_bytes
        else:
            assert entry.ratio == 0.01
            assert entry.reason
    fleet_summary(plan)


@pytest.mark.slow
@given(profiles, st.floats(0.01, 1e3), st.sampled_from([0.01, 0.05, 0.3]), st.booleans())
@settings(max_examples=30)
def test_exact_plans_meet_their_targets_too(device, seconds, min_ratio, free):
    plan = plan_fleet(
        [device], exact_fcn(), deadline_seconds=seconds,
        min_ratio=min_ratio, may_freeze=free, may_cut_steps=free,
    )  # fmt: skip
    (entry,) = plan.devices
    sizes = exact_fcn().layers.sizes
    assert min_ratio <= entry.ratio <= sum(sizes[entry.frozen_layers :]) / sum(sizes)
    if entry.feasible:
        assert round_time(device, entry.work).total <= seconds * (1 + 1e-9)
        assert device.memory_bytes is None or entry.memory_bytes <= device.memory_bytes * (1 + 1e-9)
        if entry.ratio < 1 and not entry.traded:
            more = min(1.0, entry.ratio * 1.01)
            slow = round_time(device, exact_fcn().work(more)).total >= seconds * (1 - 1e-9)
            assert slow or exact_fcn().memory_bytes(more) >= device.memory_bytes * (1 - 1e-9)


@pytest.mark.slow
def test_many_different_devices_need_few_counts(monkeypatch):
    """Exact FLOPs are counted once for all devices, and then for a few ratios near its own."""
    random = np.random.default_rng(0)
    devices = [
        DeviceProfile(f"d{i}", 10 ** random.uniform(8, 11), 10 ** random.uniform(6, 9), 1e7)
        for i in range(150)
    ]
    from fedplt.fleet import workload as module

    counted, count = [], module.exact_flops
    monkeypatch.setattr(module, "exact_flops", lambda given: counted.append(1) or count(given))
    plan = plan_fleet(devices, ExactWorkload(exact_fcn().layers, 16, 64), percentile=20)
    assert len({entry.ratio for entry in plan.devices}) > 37
    assert len(counted) < 8 * len(devices) + 120


def test_the_fastest_device_trains_everything(example):
    *_, plan = example
    assert max(entry.ratio for entry in plan.devices) == 1.0


def test_percentiles_count_every_device():
    slow = DeviceProfile("slow", 1e9, 1e6, 1e6, count=9)
    fast = DeviceProfile("fast", 1e9, 1e8, 1e8)
    plan = plan_fleet([fast, slow], PaperWorkload(10_000, 10), percentile=50)
    assert plan.target_seconds == plan.devices[1].full.total


def test_reasons_name_what_is_too_slow():
    base = DeviceProfile("base", 1e9, 1e8, 1e8)
    workload = PaperWorkload(1_000_000, 100)  # 0.2 GFLOP forward, 0.4 backward, 4 MB
    reason = {
        "download": replace(base, down_bits_per_second=1e5),
        "forward": replace(base, flops_per_second=1e7),
        "latency": replace(base, latency_seconds=60.0),
        "smallest ratio": replace(base, up_bits_per_second=1e4),
        "at any ratio": replace(base, latency_seconds=0.5, down_bits_per_second=5e7),
        "MB": replace(base, memory_bytes=1e6),
    }
    for words, device in reason.items():
        entry = plan_fleet([device], workload, deadline_seconds=1.2).devices[0]
        assert not entry.feasible
        assert words in entry.reason, (words, entry.reason)


def test_the_reason_is_the_one_that_nothing_changes(exact):
    """Latency and download come before a slow forward pass, and before advice that is no help."""
    slow = DeviceProfile("slow", 1e8, 1e6, 1e6, latency_seconds=2.0)
    assert round_time(slow, exact.work(0.01)).forward > 10  # on its own, the largest part
    for permitted in ({}, {"may_freeze": True, "may_cut_steps": True}):
        entry = plan_fleet([slow], exact, deadline_seconds=5.0, **permitted).devices[0]
        assert "its download alone takes" in entry.reason
        assert "would help" not in entry.reason
        entry = plan_fleet([slow], exact, deadline_seconds=18.2, **permitted).devices[0]
        assert "latency and download take" in entry.reason
    entry = plan_fleet([slow], exact, deadline_seconds=24.0).devices[0]
    assert "forward pass takes" in entry.reason
    assert "may_cut_steps would help" in entry.reason
    helped = plan_fleet([slow], exact, deadline_seconds=24.0, may_cut_steps=True).devices[0]
    assert helped.feasible


@pytest.mark.parametrize("permitted", [{}, {"may_cut_steps": True}])
def test_deadlines_to_choose_from_are_met_as_they_are_shown(exact, permitted):
    devices = [
        DeviceProfile("fast", 1e11, 1e9, 1e9, count=3),
        DeviceProfile("middle", 2e10, 5e7, 2e7, latency_seconds=0.1, count=5),
        DeviceProfile("slow", 1e9, 2e7, 5e6, latency_seconds=0.2),
        DeviceProfile("slowest", 5e7, 1e6, 2e5, latency_seconds=0.5, count=2),
        DeviceProfile("tiny", 1e9, 2e7, 5e6, memory_bytes=1e6),
    ]
    plan = plan_fleet(devices, exact, **permitted)
    choices = plan_deadlines(plan, exact)
    assert [choice.late for choice in choices] == [
        ("tiny",), ("slowest", "tiny"), ("slow", "slowest", "tiny"),
        ("middle", "slow", "slowest", "tiny"),
    ]  # fmt: skip
    text = fleet_summary(plan, choices)
    for choice in choices:
        shown = f"{choice.seconds:g}"
        assert f"{shown} s" in text
        again = plan_fleet(devices, exact, deadline_seconds=float(shown), **permitted)
        met = [entry for entry in again.devices if entry.feasible]
        assert {entry.device.name for entry in again.devices} - {e.device.name for e in met} == set(
            choice.late
        )
        assert choice.smallest_ratio == min(entry.ratio for entry in met)
    shorter = plan_fleet(devices, exact, deadline_seconds=0.98 * choices[0].seconds, **permitted)
    assert "slowest" in {entry.device.name for entry in shorter.devices if not entry.feasible}
    assert "deadline_seconds" in text
    assert "no deadline changes that" in text  # tiny
    assert len(fleet_json(plan, choices)["deadlines"]) == len(choices)
    alone = plan_fleet(devices[-1:], exact, deadline_seconds=9.0)
    assert "No deadline helps" in fleet_summary(alone, plan_deadlines(alone, exact))


@cache
def small_workload():
    """Few sub-layers: whole ones make times fall and rise with the ratio."""
    import torch

    from fedplt import cut
    from fedplt.models import fcn

    layers = cut(fcn(num_inputs=40, hidden=(12, 30, 6)), torch.zeros(2, 40))
    return ExactWorkload(layers, local_steps=4, batch_size=8)


@settings(max_examples=25)
@given(
    st.floats(1e5, 1e9), st.floats(1e4, 1e8), st.integers(1, 3),
    st.sampled_from([0.01, 0.02, 0.03, 0.1]),
)  # fmt: skip
def test_the_smallest_deadline_is_that_of_a_fine_grid_of_ratios(speed, up, count, min_ratio):
    workload = small_workload()
    device = DeviceProfile("d", speed, 1e7, up, count=count)

    def seconds(ratio):
        return max(round_time(device, w).total for w in workload.next_work(ratio, count)[0])

    least = min(map(seconds, [min_ratio, *np.geomspace(min_ratio, 1, 300).tolist()]))
    late = plan_fleet([device], workload, deadline_seconds=0.5 * least, min_ratio=min_ratio)
    (entry,), (choice,) = late.devices, plan_deadlines(late, workload)
    assert not entry.feasible
    assert entry.planned.total <= seconds(min_ratio)  # also a late device takes the fastest ratio
    assert choice.seconds <= 1.02 * least  # shown with three digits
    met = plan_fleet([device], workload, deadline_seconds=choice.seconds, min_ratio=min_ratio)
    assert met.devices[0].feasible


def test_nobody_is_cut_for_a_device_that_is_late_anyway(exact):
    """34 of 40 phones cannot keep up with the fastest device: the round lasts as long as theirs."""
    devices = [
        DeviceProfile("new", 2e10, 5e7, 2e7, count=6),
        DeviceProfile("old", 1e9, 2e7, 1e7, count=30),
        DeviceProfile("ancient", 5e8, 5e6, 1e6, count=4),
    ]
    plan = plan_fleet(devices, exact)
    assert plan.rule == fleet_json(plan)["target"]["rule"] == "everyone"
    assert all(entry.feasible for entry in plan.devices)
    assert plan.round_seconds <= plan.target_seconds * (1 + 1e-9)

    def mean_ratio(found):
        return sum(entry.device.count * entry.ratio for entry in found.devices) / 40

    fastest = min(entry.full.total for entry in plan.devices)
    for deadline in [fastest, *np.geomspace(0.2, 2, 25) * plan.target_seconds]:
        other = plan_fleet(devices, exact, deadline_seconds=float(deadline))
        assert other.round_seconds > 0.99 * plan.round_seconds  # shown with three digits
        if other.round_seconds <= plan.round_seconds:
            assert mean_ratio(other) <= mean_ratio(plan)
    early = plan_fleet(devices, exact, deadline_seconds=fastest)
    assert "34 of 40 devices miss the target" in fleet_summary(early)
    text = fleet_summary(plan, plan_deadlines(plan, exact))
    assert "miss" not in text
    assert "all but ancient" in text  # and what it would be without the slowest


def test_memory_limits_the_ratio():
    device = DeviceProfile("small", 1e9, 1e8, 1e8, memory_bytes=8e6)
    entry = plan_fleet([device], PaperWorkload(1_000_000, 10)).devices[0]
    assert entry.ratio == pytest.approx(0.5)  # 4 MB of model, 2 * 4 MB * ratio on top
    assert "its memory of 8.0 MB limits it to ratio 0.5; its time would allow 1" in entry.note


def test_the_fastest_device_has_the_memory_for_full_training():
    small = DeviceProfile("small", 1e12, 1e9, 1e9, memory_bytes=8e6)
    large = DeviceProfile("large", 1e9, 1e8, 1e8, memory_bytes=1e9)
    plan = plan_fleet([small, large], PaperWorkload(1_000_000, 10))
    assert plan.target_seconds == plan.devices[1].full.total
    assert [entry.ratio for entry in plan.devices] == pytest.approx([0.5, 1.0])
    assert not plan.devices[1].note
    assert plan.devices[0].note in fleet_summary(plan)


def test_layers_that_are_always_trained_are_the_smallest_ratio():
    import torch

    from fedplt import cut, make_plan
    from fedplt.fleet import planned_share
    from tests.support.jobs import small_model

    layers = cut(small_model(), torch.zeros(2, 6), always=["*"])
    whole = ExactWorkload(layers, 4, 16)
    assert whole.always_ratio == 1
    layers = cut(small_model(), torch.zeros(2, 6), always=[layers[-1].name])
    workload = ExactWorkload(layers, 4, 16)
    share = layers[-1].size / layers.size
    assert workload.knots()[0] == pytest.approx(share)
    slow, fast = DeviceProfile("slow", 1e5, 1e3, 1e3), DeviceProfile("fast", 1e9, 1e8, 1e8)
    plan = plan_fleet([slow, fast], workload, deadline_seconds=1.0, min_ratio=share / 2)
    assert plan.devices[0].ratio == workload.always_ratio
    assert not plan.devices[0].feasible
    made = make_plan(layers, [entry.ratio for entry in plan.devices])
    assert (made.counts[:, -1] == layers[-1].num_sublayers).all()
    for frozen in range(1, len(layers)):
        allocation = planned_share(layers, 0.9, frozen)
        assert allocation.layer_ratios[-1] == 1
        assert not any(allocation.layer_ratios[:frozen])
        assert workload.knots(frozen)[0] == pytest.approx(share)
    times = [round_time(slow, workload.work(share)).total]
    late = plan_fleet([slow], workload, deadline_seconds=0.999 * times[0], min_ratio=share / 2)
    assert "the layers that are always trained" in late.devices[0].reason


@cache
def exact_fcn():
    from fedplt.cutting.find_layers import example_model

    return ExactWorkload(example_model("fcn")[2], local_steps=16, batch_size=64)


@cache
def exact_model(name):
    from fedplt.cutting.find_layers import example_model

    return ExactWorkload(example_model(name)[2], local_steps=3, batch_size=8)


@pytest.mark.slow
@settings(max_examples=12)
@given(
    st.sampled_from(["fcn", "resnet8", "vit"]),
    st.lists(profiles, min_size=1, max_size=4),
    st.floats(0, 100),
    st.sampled_from([0.001, 0.02, 0.2]),
    st.booleans(),
)
def test_planned_times_are_those_of_the_fleets_plan(name, devices, percentile, min_ratio, freeze):
    """Client by client, with whole sub-layers and turns as ``make_plan`` gives them."""
    from fedplt import make_plan
    from fedplt.fleet import Work, planned_share
    from fedplt.planning import download_bytes, exact_flops, upload_bytes

    workload = exact_model(name)
    layers = workload.layers
    found = plan_fleet(
        devices, workload, percentile=percentile, min_ratio=min_ratio, may_freeze=freeze
    )
    clients = [entry for entry in found.devices for _ in range(entry.device.count)]
    shares = [planned_share(layers, entry.ratio, entry.frozen_layers) for entry in clients]
    made, seconds = make_plan(layers, shares), {}
    for client, entry in enumerate(clients):
        part = made.assignment(client)
        flops, sent = exact_flops(part), upload_bytes(part)
        backward = flops.input_gradients + flops.weight_gradients
        work = Work(24 * flops.forward, 24 * backward, download_bytes(part), sent)
        seconds.setdefault(id(entry), []).append(round_time(entry.device, work).total)
    for entry in found.devices:
        assert max(seconds[id(entry)]) == entry.planned.total
        if entry.feasible:
            assert entry.planned.total <= found.target_seconds * (1 + 1e-9)


@pytest.fixture
def exact():
    return exact_fcn()


def test_exact_costs_grow_with_the_ratio_and_save_less_than_the_paper_says(exact):
    grid = np.linspace(0.01, 1, 60)
    flops = [exact.work(float(ratio)).flops for ratio in grid]
    assert all(a <= b for a, b in pairwise(flops))
    paper = PaperWorkload(exact.layers.size, 16, 64)
    assert exact.work(0.05).flops / exact.work(1.0).flops > 0.45
    assert paper.work(0.05).flops / paper.work(1.0).flops < 0.37


def test_exact_costs_are_those_of_the_plan(exact):
    from fedplt import make_plan
    from fedplt.planning import exact_flops, upload_bytes

    for ratio in (1.0, 0.29, 0.06):
        assignment = make_plan(exact.layers, [ratio]).assignment(0)
        counted = 16 * 64 * exact_flops(assignment).total
        assert exact.work(ratio).flops == counted
        assert exact.work(ratio).bytes_up == upload_bytes(assignment)


def test_freezing_and_fewer_steps_are_said(exact):
    """A slow computer whose forward pass fits, but not the gradients of the first layers."""
    device = DeviceProfile("slow", 1e9, 1e8, 1e8)
    forward = round_time(device, exact.work(0.01))
    fixed = forward.latency + forward.download + forward.forward
    target = {"deadline_seconds": fixed + 0.4 * forward.backward}
    alone = plan_fleet([device], exact, **target).devices[0]
    assert "at the smallest ratio" in alone.reason
    frozen = plan_fleet([device], exact, **target, may_freeze=True).devices[0]
    assert frozen.feasible
    assert frozen.frozen_layers > 0
    left = sum(exact.layers.sizes[frozen.frozen_layers :]) / exact.layers.size
    assert frozen.ratio <= left  # of the whole model
    assert "freezes the first" in frozen.traded
    steps = plan_fleet([device], exact, **target, may_cut_steps=True).devices[0]
    assert steps.feasible
    assert steps.local_steps < 16
    assert f"takes {steps.local_steps} of 16 local steps" in steps.traded
    tight = {"deadline_seconds": 0.5 * fixed}
    both = plan_fleet([device], exact, **tight, may_cut_steps=True, may_freeze=True)
    assert both.devices[0].feasible
    assert "slow: takes" in fleet_summary(both)
    assert fleet_json(both)["devices"][0]["local_steps"] == both.devices[0].local_steps < 16


def test_freezing_needs_exact_costs(example):
    devices, workload, _ = example
    with pytest.raises(FleetError, match="Name a model"):
        plan_fleet(devices, workload, may_freeze=True)


@cache
def counted_cnn():
    """A model whose activations need more memory than its weights."""
    from fedplt.configuration import WorkConfig

    return workload_from_config(WorkConfig(model="cnn", local_steps=2))


def test_memory_is_fitted_by_micro_batches_first():
    workload = counted_cnn()
    whole = workload.memory_bytes(1.0)
    assert whole > 10 * 4 * workload.layers.size  # activations count
    device = DeviceProfile("small", 1e12, 1e9, 1e9, memory_bytes=0.5 * whole)
    (entry,) = plan_fleet([device], workload, deadline_seconds=100.0).devices
    assert entry.feasible and entry.ratio == 1 and not entry.traded
    assert entry.micro_batch == 16  # 32 examples and the gradients need a little more than half
    assert entry.memory_bytes == workload.memory_bytes(1.0, part_size=16) <= device.memory_bytes
    assert workload.memory_bytes(1.0, part_size=32) > device.memory_bytes
    assert "takes batches of 64 in parts of 16 (micro_batch)" in entry.note
    (free,) = plan_fleet([replace(device, memory_bytes=whole)], workload).devices
    assert free.micro_batch is None and not free.note


def test_memory_is_fitted_by_the_ratio_next():
    workload = counted_cnn()
    most, least = (workload.memory_bytes(ratio, part_size=1) for ratio in (1.0, 0.01))
    assert least < most
    device = DeviceProfile("small", 1e12, 1e9, 1e9, memory_bytes=(most + least) / 2)
    (entry,) = plan_fleet([device], workload, deadline_seconds=100.0).devices
    assert entry.feasible and 0.1 < entry.ratio < 1 and entry.micro_batch == 1
    assert entry.memory_bytes <= device.memory_bytes < 1.02 * entry.memory_bytes
    assert "limits it to ratio" in entry.note and "in parts of 1" in entry.note
    tiny = replace(device, memory_bytes=0.9 * least)
    (late,) = plan_fleet([tiny], workload, deadline_seconds=100.0).devices
    assert not late.feasible and "no deadline changes that" in late.reason


def test_models_with_batch_statistics_freeze_layers_instead():
    from fedplt.configuration import WorkConfig

    workload = workload_from_config(WorkConfig(model="resnet8", batch_size=8))
    assert workload.part_sizes == [8]
    limit = 0.9 * workload.memory_bytes(0.01)
    device = DeviceProfile("small", 1e12, 1e9, 1e9, memory_bytes=limit)
    (entry,) = plan_fleet([device], workload, deadline_seconds=100.0, may_freeze=True).devices
    assert entry.micro_batch is None and entry.frozen_layers and entry.memory_bytes <= limit
    assert "no ratio would fit into its memory" in entry.traded
    (late,) = plan_fleet([device], workload, deadline_seconds=100.0).devices
    assert "no deadline changes that (may_freeze would help)" in late.reason


def test_the_runs_own_micro_batches_are_where_splitting_begins():
    workload = replace(counted_cnn(), micro_batch=6)
    assert workload.part_sizes == [6, 4, 2, 1]
    assert replace(workload, micro_batch=None, batch_size=1).part_sizes == [1]
    assert replace(workload, may_split=False).part_sizes == [6]
