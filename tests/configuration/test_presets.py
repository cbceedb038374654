"""``method.preset`` and the schedules of the learning rate."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedplt.configuration import TrainingConfig, parse_config
from fedplt.errors import ConfigError
from tests.support.jobs import blob_job

RECOMMENDED = {"name": "fedplt", "preset": "recommended"}


def test_a_preset_sets_keys_and_vanishes():
    config = parse_config({"method": RECOMMENDED, "server": {"min_clients": 3}})
    assert config.method == {"name": "fedplt", "rotate_every": 1}
    assert config.server.memory is not None and config.server.memory.decay == 0.8
    assert (config.messages.up, config.messages.down) == ("int8", "int4")
    assert config.server.min_clients == 3
    assert parse_config(config.model_dump(exclude_none=True, mode="json")) == config


def test_keys_that_are_set_stay():
    given = {"server": {"memory": {"decay": 0.5}}, "messages": {"up": "int4"}}
    config = parse_config({"method": {**RECOMMENDED, "rotate_every": 3}, **given})
    assert config.method["rotate_every"] == 3
    assert config.server.memory is not None and config.server.memory.decay == 0.5
    assert (config.messages.up, config.messages.down) == ("int4", "int4")


def test_the_preset_of_a_whole_configuration_replaces_its_defaults():
    """A comparison gives all keys of a configuration and another method."""
    values = parse_config({}).model_dump(exclude_none=True, mode="json")
    config = parse_config({**values, "method": RECOMMENDED})
    assert (config.messages.up, config.messages.down) == ("int8", "int4")


def test_only_strong_clients_take_part():
    values = parse_config({}).model_dump(exclude_none=True, mode="json")
    config = parse_config({**values, "method": {"name": "fedplt", "preset": "strong-only"}})
    assert config.sampling.name == "strong" and config.server.memory is None


@pytest.mark.parametrize(
    "method", [{"name": "fedplt", "preset": "best"}, {"name": "fedavg", "preset": "recommended"}]
)
def test_a_preset_that_does_not_fit_is_refused(method):
    with pytest.raises(ConfigError) as error:
        parse_config({"method": method})
    assert "method.preset" in str(error.value)


def test_literal_factors():
    cosine = TrainingConfig(schedule="cosine", decay_rounds=10.0, final_factor=0.2)
    assert [cosine.rate_factor(t) for t in (0, 5, 10, 99)] == pytest.approx([1, 0.6, 0.2, 0.2])
    step = TrainingConfig(schedule="step", decay_rounds=10.0, step_factor=0.5)
    assert [step.rate_factor(t) for t in (0, 9, 10, 25)] == [1, 1, 0.5, 0.25]
    warm = TrainingConfig(warmup_rounds=3)
    assert [warm.rate_factor(t) for t in range(5)] == [0.25, 0.5, 0.75, 1, 1]


@given(
    st.sampled_from(["constant", "1/t", "cosine", "step"]), st.integers(0, 20), st.integers(0, 500)
)
def test_after_warming_up_a_rate_never_grows(schedule, warmup, round):
    settings = TrainingConfig(schedule=schedule, decay_rounds=50.0, warmup_rounds=warmup)
    now, then = (settings.rate_factor(warmup + t) for t in (round, round + 1))
    assert 0 <= then <= now <= 1


def test_small_slices_start_with_larger_rates():
    settings = TrainingConfig(slice_power=0.25, slice_rounds=10)
    factors = [settings.slice_factor(1 / 16, t) for t in (0, 5, 10, 99)]
    assert factors == pytest.approx([2, 2**0.5, 1, 1])
    training = {"learning_rate": 0.1, "slice_power": 0.5, "slice_rounds": 4}
    job, small = blob_job([1.0, 0.5, 0.2], training=training), 2
    ratio = job.plan.achieved_ratios[small]
    rates = [job.learning_rate(small, t) for t in (0, 2, 4)]
    assert rates == pytest.approx([0.1 * ratio**-0.5, 0.1 * ratio**-0.25, 0.1])
    assert [job.learning_rate(0, t) for t in (0, 2, 4)] == pytest.approx([0.1] * 3)


@given(st.floats(0.01, 1), st.floats(0.01, 1), st.integers(0, 100))
def test_slice_factors_fall_to_one(ratio, power, round):
    settings = TrainingConfig(slice_power=power, slice_rounds=50)
    now, then = settings.slice_factor(ratio, round), settings.slice_factor(ratio, round + 1)
    assert 1 <= then <= now <= 1 / ratio * (1 + 1e-12)
    assert settings.slice_factor(1.0, round) == 1
    assert now >= settings.slice_factor(min(1.0, 2 * ratio), round)


@pytest.mark.parametrize(
    "settings",
    [
        {"schedule": "cosine"},
        {"schedule": "step", "decay_rounds": 0.5},
        {"schedule": "cosine", "decay_rounds": 5.0, "step_factor": 0.5},
        {"final_factor": 0.5},
        {"slice_rounds": 10},
    ],
)
def test_keys_that_do_not_fit_the_schedule_are_refused(settings):
    with pytest.raises(ConfigError):
        parse_config({"training": settings})
