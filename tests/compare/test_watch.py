"""What is told while a comparison runs, and how it is shown."""

from __future__ import annotations

import io
from contextlib import contextmanager

import pytest
from rich.console import Console

from fedplt import RunError
from fedplt.client import accuracy
from fedplt.configuration.config_file import load_config
from fedplt.federation.run_folder.folder import RunFolder
from fedplt.federation.start import prepare_resume
from fedplt_compare.compare import Watch, compare
from fedplt_compare.progress import comparison_progress

pytestmark = pytest.mark.usefixtures("forked_runs")


class Recorder(Watch):
    """Notes all it is told."""

    def __init__(self):
        self.begun, self.started, self.rounds, self.ended = [], [], [], []

    def on_begin(self, *told):
        self.begun.append(told)

    def on_start(self, *told):
        self.started.append(told)

    def on_round(self, *told):
        self.rounds.append(told)

    def on_end(self, *told):
        self.ended.append(told)


@pytest.mark.slow
def test_long_runs_come_first_and_are_shown_as_asked(config, tmp_path):
    """Else the longest might start last, while the other cores have nothing left to do."""
    methods = {name: {"name": name} for name in ("heterofl", "fedavg")}
    watch = Recorder()
    settings = load_config(config)
    found = compare(settings, methods, [2, 1], tmp_path / "out", processes=1, watch=watch)
    runs = [(label, seed) for seed in (2, 1) for label in ("fedavg", "heterofl")]
    assert watch.begun == [(dict.fromkeys(runs, 3), dict.fromkeys(runs, 0), accuracy.info)]
    assert watch.started == runs
    assert watch.ended == [(*run, "done") for run in runs]
    assert list(found.methods) == list(methods)

    # Every round was told, in order, with its accuracy.
    assert [told[:3] for told in watch.rounds] == [(*run, i) for run in runs for i in (1, 2, 3)]
    for label, seed, number, score in watch.rounds:
        history = found.methods[label].histories[seed]
        assert history.rounds[number - 1].score == score

    again = Recorder()
    compare(settings, methods, [2, 1], tmp_path / "out", watch=again)
    assert again.begun == [(dict.fromkeys(runs, 3), dict.fromkeys(runs, 3), accuracy.info)]
    assert not again.started and not again.rounds
    assert sorted(again.ended) == sorted(watch.ended)


def run_with(model, config, out, watch):
    """Compare one run of a model of ``tests.support.tiny``; what became of it."""
    config.write_text(
        config.read_text().replace("tests.support.tiny:model", f"tests.support.tiny:{model}")
    )
    compare(load_config(config), {"fedplt": {"name": "fedplt"}}, [1], str(out), watch=watch)


@pytest.mark.slow
def test_what_a_model_prints_disturbs_nobody(config, tmp_path):
    """Rounds are told through standard output; a model may print there, too."""
    watch = Recorder()
    run_with("loud_model", config, tmp_path / "out", watch)
    log = tmp_path / "out" / "fedplt-seed1.log"
    assert watch.ended == [("fedplt", 1, f"done; its output is in {log}")]
    assert len(watch.rounds) == 3
    assert '{"round": "hello"}' in log.read_text()


@pytest.mark.slow
def test_a_crash_is_told_and_its_traceback_kept(config, tmp_path):
    watch = Recorder()
    with pytest.raises(RunError, match="round 1 failed: ZeroDivisionError: odd number"):
        run_with("crashing_model", config, tmp_path / "out", watch)
    log = tmp_path / "out" / "fedplt-seed1.log"
    [(_, _, text)] = watch.ended
    assert str(log) in text and "Traceback" not in text
    assert "Traceback" in log.read_text() and "tiny.py" in log.read_text()


@pytest.mark.slow
def test_a_killed_run_is_called_so(config, tmp_path):
    """Whatever it said before: that is not why it ended."""
    watch = Recorder()
    with pytest.raises(RunError, match="killed by signal 9"):
        run_with("killing_model", config, tmp_path / "out", watch)
    [(_, _, text)] = watch.ended
    assert text.startswith("killed by signal 9; out of memory?")


