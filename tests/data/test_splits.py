"""Who owns which example."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedplt import ClientsConfig, DataConfig, DataError
from fedplt.data.splits import split_dirichlet, split_given, split_iid, split_shards
from tests.support.work import executed_lines

LABELS = np.arange(5000) % 10


def is_partition(split, number):
    return np.array_equal(np.sort(split.order), np.arange(number))


@given(st.integers(1, 40), st.floats(0.01, 100), st.integers(1, 8), st.integers(0, 99))
def test_dirichlet_gives_everything_away_and_keeps_the_minimum(clients, alpha, minimum, seed):
    labels = np.arange(400) % 7
    split = split_dirichlet(labels, clients, alpha=alpha, min_examples=minimum, seed=seed)
    assert is_partition(split, 400)
    assert split.num_clients == clients
    assert split.num_examples.min() >= minimum


def skew(split):
    """Mean share of a client's most frequent label."""
    tops = [np.bincount(LABELS[split.client(k)]).max() for k in range(split.num_clients)]
    return np.mean(np.array(tops) / split.num_examples)


def test_small_alpha_is_skewed():
    strong = split_dirichlet(LABELS, 20, alpha=0.05, seed=1)
    weak = split_dirichlet(LABELS, 20, alpha=100.0, seed=1)
    assert skew(strong) > 0.6
    assert skew(weak) < 0.2


def test_is_seeded():
    one, two, other = (split_dirichlet(LABELS, 20, alpha=0.2, seed=s) for s in (1, 1, 2))
    assert np.array_equal(one.order, two.order)
    assert not np.array_equal(one.offsets, other.offsets)


def test_exactly_enough_examples_is_enough():
    split = split_dirichlet(LABELS[:100], 10, alpha=0.1, min_examples=10)
    assert split.num_examples.tolist() == [10] * 10


@pytest.mark.slow
def test_a_hundred_thousand_clients_need_no_loop():
    labels = np.random.default_rng(0).integers(0, 10, 1_000_000)
    split = split_dirichlet(labels, 100_000, alpha=0.1, min_examples=5)
    assert split.num_examples.min() == 5
    assert is_partition(split, 1_000_000)
    lines = executed_lines(lambda: split_dirichlet(labels, 100_000, alpha=0.1, min_examples=5))
    assert lines < 1000


def test_iid_and_shards():
    split = split_iid(103, 10)
    assert is_partition(split, 103)
    assert set(split.num_examples) == {10, 11}
    split = split_shards(LABELS, 25, shards_per_client=2)
    assert is_partition(split, 5000)
    assert max(len(set(LABELS[split.client(k)])) for k in range(25)) <= 3


def test_given_splits():
    split = split_given([[3, 1], np.array([0, 3])], 5)
    assert split.client(1).tolist() == [0, 3]
    for indices, reason in [
        ([[0], []], "client 1 has no examples"),
        ([[0, 5]], "client 0 has index 5; the data has examples 0 to 4"),
        ([[-1]], "index -1"),
        ([], r"the split is \[\]; give a list"),
        ({"0": [1], "1": [2]}, "the split is {.*; give a list"),
        ([[0.9]], "whole numbers"),
        ([["1"]], "whole numbers"),
        ([[[1]]], "whole numbers"),
        ([[1, [2]]], "whole numbers"),
        ([10**30], "whole numbers"),
        (5, "the split is 5; give a list"),
    ]:
        with pytest.raises(DataError, match=reason):
            split_given(indices, 5)


def test_refusals():
    with pytest.raises(DataError, match=r"10 clients with at least 11 .* the 100 "):
        split_dirichlet(LABELS[:100], 10, alpha=0.1, min_examples=11)
    with pytest.raises(DataError, match="Use fewer clients"):
        split_iid(5, 6)
    for alpha in (-1.0, 0.0, float("inf"), float("nan"), 1e308):
        with pytest.raises(DataError, match=f"alpha is {alpha}".replace("+", r"\+")):
            split_dirichlet(LABELS, 10, alpha=alpha)
        with pytest.raises(ValueError, match="alpha"):
            DataConfig(alpha=alpha)
    with pytest.raises(DataError, match="0 clients"):
        split_iid(5, 0)
    with pytest.raises(ValueError, match="num_clients"):
        ClientsConfig(num_clients=0)
    with pytest.raises(DataError, match=r"at least 0 .* shards"):
        split_shards(LABELS, 5, shards_per_client=0)
    with pytest.raises(ValueError, match="shards_per_client"):
        DataConfig(split="shards", shards_per_client=0)
