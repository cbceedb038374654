"""The memory of updates, with literal numbers and against the equation."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedplt import Aggregator, ClientUpdate, Layer, Layers, TensorSpec, make_plan
from fedplt.client import Origin
from fedplt.errors import DamagedError, RunError, UpdateError
from fedplt.planning.assignment import SliceAssignment
from fedplt.planning.submodels import Spaces, SubmodelAssignment, TensorUnits
from fedplt.server.robust import Sent, clip_updates
from fedplt.server.update_memory import MemoryAggregator, MemorySettings, UpdateMemory

THREE = Layers((Layer("l", (TensorSpec("w", (3, 1)),), 3),))
MIXED = Layers(
    (
        Layer("a", (TensorSpec("a.w", (6, 3)), TensorSpec("a.b", (6,))), 6),
        Layer("t", (TensorSpec("t.w", (2, 8, 3), axis=1),), 4),
        Layer("qkv", (TensorSpec("q.w", (12, 2), repeats=3),), 2),
    )
)


def sent(values, num_examples, client=0, round=0):
    values = np.asarray(values, dtype=np.float32)
    return ClientUpdate(values, num_examples, 0.0, origin=Origin(client, round, "plan"))


def one_round(memory, round, state, updates, min_contributors=1):
    """``updates``: (client, assignment, values, number of examples)."""
    aggregator = MemoryAggregator(memory, round, min_contributors)
    for client, assignment, values, number in updates:
        aggregator.add(sent(values, number, client, round), assignment)
    aggregator.apply(state)
    touched = aggregator.touched()
    aggregator.commit()
    return touched


def rows(*ranges):
    return SliceAssignment(THREE, (ranges,))


def test_remembered_statistics_that_do_not_fit_into_half_precision():
    spec = TensorSpec("mean", (2,), is_buffer=True)
    layers = Layers((Layer("norm", (TensorSpec("w", (2,)), spec), 2),))
    memory = UpdateMemory(layers, MemorySettings(decay=0.9, precision="float16"))
    state, whole = torch.zeros(4), SliceAssignment(layers, ((range(2),),))
    one_round(memory, 0, state, [(0, whole, [0.0, 0.0, 1e5, 1e5], 1)])
    one_round(memory, 1, state, [(1, whole, [1.0, 1.0, 2.0, 2.0], 1)])
    assert state[2:].tolist() == [100_002.0, 100_002.0]  # statistics use this round's updates
    assert torch.isfinite(state).all()


def test_three_numbers():
    memory = UpdateMemory(THREE, MemorySettings(decay=0.5))
    state = torch.tensor([10.0, 20.0, -0.0])
    first = [(0, rows(range(2)), [1.0, 2.0], 1), (1, rows(range(1, 2)), [4.0], 3)]
    touched = one_round(memory, 0, state, first)
    assert state.tolist() == [11.0, 23.5, 0.0]  # round 0 is the plain mean
    assert torch.signbit(state[2]) and touched.tolist() == [True, True, False]
    one_round(memory, 1, state, [(1, rows(range(1)), [5.0], 3)])
    # Value 0: client 0 remembered at half of its weight 1, client 1 new with weight 3.
    assert state[0].item() == pytest.approx(11.0 + (0.5 * 1.0 + 3 * 5.0) / 3.5)
    # Value 1: both are one round old, so their weights keep their ratio.
    assert state[1].item() == pytest.approx(23.5 + 3.5)


def test_a_new_update_of_a_block_replaces_the_old_one():
    memory = UpdateMemory(THREE, MemorySettings(decay=0.9))
    state = torch.zeros(3)
    for round, change in enumerate([1.0, 7.0]):
        one_round(memory, round, state, [(0, rows(range(1)), [change], 5)])
    assert state.tolist() == [8.0, 0.0, 0.0]


@pytest.mark.parametrize("precision", ["float32", "int8"])
@settings(max_examples=40)
@given(
    st.integers(0, 2**31),
    st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0]),
    st.integers(1, 4),
    st.booleans(),
)
def test_equals_the_equation(precision, seed, decay, horizon, forgets):
    """Against a table of every client's last update of every value and its round."""
    random = np.random.default_rng(seed)
    plan = make_plan(MIXED, [1.0, 0.5, 0.2, 0.1])
    plan = type(plan)(plan.layers, plan.ratios, plan.counts, rotate_every=1)
    memory = UpdateMemory(
        MIXED,
        MemorySettings(decay=decay, horizon=horizon if forgets else None, precision=precision),
    )
    size = MIXED.state_size
    state = torch.from_numpy(random.normal(size=size).astype(np.float32))
    last, when = np.zeros((4, size)), np.full((4, size), -1)
    number = random.integers(1, 50, size=4)
    for round in range(6):
        updates = []
        for client in np.flatnonzero(random.random(4) < 0.7).tolist():
            assignment = plan.assignment(client, round)
            values = random.normal(size=assignment.update_size).astype(np.float32)
            updates.append((client, assignment, values, int(number[client])))
            where = np.concatenate([np.arange(*s) for s in assignment.uploaded.segments])
            last[client, where], when[client, where] = values, round
        weights = number[:, None] * np.where(when < 0, 0.0, decay ** (round - when.clip(0)))
        if forgets:
            weights[round - when > horizon] = 0.0
        total = weights.sum(axis=0)
        step = np.where(total > 0, (weights * last).sum(axis=0) / np.where(total > 0, total, 1), 0)
        expected = state.numpy() + step
        one_round(memory, round, state, updates)
        # One code of int8 is 1/127 of the largest of 128 values.
        np.testing.assert_allclose(state, expected, atol=1e-5 if precision == "float32" else 0.05)
        state = torch.from_numpy(expected.astype(np.float32))


