"""``fedplt.train`` and what belongs to it: progress, warnings, Ctrl-C, the trained model."""

from __future__ import annotations

import inspect
import os
import re
import signal

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import fedplt
from fedplt.configuration import parse_config
from fedplt.configuration.config import CutConfig, RunConfig
from fedplt.federation.run_folder.folder import RunFolder
from fedplt.fleet import FleetTarget
from fedplt.report.page import content_of, read_groups, write_page
from tests.support.engines import FakeEngine
from tests.support.jobs import blobs, small_model
from tests.support.tiny import CONFIG

DATA, VALIDATION = blobs(90), blobs(60, 1)


def train(out=None, model=None, **settings):
    torch.manual_seed(0)
    return fedplt.train(
        model or small_model(), DATA, VALIDATION, out=out,
        **{
            "ratios": [1.0, 0.5, 0.5], "rounds": 3, "engine": {"workers": 1, "check": False},
            "training": {"learning_rate": 0.1}, **settings,
        },
    )  # fmt: skip


def test_progress(capsys):
    history = train(verbose=True)
    shown = capsys.readouterr()
    assert f"round 3/3  accuracy {history.metric.text(history.scores[-1])}" in shown.err
    train()
    assert capsys.readouterr() == ("", "")  # nobody is there to see it


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(2, 8, batch_first=True), nn.Linear(8, 3)

    def forward(self, points):
        return self.head(self.lstm(points.view(-1, 3, 2))[0][:, -1])


def test_what_nobody_trains_is_said(tmp_path, fedplt):
    with pytest.warns(UserWarning, match=r"lstm.*no client trains") as said:
        train(tmp_path / "run", Reader(), ratios=[0.1] * 3, rounds=1)
    assert len(said) == 1
    content = content_of("run", read_groups([tmp_path / "run"]))
    page = write_page(tmp_path / "page.html", content).read_text()
    assert "layer lstm" in page and "no client trains" in page
    (tmp_path / "tiny.toml").write_text(CONFIG.replace("ratio = 1.0", "ratio = 0.05"))
    settings = ["--set", "clients.groups.1.ratio=0.05", "--set", "rounds=1"]
    out = tmp_path / "cli"
    done = fedplt("run", tmp_path / "tiny.toml", "--out", out, *settings)
    assert done.returncode == 0 and "WARNING: layer" in done.stdout, done.stderr
    assert "WARNING: layer" in fedplt("resume", out, "--set", "rounds=2").stdout


def test_ctrl_c_saves_and_is_a_keyboard_interrupt(tmp_path):
    def press(record):
        if record.round == 2:
            os.kill(os.getpid(), signal.SIGINT)

    whole = train(rounds=4)
    with pytest.raises(KeyboardInterrupt, match=r"saved in .*run"):
        train(tmp_path / "run", rounds=4, on_round=press)
    assert fedplt.load_history(tmp_path / "run").scores == whole.scores[:2]
    assert train(tmp_path / "run", rounds=4, resume=True).scores == whole.scores


def test_the_best_model_is_kept_and_a_run_without_progress_ends(tmp_path):
    settings = {"evaluation": {"keep_best": True, "stop_after": 3}, "rounds": 30}
    history = train(tmp_path / "run", training={"learning_rate": 1e-9}, **settings)
    assert len(history.rounds) == 4 and history.best.round == 1
    assert fedplt.load_history(tmp_path / "run").best == history.best
    history = train(tmp_path / "fast", training={"learning_rate": 3.0}, **settings)
    best = fedplt.load(tmp_path / "fast", model=small_model(), best=True)
    found = fedplt.evaluate(tmp_path / "fast", VALIDATION, model=small_model(), best=True)
    assert found.score == history.best.score == max(history.scores)
    inputs, labels = VALIDATION
    assert float((best(inputs).argmax(1) == labels).double().mean()) == found.score
    last = fedplt.evaluate(tmp_path / "fast", VALIDATION, model=small_model())
    assert (last.score, last.loss) == (history.scores[-1], history.rounds[-1].loss)
    (tmp_path / "fast" / "best.safetensors").unlink()
    with pytest.raises(fedplt.RunError, match="keep_best"):
        fedplt.load(tmp_path / "fast", model=small_model(), best=True)
    with pytest.raises(fedplt.RunError, match=r"model=build\(\)"):
        fedplt.load(tmp_path / "fast")
    with pytest.raises(fedplt.ConfigError, match=r"keep_best.*out"):
        train(evaluation={"keep_best": True})


