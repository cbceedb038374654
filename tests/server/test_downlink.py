"""What the server sends: clients can read it, and errors of differences do not add up."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedplt import cut, make_plan
from fedplt.planning import state_packing
from fedplt.server.downlink import SNAPSHOT, Downlink

NUM_CLIENTS = 4
LAYERS = cut(nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)))
PLAN = make_plan(LAYERS, [1.0] * NUM_CLIENTS)
attendance = st.lists(
    st.sets(st.integers(0, NUM_CLIENTS - 1), min_size=1), min_size=2, max_size=6
)  # fmt: skip
"""Who takes part in each round."""


def states(number, seed=0):
    """Models of successive rounds: a start, and smaller and smaller steps from it."""
    random = np.random.default_rng(seed)
    steps = random.standard_normal((number, LAYERS.state_size)) * 0.5 ** np.arange(number)[:, None]
    return torch.from_numpy(steps.cumsum(axis=0).astype(np.float32))


def read(sent, client, reference):
    """The model that a client computes from the array it receives and the last reference."""
    array = sent.array_of(client, PLAN.assignment(client))
    encoding = sent.encoding_of(client)
    if encoding == "float32":
        return torch.from_numpy(array.copy())
    values = torch.from_numpy(state_packing(LAYERS, encoding).decode(array.tobytes()))
    return reference + values if encoding in ("int4", "int2") else values


@pytest.mark.parametrize("encoding", ["float32", "float16", "int8", "int4", "int2"])
@given(rounds=attendance)
def test_clients_train_from_the_model_that_the_server_counts_on(encoding, rounds):
    downlink, reference = Downlink(LAYERS, NUM_CLIENTS, encoding), None
    for round, (clients, state) in enumerate(zip(rounds, states(len(rounds)), strict=True)):
        sent = downlink.send(round, state, clients)
        for client in clients:
            assert torch.equal(read(sent, client, reference), sent.state_of(client))
        reference = sent.state
        downlink.commit(round, sent, clients)


@given(rounds=attendance)
def test_differences_go_only_to_those_who_have_the_reference(rounds):
    downlink, has = Downlink(LAYERS, NUM_CLIENTS, "int4"), set()
    for round, (clients, state) in enumerate(zip(rounds, states(len(rounds)), strict=True)):
        sent = downlink.send(round, state, clients)
        if round:
            assert {k for k in clients if sent.encoding_of(k) == "int4"} == clients & has
        has = {k for k in clients if sent.encoding_of(k) != SNAPSHOT or not round}
        downlink.commit(round, sent, clients)


def test_errors_of_differences_do_not_add_up():
    """The reference follows a model that comes to rest, however coarse the steps are."""
    downlink, everybody = Downlink(LAYERS, NUM_CLIENTS, "int2"), range(NUM_CLIENTS)
    goal = states(1)[0]
    errors = []
    for round in range(40):
        sent = downlink.send(round, goal, everybody)
        downlink.commit(round, sent, everybody)
        errors.append(float((sent.state - goal).norm()))
    assert errors[-1] < 1e-3 * float(goal.norm()) < errors[0]


@pytest.mark.parametrize("encoding", ["float16", "int8", "int4"])
def test_a_checkpoint_goes_on_with_the_same_bits(encoding):
    one, other = (Downlink(LAYERS, NUM_CLIENTS, encoding) for _ in range(2))
    for round, (state, clients) in enumerate(zip(states(5), [{0, 1}, {0}, {0, 1, 2}, {2}, {1, 2}],
                                                 strict=True)):  # fmt: skip
        found = [downlink.send(round, state, clients) for downlink in (one, other)]
        assert found[0].data == found[1].data
        assert found[0].others == found[1].others
        one.commit(round, found[0], clients)
        fresh = Downlink(LAYERS, NUM_CLIENTS, encoding)
        fresh.restore(one.tensors())
        other = fresh


def test_a_round_that_does_not_count_changes_nothing():
    downlink, (first, second) = Downlink(LAYERS, NUM_CLIENTS, "int4"), states(2)
    downlink.commit(0, downlink.send(0, first, [0]), [0])
    once, again = (downlink.send(1, second, [0]) for _ in range(2))
    assert once.data == again.data