@given(st.integers(0, 2**31))
def test_without_decay_it_is_the_mean_of_the_round(seed):
    random = np.random.default_rng(seed)
    plan = make_plan(MIXED, [1.0, 0.4, 0.2])
    memory, state = UpdateMemory(MIXED, MemorySettings(decay=0.0)), torch.zeros(MIXED.state_size)
    for round in range(3):
        plain, mean = Aggregator(MIXED), state.clone()
        updates = []
        for client in range(round % 3, 3):
            assignment = plan.assignment(client)
            values = random.normal(size=assignment.update_size).astype(np.float32)
            updates.append((client, assignment, values, client + 1))
            plain.add(sent(values, client + 1), assignment)
        plain.apply(mean)
        touched = one_round(memory, round, state, updates)
        torch.testing.assert_close(state, mean)
        assert torch.equal(touched, plain.touched())


def test_what_is_not_committed_leaves_no_trace():
    memory = UpdateMemory(THREE, MemorySettings())
    one_round(memory, 0, torch.zeros(3), [(0, rows(range(3)), [1.0, 2.0, 3.0], 1)])
    before = {name: tensor.clone() for name, tensor in memory.tensors().items()}
    aggregator = MemoryAggregator(memory, 1)
    aggregator.add(sent([9.0, 9.0], 4, client=0, round=1), rows(range(2)))
    aggregator.add(sent([9.0], 4, client=1, round=1), rows(range(1)))
    aggregator.apply(torch.zeros(3))
    after = memory.tensors()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_a_restored_memory_goes_on_to_the_same_bits(precision):
    random = np.random.default_rng(0)
    settings = MemorySettings(horizon=3, precision=precision)
    memory, state = UpdateMemory(MIXED, settings), torch.zeros(MIXED.state_size)
    plan = make_plan(MIXED, [1.0, 0.3])
    for round in range(5):
        if round == 2:
            again = UpdateMemory(MIXED, settings)
            again.restore({name: tensor.clone() for name, tensor in memory.tensors().items()})
            copy = state.clone()
        client = round % 2
        assignment = plan.assignment(client)
        values = random.normal(size=assignment.update_size).astype(np.float32)
        one_round(memory, round, state, [(client, assignment, values, 2)])
        if round >= 2:
            one_round(again, round, copy, [(client, assignment, values, 2)])
            assert torch.equal(state, copy)


