"""What ``start-run.sh`` says and returns, and that a server app that waits can be stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from fedplt.api import run
from fedplt.errors import RunError
from fedplt.federation.run_folder.lock import take_lock
from fedplt_flower.deployment import start_run as module
from tests.support.tiny import CONFIG

pytestmark = pytest.mark.slow

AWAY = RunError("no connection")


@pytest.fixture
def flower(monkeypatch):
    """Answers of Flower's command line, one after the other: a status, or an error."""
    answers, asked = [], []

    def run_flwr(home, *arguments):
        asked.append(arguments)
        if arguments[0] == "run":
            answer = {"success": True, "run-id": "7"}
        else:
            status = answers.pop(0) if len(answers) > 1 else answers[0]
            answer = {"runs": [{"status": status, "status-details": "because"}]}
            if isinstance(status, Exception):
                raise status
        return "Some words\n" + json.dumps(answer)

    monkeypatch.setattr(module, "run_flwr", run_flwr)
    monkeypatch.setattr(module, "_show_log", lambda home, number: asked.append(("log", number)))
    monkeypatch.setattr(module, "PAUSE", 0.0)
    return answers, asked


@pytest.mark.parametrize(
    ("statuses", "code", "words"),
    [
        (["finished:completed"], 0, ["is finished"]),
        (["finished:failed"], 1, ["ended early", "because", "continues it"]),
        (["finished:stopped"], 1, ["ended early"]),
        (["running", "finished:completed"], 0, ["goes on", "is finished"]),
        ([AWAY, AWAY, "running", "finished:completed"], 0, ["does not answer", "goes on"]),
        ([AWAY, "finished:failed"], 1, ["does not answer", "ended early"]),
        ([AWAY], 3, ["has not answered", "superlink.sh"]),
    ],
)
def test_the_exit_code_tells_what_became_of_the_run(
    flower, monkeypatch, capsys, tmp_path, statuses, code, words
):
    monkeypatch.setattr(module, "AWAY_SECONDS", 0.2 if statuses == [AWAY] else 60.0)
    flower[0].extend(statuses)
    assert module.start_run(tmp_path) == code
    said = capsys.readouterr().err
    assert all(word in said for word in words)


def test_a_run_that_does_not_start_failed(monkeypatch, capsys, tmp_path):
    def fail(*arguments):
        raise AWAY

    monkeypatch.setattr(module, "run_flwr", fail)
    assert module.start_run(tmp_path) == 1
    assert "superlink.sh" in capsys.readouterr().err


def test_ctrl_c_ends_the_log_and_says_that_the_run_goes_on(flower, monkeypatch, capsys, tmp_path):
    def interrupted(home, number):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "_show_log", interrupted)
    assert module.start_run(tmp_path) == 3
    assert "goes on" in capsys.readouterr().err


STUCK = """
import sys, time
from flwr.app import Context, RecordDict
from fedplt_flower import server_app
sys.modules["fedplt_flower.server.server_app"].STOP_SECONDS = 0.5

class Grid:
    def get_node_ids(self):
        print("asked", flush=True)
        while True:  # as Flower does while there is no SuperLink
            time.sleep(0.1)

settings = {"config": sys.argv[1], "out": sys.argv[2]}
server_app()(Grid(), Context(1, 1, {}, RecordDict(), settings))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_server_app_that_waits_for_the_superlink_ends_and_releases_the_run(tmp_path, number):
    config, out = tmp_path / "run.toml", tmp_path / "run"
    config.write_text(CONFIG.replace("rounds = 6", "rounds = 2"))
    run(config, out, verbose=False)
    config.write_text(CONFIG)
    with subprocess.Popen(
        [sys.executable, "-c", STUCK, config, out], env={**os.environ, "PYTHONPATH": path()},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            assert process.stdout.readline() == "asked\n", process.stderr.read()
            with pytest.raises(RunError, match=str(process.pid)):
                take_lock(out)
            process.send_signal(number)
            started = time.monotonic()
            process.wait(30)
            assert time.monotonic() - started < 20
            assert "start-run.sh continues the run" in process.stderr.read()
        finally:
            process.kill()
    take_lock(out).close()


def path() -> str:
    return os.pathsep.join(sys.path)