@pytest.mark.slow
def test_an_error_of_the_watch_ends_the_comparison_at_once(config, tmp_path):
    class Broken(Watch):
        def on_round(self, *told):
            raise LookupError("no such gauge")

    settings = load_config(config, ["rounds=100000", "checkpoint_every=100000"])
    with pytest.raises(LookupError, match="no such gauge"):
        compare(settings, {"fedplt": {"name": "fedplt"}}, [1], tmp_path / "out", watch=Broken())
    _, done = prepare_resume(RunFolder.open(tmp_path / "out" / "fedplt-seed1"))
    assert done >= 1  # what ran was saved, and is not locked any more


@pytest.mark.slow
def test_a_run_that_was_killed_before_it_began_is_started_again(config, tmp_path):
    methods, folder = {"fedplt": {"name": "fedplt"}}, tmp_path / "out" / "fedplt-seed1"
    first = compare(load_config(config), methods, [1], tmp_path / "out")
    for path in folder.iterdir():
        if path.name not in ("config.toml", "plan.json", "metric.json", ".lock"):
            path.unlink()
    watch = Recorder()
    second = compare(load_config(config), methods, [1], tmp_path / "out", watch=watch)
    run = ("fedplt", 1)
    assert watch.begun == [({run: 3}, {run: 0}, accuracy.info)] and len(watch.rounds) == 3
    assert second.to_json() == first.to_json()


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_of_a_comparison(terminal, monkeypatch):
    """Three runs of four rounds: one is done, one has two of its rounds."""
    clock = iter(range(0, 1000, 10))
    monkeypatch.setattr("fedplt_compare.progress.time.monotonic", lambda: next(clock))
    monkeypatch.setattr("fedplt_compare.progress.LOG_SECONDS", 0.0)
    console = Console(file=io.StringIO(), force_terminal=terminal, width=120, color_system=None)
    with comparison_progress(console) as watch:
        assert not console.file.getvalue()  # data are fetched first, with a display of their own
        done = {("fedplt", 1): 0, ("fedavg", 1): 2, ("fedbn", 1): 4}
        watch.on_begin(dict.fromkeys(done, 4), done, accuracy)
        watch.on_end("fedbn", 1, "done")
        watch.on_start("fedplt", 1)
        watch.on_start("fedavg", 1)
        watch.on_round("fedplt", 1, 1, None)
        watch.on_round("fedavg", 1, 3, 0.5)
        for number in (2, 3, 4):
            watch.on_round("fedplt", 1, number, number / 10)
        watch.on_end("fedplt", 1, "done")
        watch.on_end("fedavg", 1, "killed")
    shown = console.file.getvalue()
    assert "fedplt, seed 1: accuracy 40.0 %, done" in shown
    assert "fedavg, seed 1: accuracy 50.0 %, killed" in shown
    assert "fedbn, seed 1: done" in shown
    if terminal:
        assert "all 3 runs" in shown and "round 12/12" in shown
    else:
        lines = shown.splitlines()
        # One round in 30 s (three looks at the clock), so the five that are left take 150 s.
        assert lines[1] == "round 7 of 12, 2:30 left"
        assert lines[2].startswith("round 8 of 12, ") and lines[2].endswith(
            "; fedavg, seed 1: 50.0 %"
        )
        assert "; fedavg, seed 1: 50.0 %; fedplt, seed 1: 40.0 %" in lines[5]


def test_data_are_fetched_before_the_comparison_is_shown(tmp_path, monkeypatch):
    """A console shows one live display at a time."""
    events = []

    @contextmanager
    def fetching():
        events.append("open")
        yield lambda what, done, total: events.append(what)
        events.append("close")

    class Begun(Watch):
        def on_begin(self, *told):
            raise LookupError("enough")

    get = "fedplt_compare.compare.fetch_data_set"
    monkeypatch.setattr(get, lambda name, progress: progress(name, 0, None))
    settings, methods = load_config("fashion-mnist"), {"a": {"name": "fedavg"}}
    with pytest.raises(LookupError, match="enough"):
        compare(settings, methods, [1], tmp_path, fetching=fetching, watch=Begun())
    assert events == ["open", "fashion-mnist", "close"]
