"""``start-run.sh``: start or continue a deployment's run and show its log until it ends."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from fedplt.errors import RunError
from fedplt_flower.deployment.manifest import CONNECTION
from fedplt_flower.processes import environment, run_flwr

FINISHED, FAILED, UNKNOWN = 0, 1, 3
AWAY_SECONDS = 120.0
"""How long to wait for a SuperLink that does not answer."""
PAUSE = 2.0


def start_run(server: Path) -> int:
    """Start or continue the run; return the exit code, which is 0 only if it is finished."""
    home = server / "flwr-home"
    config = f"config='{server.parent / 'run.toml'}' out='{server / 'run'}'"
    try:
        arguments = ("run", str(server / "app"), CONNECTION, "--run-config", config)
        number = str(_json(run_flwr(home, *arguments, "--format", "json"))["run-id"])
    except (RunError, LookupError, TypeError) as error:
        _print(f"the run was not started: {error}\nIs superlink.sh running?")
        return FAILED
    try:
        return _follow(home, number, server / "run")
    except KeyboardInterrupt:
        _print(f"the run goes on; its log: flwr log {number} {CONNECTION} (FLWR_HOME={home})")
        return UNKNOWN


def _follow(home: Path, number: str, out: Path) -> int:
    while True:
        _show_log(home, number)
        status, details = _wait_for_status(home, number)
        if status == "finished:completed":
            _print(f"the run is finished: fedplt report {out}")
            return FINISHED
        if status.startswith("finished"):
            _print(f"the run has ended early ({status.partition(':')[2]}): {details}")
            _print("What it has done is saved; start-run.sh continues it.")
            return FAILED
        if not status:
            _print(
                f"the SuperLink has not answered for {AWAY_SECONDS:g} s. The run goes on while "
                "superexec.sh does, and is finished when the SuperLink is back: start "
                f"superlink.sh again. How far it is: fedplt report {out}"
            )
            return UNKNOWN
        _print("the run goes on; its log, from the beginning:")
        time.sleep(PAUSE)


def _show_log(home: Path, number: str) -> None:
    """Show the log until the run or the SuperLink ends."""
    command = [str(Path(sys.executable).with_name("flwr")), "log", number, CONNECTION, "--stream"]
    subprocess.run(command, env=environment(home), stdin=subprocess.DEVNULL, check=False)


def _wait_for_status(home: Path, number: str) -> tuple[str, str]:
    """The run's status and details from Flower; empty if the SuperLink does not answer."""
    ends = time.monotonic() + AWAY_SECONDS
    waits = False
    while time.monotonic() < ends:
        try:
            listed = run_flwr(home, "list", CONNECTION, "--run-id", number, "--format", "json")
            (found,) = _json(listed)["runs"]
            return str(found["status"]), str(found.get("status-details") or "")
        except (RunError, LookupError, TypeError, ValueError):
            if not waits:
                _print("the SuperLink does not answer; the run goes on without it. Waiting for it.")
            waits = True
            time.sleep(PAUSE)
    return "", ""


def _json(text: str) -> Any:
    """The JSON that Flower prints after other lines."""
    try:
        return json.loads(text[text.index("{") :])
    except ValueError as error:
        raise RunError(f"Flower printed no JSON: {text.strip()[-500:]}") from error


def _print(text: str) -> None:
    sys.stderr.write(f"fedplt: {text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(start_run(Path(sys.argv[1])))
