"""``fedplt fleet`` as people use it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedplt.configs import builtin_fleets
from tests.support.pictures import svg_texts
from tests.support.tiny import CONFIG

KITCHEN = builtin_fleets()["kitchen"]


def test_one_command_from_a_csv_to_a_plan_and_a_picture(fedplt, tmp_path):
    picture = tmp_path / "fleet.svg"
    done = fedplt("fleet", KITCHEN, "--picture", picture, "--deadline-seconds", 6)
    assert done.returncode == 0, done.stderr
    assert "25 of 50 devices miss the target" in done.stdout
    assert "microcontroller misses the target" in done.stdout
    assert "exact FLOPs" in done.stdout
    shown = svg_texts(picture)
    devices = [line.split(",")[0] for line in Path(KITCHEN).read_text().splitlines()]
    assert all(any(text.startswith(name) for text in shown) for name in devices[1:])
    assert sum("(late)" in text for text in shown) == 1  # the microcontroller
    assert {"download", "backward", "upload"} <= set(shown)
    assert any(text.startswith("seconds per round") for text in shown)


def test_one_very_slow_device_leaves_plan_and_picture_readable(fedplt, tmp_path):
    devices, picture = tmp_path / "devices.csv", tmp_path / "fleet.svg"
    long = "a device with a name that is far too long for a picture or a table"
    devices.write_text(KITCHEN.read_text() + f"{long},1,0.01,1,0.2,300,16\n")
    done = fedplt("fleet", devices, "--picture", picture, "--local-steps", 8, "--batch-size", 32)
    assert done.returncode == 0, done.stderr
    assert "8 local steps of 32" in done.stdout
    assert "that every device can keep up with" in done.stdout
    assert "deadlines to choose from" in done.stdout
    assert "Choose one with --deadline-seconds" in done.stdout
    shown = svg_texts(picture)
    assert "seconds per round (longer bars are cut)" in shown
    assert any("\N{RIGHTWARDS ARROW}" in text for text in shown)
    assert long not in shown and any("..." in text for text in shown)


def test_json_and_flags(fedplt):
    done = fedplt(
        "fleet", KITCHEN, "--run", "fashion-mnist",
        "--deadline-seconds", 12, "--may-freeze", "--may-cut-steps", "--min-ratio", 0.05, "--json",
    )  # fmt: skip
    plan = json.loads(done.stdout)
    assert plan["target"] == {"rule": "deadline", "seconds": 12.0}
    assert all(entry["feasible"] for entry in plan["devices"])
    assert all(entry["ratio"] >= 0.05 for entry in plan["devices"])
    slow = plan["devices"][2]
    assert slow["traded"]
    assert slow["seconds"]["planned"] <= 12
    assert "16 local steps of 64" in plan["work"]


def test_the_papers_example(fedplt):
    done = fedplt("fleet", "paper-example")
    for number in ("5.59", "9.52", "13.85", "17.65", "0.6930", "the paper's cost model"):
        assert number in done.stdout
    exact = fedplt("fleet", "paper-example", "--model", "cnn")
    assert "exact FLOPs" in exact.stdout
    half = fedplt("fleet", "paper-example", "--percentile", 50)
    assert "Target 9.52 s" in half.stdout


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--deadline-seconds", -1], "deadline_seconds"),
        (["--deadline-seconds", 1, "--percentile", 2], "give one of them"),
        (["--run", "x.toml", "--model", "fcn"], "give one of them"),
        (["--run", "x.toml", "--local-steps", 3], "--run and --local-steps: give one of them"),
        (["--model", "fnc"], "Did you mean 'fcn'"),
        (["--model", "tests.support.tiny:model"], "--shape"),
        (["--model", "tests.support.tiny:model", "--shape", "7"], "does not take inputs of shape"),
        (["--shape", "a"], "write it like"),
        (["--min-ratio", 0], "min_ratio"),
        (["--picture", "x.gif"], ".png, .svg or .pdf"),
    ],
)
def test_mistakes(fedplt, arguments, expected):
    done = fedplt("fleet", KITCHEN, *arguments)
    assert done.returncode == 2
    assert expected in done.stderr
    assert "Traceback" not in done.stderr


def test_wrong_models_and_targets_in_the_file_name_it(fedplt, tmp_path):
    path = tmp_path / "wrong.toml"
    device = '[[device]]\nname = "a"\nspeed = "1 GFLOP/s"\ndown = "9 Mbit/s"\nup = "9 Mbit/s"\n'
    for section, expected in (
        ('[work]\nmodel = "fnc"\n', "wrong.toml: work.model: "),
        ("[work]\nmodel = 3\n", "wrong.toml, line 2"),
        ("[target]\nseconds = 3\n", "wrong.toml, line 2"),
    ):
        path.write_text(section + device)
        done = fedplt("fleet", path)
        assert done.returncode == 2
        assert expected in done.stderr.replace("\n", "")
    path.write_text(device.replace("up =", "# up ="))
    assert "upload bandwidth" in (said := fedplt("fleet", path).stderr)
    assert "mbps_up" in said


def test_a_run_with_your_own_data_and_epochs(fedplt, tmp_path):
    config = tmp_path / "tiny.toml"
    config.write_text(CONFIG)  # epochs: how many steps depends on the data
    done = fedplt("fleet", KITCHEN, "--run", config)
    assert done.returncode == 0, done.stderr
    assert "83 parameters" in done.stdout


def test_the_target_of_a_run_is_planned_for(fedplt, tmp_path):
    devices, config = tmp_path / "devices.csv", tmp_path / "tiny.toml"
    devices.write_text("name,count,mflops,kbps_down,kbps_up\nfast,2,9,90,90\nslow,3,2,50,20\n")
    text = CONFIG.split("[[clients.groups]]")[0]
    config.write_text(f'{text}\n[fleet]\ndevices = "{devices}"\ndeadline_seconds = 77.0\n')
    for flags, seconds in (([], 77), (["--deadline-seconds", 66], 66)):
        done = fedplt("fleet", devices, "--run", config, *flags, "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["target"]["seconds"] == seconds


def test_your_own_model(fedplt):
    model = ["--model", "tests.support.tiny:model", "--shape", "6"]
    done = fedplt("fleet", KITCHEN, *model)
    assert done.returncode == 0, done.stderr
    assert "83 parameters" in done.stdout


@pytest.mark.slow
def test_a_run_on_devices_shows_the_plan_and_the_simulated_time(fedplt, tmp_path):
    devices = tmp_path / "devices.csv"
    devices.write_text("name,count,mflops,kbps_down,kbps_up\nfast,2,9,90,90\nslow,3,2,50,20\n")
    config = tmp_path / "tiny.toml"
    text = CONFIG.split("[[clients.groups]]")[0] + "[training]\nbatch_size = 16\n"
    config.write_text(text + f'[fleet]\ndevices = "{devices}"\ndropout = 0.3\n')
    folder = tmp_path / "run"
    done = fedplt("run", config, "--out", folder, "--set", "rounds=3")
    assert done.returncode == 0, done.stderr
    assert "Target" in done.stdout
    page = (folder / "report.html").read_text()
    assert "simulated" in page
    assert "Refused, dropped and late clients" in page


def test_probe_prints_a_device_that_fleet_reads(fedplt, tmp_path):
    model, path = ["tests.support.tiny:model", "--shape", "6"], tmp_path / "devices.toml"
    more = ["--passes", 1, "--name", "my box", "--up", "3 Mbit/s", "--out", path]
    done = fedplt("probe", *model, *more)
    assert done.returncode == 0, done.stderr
    assert "on average over the ratios" in done.stdout
    assert path.read_text() == done.stdout[done.stdout.index("[[device]]") :]
    shown = fedplt("fleet", path)
    assert shown.returncode == 0, shown.stderr
    assert "my box" in shown.stdout


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["fnc"], "Did you mean 'fcn'"),
        (["fcn", "--up", "20"], "has no unit"),
        (["fcn", "--option", "num_inputs"], "joined by an equals sign"),
        (["fcn", "--option", "wdth=3"], "It takes"),
        (["fcn", "--shape", "3"], "does not take inputs of shape [3]"),
    ],
)
def test_probe_mistakes(fedplt, arguments, expected):
    done = fedplt("probe", *arguments)
    assert done.returncode == 2
    assert expected in done.stderr