def test_an_empty_memory_is_restored():
    memory = UpdateMemory(THREE, MemorySettings())
    memory.restore(memory.tensors())
    assert memory.clients == {}


def test_running_statistics_are_the_mean_of_this_round():
    """They are averages: adding an old change again would move them too far."""
    layers = Layers(
        (Layer("n", (TensorSpec("w", (2,)), TensorSpec("mean", (2,), is_buffer=True)), 2),)
    )
    memory = UpdateMemory(layers, MemorySettings(decay=1.0))
    everything = SliceAssignment(layers, ((range(2),),))
    first = SliceAssignment(layers, ((range(1),),))
    state = torch.zeros(4)
    one_round(memory, 0, state, [(0, everything, [1.0, 1.0, 8.0, 8.0], 1)])
    assert state.tolist() == [1.0, 1.0, 8.0, 8.0]
    one_round(memory, 1, state, [(1, first, [3.0, 2.0], 1)])
    assert state.tolist() == [3.0, 2.0, 10.0, 8.0]


def test_sub_models_are_remembered_by_value():
    layers = Layers(
        (
            Layer("a", (TensorSpec("a.weight", (2, 1)),), 2),
            Layer("b", (TensorSpec("b.weight", (2, 2)),), 2),
        )
    )
    spaces = Spaces((2,), (TensorUnits("a.weight", 0, None), TensorUnits("b.weight", None, 0)))
    first, second = (
        SubmodelAssignment(layers, frozenset(), spaces, (np.array([unit]),), 0.5) for unit in (0, 1)
    )
    whole = SliceAssignment(layers, ((range(2),), (range(2),)))
    memory, state = UpdateMemory(layers, MemorySettings(decay=0.5)), torch.zeros(6)
    one_round(memory, 0, state, [(0, first, [1.0] * 3, 1), (1, whole, [3.0] * 6, 3)])
    assert state.tolist() == [2.5, 3.0, 2.5, 3.0, 2.5, 3.0]
    state.zero_()
    one_round(memory, 1, state, [(0, second, [1.0] * 3, 1)])
    assert state.tolist() == pytest.approx([2.5, 2.2] * 3)  # (0.5 * 3 * 3 + 1) / 2.5


def test_a_block_needs_contributors_new_or_remembered():
    memory, state = UpdateMemory(THREE, MemorySettings(decay=0.5)), torch.zeros(3)
    one_round(memory, 0, state, [(0, rows(range(1)), [1.0], 1)], min_contributors=2)
    assert state.tolist() == [0.0, 0.0, 0.0]
    one_round(memory, 1, state, [(1, rows(range(1)), [4.0], 1)], min_contributors=2)
    assert state[0].item() == pytest.approx((0.5 * 1.0 + 4.0) / 1.5)


def test_the_horizon_forgets_clients():
    memory = UpdateMemory(THREE, MemorySettings(horizon=2))
    one_round(memory, 0, torch.zeros(3), [(7, rows(range(1)), [1.0], 1)])
    for round in (1, 2, 3):
        assert 7 in memory.clients
        one_round(memory, round, torch.zeros(3), [(1, rows(range(1)), [1.0], 1)])
    assert set(memory.clients) == {1}


def test_an_update_without_a_client_is_refused():
    aggregator = MemoryAggregator(UpdateMemory(THREE, MemorySettings()), 0)
    with pytest.raises(UpdateError, match="origin"):
        aggregator.add(ClientUpdate(np.zeros(1, np.float32), 1, 0.0), rows(range(1)))


