"""Who is planned for a deadline is not late in a run with that deadline. Nothing is trained."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedplt import ConfigError
from fedplt.configuration.config_file import parse_config
from fedplt.data.samples import TensorSamples
from fedplt.data.training_data import TrainingData
from fedplt.federation.availability import Availability
from fedplt.federation.job import make_job
from fedplt.federation.round_costs import RoundCosts
from tests.support.jobs import blobs

WIDTHS = st.integers(3, 24)


@st.composite
def networks(draw):
    """A small network on six inputs, and names of layers that everybody trains."""
    kind = draw(st.sampled_from(["dense", "convolution", "recurrent"]))
    parts = []
    inputs = 6
    if kind == "convolution":
        inputs, size = draw(WIDTHS), draw(st.integers(1, 3))
        parts += [nn.Unflatten(1, (1, 6)), nn.Conv1d(1, inputs, size), nn.BatchNorm1d(inputs)]
        parts += [nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten()]
    elif kind == "recurrent":
        inputs = draw(WIDTHS)
        parts += [nn.Unflatten(1, (3, 2)), Last(2, inputs)]
    for width in draw(st.lists(WIDTHS, max_size=3)):
        parts += [nn.Linear(inputs, width), nn.ReLU()]
        inputs = width
    parts.append(nn.Linear(inputs, 3))
    always = [str(len(parts) - 1)] if draw(st.booleans()) and len(parts) > 1 else []
    return nn.Sequential(*parts), always


class Last(nn.Module):
    """The last output of a recurrent layer."""

    def __init__(self, inputs, units):
        super().__init__()
        self.memory = nn.GRU(inputs, units, batch_first=True)

    def forward(self, x):
        return self.memory(x)[0][:, -1]


DEVICES = st.lists(
    st.fixed_dictionaries(
        {
            "count": st.integers(1, 4),
            "flops_per_second": st.floats(1e5, 1e7),
            "down_bits_per_second": st.floats(1e4, 1e6),
            "up_bits_per_second": st.floats(1e3, 1e5),
            "latency_seconds": st.floats(0, 0.1),
        }
    ),
    min_size=1,
    max_size=5,
)
TRAINING = st.sampled_from(
    [
        {"local_steps": 3, "batch_size": 8},
        {"local_epochs": 1, "batch_size": 8},
        {"local_epochs": 2, "batch_size": 16},
        {"local_steps": 2, "batch_size": "full"},
    ]
)


def make(model, devices, training, fleet, always=(), examples=120, **more):
    """A job of clients that own equally many examples (give or take one)."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "devices.csv")
        rows = [{"name": f"d{i}", **device} for i, device in enumerate(devices)]
        lines = [",".join(rows[0]), *(",".join(str(row[key]) for key in rows[0]) for row in rows)]
        path.write_text("\n".join(lines))
        values = {
            "rounds": 1,
            "model": {"always": list(always)},
            "clients": {"num_clients": sum(device["count"] for device in devices)},
            "data": {"name": "blobs", "split": "iid"},
            "training": {"learning_rate": 0.1, **training},
            "engine": {"workers": 1},
            "fleet": {"devices": str(path), **fleet},
            **more,
        }
        data = TrainingData(TensorSamples(*blobs(examples)), TensorSamples(*blobs(30, 1)), None)
        return make_job(parse_config(values), model, data)


def feasible_clients(job):
    entries = [entry for entry in job.devices.plan.devices for _ in range(entry.device.count)]
    return {client for client, entry in enumerate(entries) if entry.feasible}


def late_clients(job):
    try:
        return set(Availability(job, RoundCosts(job)).attend(0).late)
    except ConfigError as error:
        assert "nobody finishes" in str(error)
        return set(range(job.plan.num_clients))


@pytest.mark.slow
@settings(max_examples=12)
@given(
    network=networks(),
    devices=DEVICES,
    training=TRAINING,
    share=st.floats(0.05, 1.0),
    min_ratio=st.sampled_from([0.01, 0.1]),
    freeze=st.booleans(),
    cut_steps=st.booleans(),
    examples=st.integers(100, 140),
)
def test_no_feasible_device_is_late(
    network, devices, training, share, min_ratio, freeze, cut_steps, examples
):
    model, always = network
    fleet = {"min_ratio": min_ratio, "may_cut_steps": cut_steps}
    fleet["may_freeze"] = freeze and sum(1 for m in model.modules() if isinstance(m, nn.Linear)) > 1
    untimed = make(model, devices, training, fleet, always, examples).devices.plan
    seconds = share * untimed.full_round_seconds
    fleet |= {"deadline_seconds": seconds, "late_after_seconds": seconds}
    job = make(model, devices, training, fleet, always, examples)
    assert not feasible_clients(job) & late_clients(job)


def test_the_fastest_device_is_not_late_by_its_own_time():
    """The default target is a device's own predicted time, to the last bit or so."""
    device = {"flops_per_second": 3e5, "down_bits_per_second": 7e3, "up_bits_per_second": 3e3}
    devices = [{**device, "count": 2, "latency_seconds": 0.1 * i} for i in range(3)]
    training = {"local_steps": 3, "batch_size": 8}
    model = nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 3))
    seconds = make(model, devices, training, {}).devices.plan.target_seconds
    job = make(model, devices, training, {"late_after_seconds": seconds})
    assert job.plan.ratios[0] == 1
    assert feasible_clients(job) == set(range(6))
    assert not late_clients(job)
