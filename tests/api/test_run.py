"""The Python front door: a model and data of the user's own."""

from __future__ import annotations

import os

import pytest
import tomli_w
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset

import fedplt
from fedplt import ConfigError, DataError, RunError
from fedplt.federation.run_folder.folder import RunFolder
from tests.support.engines import FakeEngine
from tests.support.jobs import blobs, small_model

pytestmark = pytest.mark.slow

FAST = {"training": {"learning_rate": 0.1, "batch_size": 16}, "engine": {"workers": 1}}


def test_trains_in_place_and_writes_a_run_folder(tmp_path):
    model = small_model()
    history = fedplt.train(
        model, blobs(300), blobs(90, 1),
        ratios=[1.0, 0.5, 0.2], split={"alpha": 2.0}, rounds=20,
        out=tmp_path / "run", **FAST,
    )  # fmt: skip
    inputs, targets = blobs(90, 1)
    accuracy = float((model(inputs).argmax(1) == targets).float().mean())
    assert accuracy == pytest.approx(history.scores[-1])
    assert accuracy > 0.9
    from safetensors.torch import load_file

    fresh = small_model()
    fresh.load_state_dict(load_file(tmp_path / "run" / "model.safetensors"))
    assert torch.equal(fresh(inputs), model(inputs))


def test_resumes(tmp_path):
    def run(rounds, **more):
        torch.manual_seed(0)
        model = small_model()
        fedplt.train(
            model, blobs(90), blobs(30, 1), ratios=[0.5] * 3, rounds=rounds, **FAST, **more
        )
        return model[0].weight

    whole = run(6)
    run(3, out=tmp_path / "run")
    assert torch.equal(run(6, out=tmp_path / "run", resume=True), whole)
    advice = r"call fedplt\.train with the same arguments and resume=True"
    with pytest.raises(RunError, match=f"already exists. To continue it, {advice}"):
        run(6, out=tmp_path / "run")
    with pytest.raises(RunError, match=advice):  # and the other way says the same
        fedplt.resume(tmp_path / "run")
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "notes.txt").touch()
    with pytest.raises(RunError, match=r"not a run's: choose another"):
        run(6, out=tmp_path / "own")


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_the_modes_of_all_files_follow_the_umask(tmp_path, umask):
    before = os.umask(umask)
    try:
        fedplt.train(
            small_model(), blobs(90), blobs(30, 1), ratios=[1.0] * 3, rounds=1, **FAST,
            out=tmp_path / "run",
        )  # fmt: skip
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "run").iterdir()}
    assert {"model.safetensors", "checkpoint.safetensors", "config.toml"} <= modes.keys()
    assert set(modes.values()) == {0o666 & ~umask}


def test_a_run_that_never_began_starts_again(tmp_path, monkeypatch):
    def run(**more):
        torch.manual_seed(0)
        model = small_model()
        fedplt.train(model, blobs(90), blobs(30, 1), ratios=[0.5] * 3, rounds=2, **FAST, **more)
        return model[0].weight

    def fails(self):
        raise OSError("the disk is full")

    with monkeypatch.context() as patched, pytest.raises(OSError, match="full"):
        patched.setattr("fedplt.federation.loop.Federation.start", fails)
        run(out=tmp_path / "run")
    with pytest.raises(RunError, match=r"never began.* fedplt\.train without resume"):
        run(out=tmp_path / "run", resume=True)
    assert torch.equal(run(out=tmp_path / "run"), run())


class Lazy(Dataset):
    def __init__(self, number, seed):
        self.inputs, self.targets = blobs(number, seed)

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        return self.inputs[index], int(self.targets[index])


def test_datasets_and_tensors_give_the_same_bits():
    weights = []
    for train, validation in ((blobs(90), blobs(30, 1)), (Lazy(90, 0), Lazy(30, 1))):
        torch.manual_seed(0)
        model = small_model()
        fedplt.train(model, train, validation, ratios=[0.5] * 3, rounds=2, split="shards", **FAST)
        weights.append(model[0].weight)
    assert torch.equal(*weights)