@pytest.fixture(scope="module")
def normed_run(tmp_path_factory):
    """Clients that keep their own normalization layers."""
    folder = tmp_path_factory.mktemp("normed")
    (folder / "tiny.toml").write_text(CONFIG.replace("tiny:model", "tiny:normed_model"))
    config = fedplt.load_config(folder / "tiny.toml", ["rounds=2", "method.name=fedbn"])
    fedplt.run(config, folder / "run")
    return folder / "run"


def test_a_clients_own_layers(normed_run):
    common, first, second = (fedplt.load(normed_run, client=client) for client in (None, 0, 1))
    assert not common.training
    assert torch.equal(common[0].weight, first[0].weight)
    assert not torch.equal(first[1].running_mean, second[1].running_mean)
    with pytest.raises(fedplt.RunError, match="0 to 4"):
        fedplt.load(normed_run, client=5)


def test_weights_from_a_file(normed_run, tmp_path):
    file = normed_run / "model.safetensors"
    config = fedplt.load_config(normed_run / "config.toml", [f"model.weights={file}", "rounds=1"])
    history = fedplt.run(config, tmp_path / "run")
    assert history.scores[0] >= fedplt.load_history(normed_run).scores[0]
    tensors = load_file(file)
    for change, words in (
        ({"0.weight": torch.zeros(2, 2)}, r"'0.weight' has shape \(2, 2\), the model's"),
        ({"0.wieght": torch.zeros(2)}, "'0.wieght' is not in the model. Did you mean '0.weight'"),
    ):
        save_file({**tensors, **change}, tmp_path / "other.safetensors")
        (tmp_path / "tiny.toml").write_text((normed_run / "config.toml").read_text())
        with pytest.raises(fedplt.ConfigError, match=words):  # found beside the configuration
            fedplt.run(
                fedplt.load_config(
                    tmp_path / "tiny.toml", [f"model.weights={tmp_path / 'other.safetensors'}"]
                )
            )


def test_the_recorded_configuration_is_true(tmp_path):
    sizes = fedplt.cut(small_model()).sizes
    train(
        tmp_path / "run", ratios=[1.0, 0.5, 0.5, fedplt.balanced_allocation(sizes, 0.3)],
        learning_rate=[0.1, 0.1, 0.2, 0.2], split=[range(30), range(30, 40), range(40, 60), [61]],
    )  # fmt: skip
    config = RunFolder.open(tmp_path / "run").config()
    groups = config.clients.groups
    assert [(g.num_clients, g.ratio, g.learning_rate) for g in groups] == [
        (1, 1.0, 0.1), (1, 0.5, 0.1), (1, 0.5, 0.2), (1, None, 0.2),
    ]  # fmt: skip
    assert len(groups[3].layer_ratios) == 2
    assert (config.data.split, config.data.split_file) == ("given", "(given from Python)")
    with pytest.raises(fedplt.RunError, match=r"fedplt\.train"):
        fedplt.resume(tmp_path / "run")


def test_private_runs_and_engines_from_python():
    made = []

    def engine(job, stop):
        made.append(FakeEngine(job))
        return made[0]

    history = train(
        engine=engine, server={"weights": "equal"},
        privacy=fedplt.PrivacyConfig(clip=0.5, noise_multiplier=1.0),
    )  # fmt: skip
    assert history.privacy["epsilon"] > 0
    assert history.scores == [0.75] * 3 and len(made) == 1


def test_planned_fleets_from_python(tmp_path, monkeypatch):
    rows = ["name,count,gflops,mbps_up,mbps_down", "phone,2,1,5,20", "laptop,1,50,20,100"]
    (tmp_path / "devices.csv").write_text("\n".join(rows))
    monkeypatch.chdir(tmp_path)
    fleet = {"devices": "devices.csv", "percentile": 50.0}
    history = train(tmp_path / "run", ratios=None, fleet=fleet)
    folder = RunFolder.open(tmp_path / "run")
    assert folder.plan().num_clients == 3
    assert folder.config().fleet.devices == str(tmp_path / "devices.csv")
    assert history.rounds[-1].total.simulated_seconds > 0
    rates = [0.1, 0.2, 0.3]
    train(tmp_path / "rates", ratios=None, fleet=fleet, learning_rate=rates)
    assert RunFolder.open(tmp_path / "rates").config().clients.learning_rates == rates
    again = {"ratios": None, "fleet": fleet, "resume": True, "rounds": 4}
    with pytest.raises(fedplt.RunError, match=r"clients\.learning_rates"):
        train(tmp_path / "rates", **again)
    assert len(train(tmp_path / "rates", learning_rate=rates, **again).rounds) == 4
    with pytest.raises(fedplt.ConfigError, match=r"learning_rate: .*3 positive numbers"):
        train(ratios=None, fleet=fleet, learning_rate=rates[:2])


