"""Averages of models: the equations, one round at a time, from the checkpoint or not."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedplt import ConfigError
from fedplt.configuration.config_file import parse_config
from fedplt.server.average import AverageSettings, ModelAverage

NUM_VALUES = 3
models = st.lists(
    st.lists(st.floats(-10, 10, width=32), min_size=NUM_VALUES, max_size=NUM_VALUES),
    min_size=1, max_size=8,
).map(torch.tensor)  # fmt: skip
"""The models of some rounds, (rounds, values)."""


def averages(settings, rounds):
    """The average after each round; every second one is read from its checkpoint first."""
    average, result = ModelAverage(settings), []
    for number, state in enumerate(rounds):
        if number % 2:
            average = ModelAverage(settings).restored(average.tensors())
        average = average.after(state)
        result.append(average.state)
    return result


@given(rounds=models, decay=st.floats(0.05, 0.95))
def test_decayed(rounds, decay):
    found = averages(AverageSettings(decay=decay), rounds)
    expected = rounds[0].double()
    for state, average in zip(rounds, found, strict=True):
        if average is not found[0]:
            expected = decay * expected + (1 - decay) * state.double()
        assert torch.allclose(average.double(), expected, atol=1e-4)


@given(rounds=models, window=st.integers(1, 10))
def test_window(rounds, window):
    found = averages(AverageSettings(window=window), rounds)
    for number, average in enumerate(found, start=1):
        expected = rounds[max(0, number - window) : number].double().mean(dim=0)
        assert torch.allclose(average.double(), expected, atol=1e-4)


def test_an_average_stays_what_it_was():
    """A round that does not count changes nothing; nor does training on in the same memory."""
    state = torch.ones(NUM_VALUES)
    first = ModelAverage(AverageSettings(decay=0.5)).after(state)
    first.after(torch.zeros(NUM_VALUES))
    state.zero_()
    assert first.state.tolist() == [1.0] * NUM_VALUES


@pytest.mark.parametrize("keys", [{}, {"decay": 0.9, "window": 3}])
def test_decay_or_window(keys):
    with pytest.raises(ConfigError) as error:
        parse_config({"server": {"average": keys}})
    assert error.value.key == "server.average"