def test_a_loss_and_a_metric_of_ones_own():
    inputs = torch.randn(120, 4, generator=torch.Generator().manual_seed(0))
    targets = inputs @ torch.tensor([[1.0], [2.0], [-1.0], [0.5]])
    metric = fedplt.Metric(
        lambda outputs, targets: -((outputs - targets) ** 2).squeeze(1),
        name="minus MSE", direction="higher",
    )  # fmt: skip
    history = fedplt.train(
        nn.Linear(4, 1), (inputs, targets), (inputs, targets),
        ratios=[1.0, 1.0], rounds=20, task={"loss": F.mse_loss, "metric": metric},
        split=[range(60), range(60, 120)], engine=FAST["engine"],
        training={**FAST["training"], "augment": lambda inputs, generator: inputs},
    )  # fmt: skip
    assert history.scores[-1] > -0.1 > history.scores[0]


class Viewing(nn.Module):
    """Insists on the usual memory layout."""

    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(1, 4, 3, padding=1), nn.Linear(4 * 36, 3)

    def forward(self, x):
        x = torch.relu(self.conv(x))
        return self.head(x.view(x.size(0), -1))


@pytest.mark.parametrize("channels", [1, 3])
def test_models_that_insist_on_a_layout_get_it(channels):
    inputs, labels = torch.randn(60, channels, 6, 6), torch.arange(60) % 3
    model = Viewing()
    model.conv = nn.Conv2d(channels, 4, 3, padding=1)
    history = fedplt.train(
        model, (inputs, labels), (inputs, labels), ratios=[0.5] * 3, rounds=2, **FAST
    )
    assert len(history.rounds) == 2


def test_learning_rates_per_client():
    weights = []
    for rates in (None, [0.1] * 3, [0.1, 0.1, 0.2]):
        torch.manual_seed(0)
        model = small_model()
        data = blobs(90), blobs(30, 1)
        fedplt.train(model, *data, ratios=[0.5] * 3, rounds=1, learning_rate=rates, **FAST)
        weights.append(model[0].weight)
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_refusals():
    def run(**changes):
        settings = {"ratios": [0.5] * 3, "rounds": 1, **FAST, **changes}
        train = settings.pop("train_data", blobs(90))
        return fedplt.train(small_model(), train, blobs(30, 1), **settings)

    with pytest.raises(ConfigError, match=r"clients\.num_clients"):
        run(ratios=[0.5] * 91)
    with pytest.raises(ConfigError, match="the split is for 2"):
        run(split=[[0], [1]])
    with pytest.raises(ConfigError, match=r"task: .*fails"):
        run(task={"loss": F.binary_cross_entropy})
    with pytest.raises(ConfigError, match=r"training\.optimizer_options"):
        run(training={"optimizer": "adam", "momentum": 0.9})
    with pytest.raises(ConfigError, match=r"method.name: .*'fedpl'.*'fedplt'"):
        run(method={"name": "fedpl"})
    with pytest.raises(ConfigError, match=r"method\.speed: fedavg"):
        run(method={"name": "fedavg", "speed": 3})
    with pytest.raises(ConfigError, match=r"evaluation\.per_client"):
        run(
            train_data=(blobs(90)[0], torch.rand(90, 3).softmax(1)), evaluation={"per_client": True}
        )
    with pytest.raises(ConfigError, match=r"ratios: .*fleet"):
        run(fleet={"devices": "devices.csv"})
    with pytest.raises(ConfigError, match=r"ratios: .*fleet"):
        run(ratios=None)
    with pytest.raises(ConfigError, match=r"resume: .*out"):
        run(resume=True)
    with pytest.raises(ConfigError, match=r"learning_rate: .*3 positive numbers"):
        run(learning_rate=[0.1, 0.1])
    with pytest.raises(DataError, match=r"training data: label 3 .* has 3 outputs"):
        run(train_data=(blobs(90)[0], torch.arange(90) % 4))
    with pytest.raises(DataError, match="90 inputs and 89 targets"):
        run(train_data=(blobs(90)[0], blobs(89)[1]))


