"""What is said of a run before it begins, against what its records say afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import nn

from fedplt.errors import ConfigError
from fedplt.federation import cost_forecast as module
from fedplt.federation.cost_forecast import forecast
from fedplt.federation.preflight import settings as preflight
from fedplt.server import MemorySettings
from tests.support.jobs import blob_job
from tests.support.runs import run_job

EQUAL = [0.5] * 5


def wide_model():
    return nn.Sequential(nn.Linear(6, 200), nn.ReLU(), nn.Linear(200, 3))


def costs(job, tmp_path):
    """The mean costs of the rounds of a run, by its records."""
    records = run_job(job, tmp_path / "run").rounds
    total = records[-1].total
    return [value / len(records) for value in (total.bytes_up, total.bytes_down, total.flops)]


@pytest.mark.parametrize(
    ("ratios", "sampling"),
    [
        (None, {}),
        (EQUAL, {"name": "uniform", "num_clients": 2}),
        (EQUAL, {"name": "ocs", "budget": 2.0}),
    ],
)
def test_a_forecast_comes_true(tmp_path, ratios, sampling):
    job = blob_job(ratios, wide_model(), sampling=sampling, rounds=40)
    told = forecast(job, workers=1)
    up, down, flops = costs(job, tmp_path)
    exact = 0.1 if sampling else 1e-9  # who is drawn has more or fewer examples
    assert told.bytes_up == pytest.approx(up, rel=0.25)  # draws differ; updates have a header
    assert told.bytes_down == pytest.approx(down, rel=exact)
    assert told.flops == pytest.approx(flops, rel=exact)
    assert told.rounds == 40
    assert told.seconds > 0


def test_some_stand_for_all(monkeypatch):
    ratios = [1.0, 0.2] * 50
    whole = forecast(blob_job(ratios, data={"min_examples": 1}), workers=2)
    monkeypatch.setattr(module, "MOST_CLIENTS", 30)
    some = forecast(blob_job(ratios, data={"min_examples": 1}), workers=2)
    assert some.bytes_up == pytest.approx(whole.bytes_up, rel=0.2)
    assert some.bytes_up != whole.bytes_up


def test_a_summary(tmp_path):
    told = module.Forecast(10, 1e6, 2e6, 3e9, 90.0, 4_000_000)
    text = told.summary(tmp_path / "not" / "there")
    assert "10 rounds: 10.0 MB up, 20.0 MB down" in text
    assert "about 1:30 here" in text
    assert "4.0 MB on disk (" in text


@pytest.mark.parametrize(
    ("total", "free", "said"),
    [
        (10**12, 10**9, "4.0 MB on disk (1.0 GB free)"),
        (10**12, 0, "4.0 MB on disk (0 B free)\nWARNING: the disk"),
        (0, 0, "4.0 MB on disk"),  # a file system without sizes
    ],
)
def test_free_space(tmp_path, monkeypatch, total, free, said):
    disk = type("", (), {"total": total, "free": free})
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: disk)
    text = module.Forecast(1, 1e6, 2e6, 3e9, 90.0, 4_000_000).summary(tmp_path)
    assert "\n1 round: " in text
    assert said in text
    assert ("free" in text) == bool(total)


def test_a_memory_that_does_not_fit_into_ram_is_refused(monkeypatch):
    job, settings = blob_job(), MemorySettings()
    needed = settings.num_bytes(job.plan)
    monkeypatch.setattr(preflight, "physical_memory", lambda: needed)
    assert preflight.place_of_memory(settings, job.plan, Path("run")) is None
    monkeypatch.setattr(preflight, "physical_memory", lambda: needed - 1)
    with pytest.raises(ConfigError, match=r"server\.memory\.store.*Set 'disk'"):
        preflight.place_of_memory(settings, job.plan, Path("run"))
    on_disk = MemorySettings(store="disk")
    assert preflight.place_of_memory(on_disk, job.plan, Path("run")) == Path("run/updates")


def test_the_memory_of_updates_is_forecast():
    plain = forecast(blob_job(), 1)
    remembering = forecast(blob_job(server={"memory": {"precision": "int8"}}), 1)
    assert plain.memory_bytes == 0 and "memory" not in plain.summary(Path())
    # Five clients, 83 values in one block with a scale, 11 rounds of sub-layers of 4 bytes.
    assert remembering.memory_bytes == 5 * (83 + 4 + 4 * 11)
    assert remembering.disk_bytes == plain.disk_bytes + 2 * remembering.memory_bytes
    on_disk = forecast(blob_job(server={"memory": {"precision": "int8", "store": "disk"}}), 1)
    assert on_disk.disk_bytes == plain.disk_bytes + 4 * remembering.memory_bytes
    of_submodels = forecast(blob_job(method={"name": "fedrolex"}, server={"memory": {}}), 1)
    assert of_submodels.memory_bytes == 5 * (4 * 83 + 4 * (11 + 83))
    assert "memory of updates" in remembering.summary(Path())
