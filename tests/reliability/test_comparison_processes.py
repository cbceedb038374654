"""Processes of a comparison that die, stop or ignore signals; shell scripts stand for the runs."""

from __future__ import annotations

import subprocess
import threading
import time
from types import SimpleNamespace

import pytest

from fedplt_compare import processes
from fedplt_compare.processes import STOPPED, Processes

pytestmark = pytest.mark.slow

SAY = """echo '{"alive": true}'; echo '{"round": ROUND, "score": 0.5}'; """


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Run a script as if it were a run, with short deadlines."""
    for name in ("END_SECONDS", "SILENT_SECONDS"):
        monkeypatch.setattr(processes, name, 1.0)

    def start(script, on_round=lambda *_: None, pool=None):
        def popen(command, **options):
            return subprocess.Popen(["sh", "-c", script], cwd=tmp_path, **options)

        replacement = SimpleNamespace(Popen=popen, PIPE=subprocess.PIPE)
        monkeypatch.setattr(processes, "subprocess", replacement)
        began = time.monotonic()
        try:
            return (pool or Processes()).run(tmp_path / "run", on_round, timeout=1.0)
        finally:
            assert time.monotonic() - began < 10

    return start


def test_a_killed_run_is_continued(run, tmp_path):
    first, second = SAY.replace("ROUND", "1"), SAY.replace("ROUND", "2")
    rounds = []
    script = f"[ -e there ] || {{ touch there; {first} kill -9 $$; }}; {second}"
    assert run(script, lambda round, score: rounds.append(round)) == ""
    assert rounds == [1, 2]
    assert "killed by signal 9" in (tmp_path / "run.log").read_text()


def test_the_third_death_without_a_new_round_ends_it(run, tmp_path):
    said = SAY.replace("ROUND", "1")
    problem = run(f"echo x >> starts; {said} kill -9 $$")  # the same round again and again
    assert problem.startswith("killed by signal 9; out of memory?")
    assert len((tmp_path / "starts").read_text().split()) == 3


def test_a_child_that_holds_the_output_open_is_not_waited_for(run):
    assert run("sleep 20 & kill -9 $$").startswith("killed by signal 9")


def test_a_run_without_a_sign_of_life_is_killed(run):
    assert run("kill -STOP $$") == "no sign of life for 1 s (engine.timeout_seconds)"


def test_a_run_that_ignores_the_request_to_stop_is_killed(run):
    pool = Processes()
    script = """trap "" TERM; while true; do echo '{"alive": true}'; sleep 0.2; done"""
    timer = threading.Timer(0.5, pool.stop)
    timer.start()
    assert run(script, pool=pool) == STOPPED
    assert run(script, pool=pool) == STOPPED  # and no other is started


def test_an_error_of_the_caller_ends_a_stopped_run(run):
    def broken(*_):
        raise LookupError("no such gauge")

    with pytest.raises(LookupError):
        run(SAY.replace("ROUND", "1") + "kill -STOP $$", broken)
