"""Sums with noise: how much one client can change them, how large the noise is."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kstest

from fedplt import ClientUpdate, Layer, Layers, TensorSpec, make_plan
from fedplt.planning.assignment import SliceAssignment
from fedplt.server import PrivateAggregator, SecretStream
from fedplt.server.differential_privacy import clipped

LAYERS = Layers(
    (
        Layer("a", (TensorSpec("a.w", (6, 3)), TensorSpec("a.b", (6,))), 6),
        Layer("b", (TensorSpec("b.w", (12, 2)),), 4),
    )
)
THREE = Layers((Layer("l", (TensorSpec("w", (3, 1)),), 3),))


def sent(values, num_examples=1):
    return ClientUpdate(np.asarray(values, dtype=np.float32), num_examples, 0.0)


def private(layers, plan, takes_part, *, noise=0.0, clip=1.0, probability=1.0, **options):
    """The change of the model; ``takes_part`` are updates by client."""
    aggregator = PrivateAggregator(
        layers, clip=clip, noise_multiplier=noise, probability=probability,
        secret=SecretStream(b"0" * 16), round=0, **options,
    )  # fmt: skip
    for client in range(len(plan)):
        aggregator.expect(plan[client])
    for client, values in takes_part.items():
        aggregator.add(sent(values, 10**6), plan[client])
    state = torch.zeros(layers.state_size)
    aggregator.apply(state)
    return state, aggregator


@given(st.lists(st.floats(-38, 30), min_size=1, max_size=20), st.floats(1e-3, 1e3))
def test_a_clipped_update_is_never_longer_than_the_clip(exponents, clip):
    values = torch.tensor([10.0**e for e in exponents], dtype=torch.float32)
    assert float(torch.linalg.vector_norm(clipped(values, clip).double())) <= clip


@settings(deadline=None)
@given(
    st.lists(st.floats(0.05, 1), min_size=2, max_size=6),
    st.integers(0, 2**31),
    st.floats(0.01, 10),
    st.floats(-3, 3),
    st.floats(0.1, 1),
)
def test_one_client_changes_the_sum_by_at_most_the_clip(ratios, seed, clip, scale, probability):
    """Before the fixed divisors, all blocks together: the sensitivity that the noise is for."""
    random, plan = np.random.default_rng(seed), make_plan(LAYERS, ratios)
    assigned = [plan.assignment(client) for client in range(len(ratios))]
    updates = {
        k: (10**scale * random.normal(size=each.update_size)).astype(np.float32)
        for k, each in enumerate(assigned)
    }
    options = {"clip": clip, "probability": probability}
    whole, aggregator = private(LAYERS, assigned, updates, **options)
    gone = int(random.integers(len(ratios)))
    del updates[gone]
    less, other = private(LAYERS, assigned, updates, **options)
    assert torch.equal(aggregator.divisors(), other.divisors())  # whoever takes part
    divisors = aggregator.divisors().double()
    trained = divisors > 0
    change = ((whole - less).double() * divisors)[trained]
    assert float(torch.linalg.vector_norm(change)) <= clip * (1 + 1e-4)


def test_the_divisors_are_the_plans():
    plan = [
        SliceAssignment(THREE, ((range(2),),)),
        SliceAssignment(THREE, ((range(1),),)),
        SliceAssignment(THREE, ((range(1),),)),
    ]
    state, aggregator = private(THREE, plan, {0: [0.3, 0.4]}, probability=0.5)
    assert state.tolist() == pytest.approx([0.3 / 1.5, 0.4 / 0.5, 0])
    assert aggregator.touched().tolist() == [True, True, False]
    state, _ = private(THREE, plan, {0: [3, 4], 1: [-9]}, probability=0.5)
    assert state.tolist() == pytest.approx([(0.6 - 1) / 1.5, 0.8 / 0.5, 0], abs=1e-5)
    state, aggregator = private(THREE, plan, {0: [0.3, 0.4]}, min_contributors=3)
    assert state.tolist() == pytest.approx([0.1, 0, 0])
    assert aggregator.touched().tolist() == [True, False, False]


def test_the_noise_has_the_stated_scale_even_if_nobody_takes_part():
    layers = Layers((Layer("l", (TensorSpec("w", (4, 20_000)),), 4),))
    plan = [SliceAssignment(layers, ((range(n),),)) for n in (1, 2, 2)]
    state, _ = private(layers, plan, {}, noise=1.5, clip=0.2, probability=0.5)
    rows = state.view(4, -1)
    for row, clients in ((0, 3), (1, 2)):
        scale = 1.5 * 0.2 / (0.5 * clients)
        assert kstest(rows[row].numpy() / scale, "norm").pvalue > 1e-3
    assert not rows[2:].any()  # nobody is assigned to them


def test_the_stream_depends_on_key_purpose_and_round_alone():
    stream = SecretStream.from_seed(5)
    first = stream.normals("noise", 1, 1000)
    assert np.array_equal(first, SecretStream.from_seed(5).normals("noise", 1, 1000))
    others = [
        SecretStream.from_seed(6).normals("noise", 1, 1000),
        SecretStream.fresh().normals("noise", 1, 1000),
        stream.normals("noise", 2, 1000),
        stream.normals("clients", 1, 1000),
    ]
    for other in others:
        assert abs(np.corrcoef(first, other)[0, 1]) < 0.2
    assert len(stream.key) == 16 and repr(stream.key) not in repr(stream)
    draws = stream.uniforms("clients", 0, 100_000)
    assert kstest(draws, "uniform").pvalue > 1e-3
    assert len(stream.uniforms("clients", 0, 0)) == 0
