"""``start-run.sh``: start a deployment's run, show its log, and exit with what became of it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from fedplt.engines.flower.deployment.scripts import CONNECTION
from fedplt.engines.flower.processes import environment, run_flwr
from fedplt.errors import RunError

FINISHED, FAILED, UNKNOWN = 0, 1, 3
AWAY_SECONDS = 120.0
"""How long to wait for a SuperLink that does not answer."""
PAUSE = 2.0


def start_run(server: Path) -> int:
    """The exit code: 0 only if the run is finished."""
    home = server / "flwr-home"
    config = f"config='{server.parent / 'run.toml'}' out='{server / 'run'}'"
    try:
        told = _json(run_flwr(home, "run", str(server / "app"), CONNECTION, "--run-config", config,
                              "--format", "json"))  # fmt: skip
        number = str(told["run-id"])
    except (RunError, LookupError, TypeError) as error:
        _say(f"the run was not started: {error}\nIs superlink.sh running?")
        return FAILED
    try:
        return _follow(home, number, server / "run")
    except KeyboardInterrupt:
        _say(f"the run goes on; its log: flwr log {number} {CONNECTION} (FLWR_HOME={home})")
        return UNKNOWN


def _follow(home: Path, number: str, out: Path) -> int:
    while True:
        _show_log(home, number)
        status, details = _wait_for_status(home, number)
        if status == "finished:completed":
            _say(f"the run is finished: fedplt report {out}")
            return FINISHED
        if status.startswith("finished"):
            _say(f"the run has ended early ({status.partition(':')[2]}): {details}")
            _say("What it has done is saved; start-run.sh continues it.")
            return FAILED
        if not status:
            _say(
                f"the SuperLink has not answered for {AWAY_SECONDS:g} s. The run goes on while "
                "superexec.sh does, and is finished when the SuperLink is back: start "
                f"superlink.sh again. How far it is: fedplt report {out}"
            )
            return UNKNOWN
        _say("the run goes on; its log, from the beginning:")
        time.sleep(PAUSE)


def _show_log(home: Path, number: str) -> None:
    """Until the run ends, or the SuperLink."""
    command = [str(Path(sys.executable).with_name("flwr")), "log", number, CONNECTION, "--stream"]
    subprocess.run(command, env=environment(home), stdin=subprocess.DEVNULL, check=False)


def _wait_for_status(home: Path, number: str) -> tuple[str, str]:
    """Flower's status of the run and its words; empty: the SuperLink does not answer."""
    ends = time.monotonic() + AWAY_SECONDS
    waits = False
    while time.monotonic() < ends:
        try:
            listed = run_flwr(home, "list", CONNECTION, "--run-id", number, "--format", "json")
            (found,) = _json(listed)["runs"]
            return str(found["status"]), str(found.get("status-details") or "")
        except (RunError, LookupError, TypeError, ValueError):
            if not waits:
                _say("the SuperLink does not answer; the run goes on without it. Waiting for it.")
            waits = True
            time.sleep(PAUSE)
    return "", ""


def _json(text: str) -> Any:
    """What Flower prints last, after words of its own."""
    try:
        return json.loads(text[text.index("{") :])
    except ValueError as error:
        raise RunError(f"Flower printed no JSON: {text.strip()[-500:]}") from error


def _say(text: str) -> None:
    sys.stderr.write(f"fedplt: {text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(start_run(Path(sys.argv[1])))