class Averaging(torch.nn.Module):
    """Keeps an average of its own, in a buffer that is assigned anew."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(6, 3)
        self.register_buffer("average", torch.zeros(6))

    def forward(self, x):
        if self.training:
            self.average = 0.9 * self.average + 0.1 * x.detach().mean(0)
        return self.linear(x - self.average)


@pytest.mark.filterwarnings("ignore:buffer average changes")
def test_buffers_of_a_models_own_do_not_go_from_client_to_client():
    losses = []
    for workers in (1, 2):
        torch.manual_seed(0)
        history = fedplt.train(
            Averaging(), blobs(60), blobs(30, seed=1), ratios=[1.0, 0.5, 0.5], rounds=3,
            engine={"workers": workers},
        )  # fmt: skip
        losses.append([record.loss for record in history.rounds])
    assert losses[0] == losses[1]


def test_how_the_model_is_cut_can_be_said():
    model = small_model()
    frozen = model[0].weight.detach().clone()
    fedplt.train(
        model, blobs(60), blobs(30, seed=1), ratios=[1.0, 0.5], rounds=2, cut={"never": ["0"]}
    )
    assert torch.equal(model[0].weight, frozen)


def test_sections_are_objects_or_dictionaries(tmp_path):
    """Both ways, and the configuration that is written down says what was really used."""
    weights = []
    for index, training in enumerate(
        (
            fedplt.TrainingConfig(learning_rate=0.2, batch_size=16),
            {"learning_rate": 0.2, "batch_size": 16},
        )
    ):
        torch.manual_seed(0)
        model = small_model()
        fedplt.train(
            model, blobs(60), blobs(30, seed=1), ratios=[1.0, 0.5], rounds=1, method="fedavg",
            training=training, cut=fedplt.CutConfig(max_sublayers=2), out=tmp_path / str(index),
            engine=fedplt.EngineConfig(workers=1), name="mine", seed=3,
        )  # fmt: skip
        weights.append(model[0].weight)
        written = fedplt.load_config(tmp_path / str(index) / "config.toml")
        assert (written.name, written.seed, written.method["name"]) == ("mine", 3, "fedavg")
        assert written.training.learning_rate == 0.2
        assert written.model.max_sublayers == 2
    assert torch.equal(*weights)


def test_ratios_can_be_planned_from_devices(tmp_path):
    devices = tmp_path / "devices.csv"
    devices.write_text(
        "name,count,gflops,mbps_down,mbps_up,latency_ms\nfast,1,1,100,100,0\nslow,2,0.1,100,100,0\n"
    )
    history = fedplt.train(
        small_model(), blobs(60), blobs(30, seed=1), rounds=1, fleet={"devices": str(devices)},
        out=tmp_path / "run", **FAST,
    )  # fmt: skip
    assert history.rounds[0].num_clients == 3
    assert history.rounds[0].cost.simulated_seconds > 0
    ratios = RunFolder.open(tmp_path / "run").plan().ratios
    assert ratios[0] > ratios[1] == ratios[2]


def test_runs_and_resumes_as_the_command_line_does(tmp_path):
    values = {
        "rounds": 2, "seed": 1, "data": {"name": "tests.support.tiny:data", "split": "iid"},
        "model": {"name": "fcn", "options": {"num_inputs": 6, "num_classes": 3}},
        "clients": {"num_clients": 3}, "engine": {"workers": 1},
    }  # fmt: skip
    whole = fedplt.run({**values, "rounds": 3})
    path = tmp_path / "config.toml"
    path.write_text(tomli_w.dumps(values))
    told: list[int] = []
    first = fedplt.run(path, tmp_path / "run", on_round=lambda record: told.append(record.round))
    assert told == [1, 2]
    again = fedplt.resume(tmp_path / "run", changes={"rounds": 3})
    assert again.scores == whole.scores
    assert [record.loss for record in again.rounds] == [record.loss for record in whole.rounds]
    assert first.scores == whole.scores[:2]


def test_any_engine_runs_a_configuration():
    made = []

    def engine(job, stop):
        made.append(FakeEngine(job))
        return made[0]

    values = {
        "rounds": 2, "data": {"name": "tests.support.tiny:data", "split": "iid"},
        "model": {"name": "fcn", "options": {"num_inputs": 6, "num_classes": 3}},
        "clients": {"num_clients": 3},
    }  # fmt: skip
    history = fedplt.run(values, engine=engine)
    assert len(made) == 1
    assert history.scores == [0.75, 0.75]
    with pytest.raises(ConfigError, match=r"engine\.name"):
        fedplt.run({**values, "engine": {"name": "similator"}})