def losses(history):
    return [record.loss for record in history.rounds]


def double(inputs, generator):
    return 2 * inputs


def test_an_augmentation_is_recorded_and_comes_from_a_file_too(tmp_path):
    augmented = train(tmp_path / "run", training={"learning_rate": 0.1, "augment": double})
    config = RunFolder.open(tmp_path / "run").config()
    assert config.training.augment == "(given from Python)"
    with pytest.raises(fedplt.RunError, match=r"training\.augment"):
        train(tmp_path / "run", rounds=4, resume=True)
    named = {"learning_rate": 0.1, "augment": f"{__name__}:double"}
    assert losses(train(training=named)) == losses(augmented) != losses(train())
    with pytest.raises(fedplt.ConfigError, match=r"training\.augment: .* cannot be imported"):
        train(training={"augment": "nowhere:double"})


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # inside of torch.compile
@pytest.mark.slow
def test_a_compiled_model_is_trained_uncompiled_or_refused():
    model = small_model()
    before = model[0].weight.clone()
    with pytest.warns(UserWarning, match="trained uncompiled"):
        history = train(model=torch.compile(model))
    assert history.scores == train().scores
    assert not torch.equal(model[0].weight, before)
    model = small_model()
    model[0].compile()
    with pytest.raises(fedplt.ConfigError, match="0 is compiled"):
        train(model=model)


def test_every_parameter_of_train_is_documented():
    documented = fedplt.train.__doc__.split("Args:")[1]
    for name in inspect.signature(fedplt.train).parameters:
        assert re.search(rf"^        [\w, ]*\b{name}\b[\w, ]*: ", documented, re.MULTILINE), name


@pytest.mark.parametrize(
    ("function", "section"),
    [(fedplt.train, RunConfig), (fedplt.cut, CutConfig), (fedplt.plan_fleet, FleetTarget)],
)
def test_arguments_have_the_defaults_of_the_configuration(function, section):
    for name, field in section.model_fields.items():
        parameter = inspect.signature(function).parameters.get(name)
        if parameter and parameter.default is not parameter.empty:
            default = getattr(field.default, "name", field.default)  # of a section: its name
            default = default["name"] if name == "method" else default
            assert parameter.default in (default, None, ()), name  # or left out: no key is set


def test_a_run_from_python_has_the_configuration_that_a_file_without_keys_has(tmp_path):
    fedplt.train(
        small_model(), DATA, VALIDATION, ratios=[1.0, 0.5], rounds=1, out=tmp_path / "run",
        engine={"workers": 1, "check": False},
    )  # fmt: skip
    found = RunFolder.open(tmp_path / "run").config().model_dump()
    groups = [{"num_clients": 1, "ratio": 1.0}, {"num_clients": 1, "ratio": 0.5}]
    default = parse_config(
        {
            "rounds": 1,
            "clients": {"num_clients": 2, "groups": groups},
            "engine": {"workers": 1, "check": False},
            "data": {"name": found["data"]["name"]},
            "model": {"name": found["model"]["name"]},
        }
    )
    assert found == default.model_dump()


@pytest.mark.parametrize(
    ("given", "split"),
    [
        ({}, "iid"),
        ({"alpha": 0.2}, "dirichlet"),
        ({"min_examples": 1}, "dirichlet"),
        ({"shards_per_client": 3}, "shards"),
        ({"split_file": "mine.json"}, "given"),
        ({"split": "iid", "alpha": 0.3}, "iid"),
    ],
)
def test_a_key_of_one_split_chooses_it(given, split):
    config = parse_config({"data": given})
    assert config.data.split == split
    assert parse_config(config.model_dump(exclude_none=True)).data == config.data