@given(st.integers(0, 2**31), st.sampled_from([0.5, 1.2]))
def test_clipped_updates_are_remembered_clipped(seed, clip):
    """The same as a memory that is given the clipped updates."""
    random = np.random.default_rng(seed)
    plan = make_plan(MIXED, [1.0, 0.5, 0.2])
    one, two = (UpdateMemory(MIXED, MemorySettings(decay=0.8)) for _ in range(2))
    states = torch.zeros(2, MIXED.state_size)
    for round in range(3):
        updates, clipped = [], []
        for client in range(round % 2, 3):
            part = plan.assignment(client, round)
            scale = 100.0 if client == 1 else 1.0
            values = scale * random.normal(size=part.update_size).astype(np.float32)
            updates.append((client, part, values, client + 1))
            clipped.append(Sent(torch.from_numpy(values.copy()), part, client + 1))
        factors = clip_updates(clipped, clip)
        aggregator = MemoryAggregator(one, round, clip=clip)
        for client, part, values, number in updates:
            aggregator.add(sent(values, number, client, round), part)
        aggregator.apply(states[0])
        aggregator.commit()
        assert aggregator.factors == factors and min(factors) < 1
        rest = [(*u[:2], c.values.numpy(), u[3]) for u, c in zip(updates, clipped, strict=True)]
        one_round(two, round, states[1], rest)
        assert torch.equal(*states)


@pytest.mark.parametrize("precision", ["float32", "int4"])
def test_on_disk_the_bits_are_the_same_and_checkpoints_find_their_files(precision, tmp_path):
    random = np.random.default_rng(0)
    settings = MemorySettings(horizon=3, precision=precision)
    plan = make_plan(MIXED, [1.0, 0.3, 0.2])
    inside, memory = (UpdateMemory(MIXED, settings, folder) for folder in (None, tmp_path / "on"))
    states, checkpoints = torch.zeros(2, MIXED.state_size), []
    for round in range(9):
        checkpoints.append(memory.tensors())
        assert not any(name.endswith("values") for name in checkpoints[-1])
        for old in checkpoints[-2:]:  # those that a run's folder has
            UpdateMemory(MIXED, settings, tmp_path / "on").restore(old)
        if round == 5:  # after a crash in round 4, which is run again
            memory = UpdateMemory(MIXED, settings, tmp_path / "on")
            memory.restore(checkpoints[-1])
        client = round % 2 if round < 6 else 2
        part = plan.assignment(client, round)
        values = random.normal(size=part.update_size).astype(np.float32)
        for each, state in zip((inside, memory), states, strict=True):
            one_round(each, round, state, [(client, part, values, 2)])
        assert torch.equal(*states)
    assert len(list((tmp_path / "on").iterdir())) <= 5  # those of round 0 to 4 are gone


def test_a_damaged_or_missing_file_is_said(tmp_path):
    memory = UpdateMemory(THREE, MemorySettings(), tmp_path)
    one_round(memory, 0, torch.zeros(3), [(7, rows(range(1)), [1.0], 1)])
    saved, (file,) = memory.tensors(), tmp_path.iterdir()
    data = bytearray(file.read_bytes())
    data[0] ^= 1
    file.write_bytes(data)
    with pytest.raises(DamagedError, match="7-0 is missing or damaged"):
        UpdateMemory(THREE, MemorySettings(), tmp_path).restore(saved)
    file.unlink()
    with pytest.raises(DamagedError, match="7-0 is missing or damaged"):
        UpdateMemory(THREE, MemorySettings(), tmp_path).restore(saved)
    with pytest.raises(RunError, match="cannot be read"):
        MemoryAggregator(memory, 1).apply(torch.zeros(3))


def test_a_full_disk_leaves_the_round_before(tmp_path):
    memory = UpdateMemory(THREE, MemorySettings(), tmp_path / "file" / "updates")
    (tmp_path / "file").touch()
    aggregator = MemoryAggregator(memory, 0)
    aggregator.add(sent([1.0], 1), rows(range(1)))
    state = torch.zeros(3)
    with pytest.raises(RunError, match="cannot be written"):
        aggregator.apply(state)
    assert not state.any() and memory.clients == {}
