"""What is told while a comparison runs, and how it is shown."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from fedplt.compare.progress import comparison_progress
from fedplt.compare.run import Watch, compare
from fedplt.federation.load_config import load_config
from tests.test_cli import CONFIG


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "tiny.toml"
    path.write_text(CONFIG.replace("rounds = 6", "rounds = 3"))
    return path


class Recorder(Watch):
    """Notes all it is told."""

    def __init__(self):
        self.rounds, self.ended = [], []

    def on_round(self, *told):
        self.rounds.append(told)

    def on_run(self, *told):
        self.ended.append(told)


def test_long_runs_come_first_and_are_shown_as_asked(config, tmp_path):
    """Else the longest might start last, while the other cores have nothing left to do."""
    methods = {name: {"name": name} for name in ("heterofl", "fedavg", "fedplt")}
    watch = Recorder()
    settings = load_config(config)
    found = compare(settings, methods, [2, 1], tmp_path / "out", processes=1, watch=watch)
    runs = [(label, seed) for seed in (2, 1) for label in ("fedavg", "fedplt", "heterofl")]
    assert watch.ended == [(*run, "done") for run in runs]
    assert list(found.contestants) == list(methods)

    # Every round was told, in order, with its accuracy.
    assert [told[:3] for told in watch.rounds] == [(*run, i) for run in runs for i in (1, 2, 3)]
    for label, seed, number, accuracy in watch.rounds:
        history = found.contestants[label].histories[seed]
        assert history.rounds[number - 1].accuracy == accuracy


def test_what_a_model_prints_disturbs_nobody(config, tmp_path):
    """Rounds are told through standard output; a model may print there, too."""
    config.write_text(config.read_text().replace("tests.tiny:model", "tests.tiny:loud_model"))
    watch = Recorder()
    compare(load_config(config), {"fedplt": {"name": "fedplt"}}, [1], tmp_path / "o", watch=watch)
    assert watch.ended == [("fedplt", 1, "done")] and len(watch.rounds) == 3


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_of_a_comparison(terminal, monkeypatch):
    """Two runs of four rounds; the second was continued from its third."""
    monkeypatch.setattr("fedplt.compare.progress.LOG_SECONDS", 0.0)
    console = Console(file=io.StringIO(), force_terminal=terminal, width=120, color_system=None)
    with comparison_progress(console, runs=2, rounds=4) as watch:
        watch.on_round("fedplt", 1, 1, None)
        watch.on_round("fedavg", 1, 3, 0.5)
        for number in (2, 3, 4):
            watch.on_round("fedplt", 1, number, number / 10)
        watch.on_run("fedplt", 1, "done")
        watch.on_run("fedavg", 1, "out of memory")
    shown = console.file.getvalue()
    assert "fedplt, seed 1: done, accuracy 40.0 %" in shown
    assert "fedavg, seed 1: out of memory, accuracy 50.0 %" in shown
    if terminal:
        assert "all 2 runs" in shown and "round 8/8" in shown
    else:
        lines = shown.splitlines()
        assert lines[0].startswith("round 1 of 8") and lines[1].startswith("round 4 of 8")
        assert "fedavg, seed 1: 50.0 %; fedplt, seed 1: 40.0 %" in lines[4]
