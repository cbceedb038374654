"""Start, call and end Flower's processes."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from fedplt.errors import RunError

END_SECONDS = 8.0
COMMAND_SECONDS = 120.0


def environment(home: Path) -> dict[str, str]:
    """Environment variables for Flower's processes: files in ``home``, no telemetry."""
    return {
        **os.environ,
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "PYTHONPATH": os.pathsep.join(path for path in (*sys.path, str(Path.cwd())) if path),
        "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", ""))),
        "OMP_NUM_THREADS": "1",
    }


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def run_flwr(home: Path, *arguments: str) -> str:
    """Run Flower's command ``flwr`` and return its output."""
    command = [str(Path(sys.executable).with_name("flwr")), *arguments]
    try:
        done = subprocess.run(
            command, env=environment(home), capture_output=True, text=True,
            timeout=COMMAND_SECONDS, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise RunError(f"'flwr {arguments[0]}' gave no answer in {COMMAND_SECONDS:g} s.") from error
    if done.returncode:
        raise RunError(f"'flwr {arguments[0]}' failed: {done.stderr or done.stdout}")
    return done.stdout


def end_all(process: subprocess.Popen[bytes], home: Path) -> None:
    """End a process and all processes with the same home; kill those that do not end."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        ids = {process.pid, *_ours(home)} if process.poll() is None else _ours(home)
        for identity in ids:
            with contextlib.suppress(OSError):
                os.kill(identity, number)
        ends = time.monotonic() + END_SECONDS
        while time.monotonic() < ends:
            if process.poll() is not None and not _ours(home):
                return
            time.sleep(0.1)


def _ours(home: Path) -> set[int]:
    """Ids of processes with this FLWR_HOME in their environment (Linux), such as Ray's."""
    mark, found = f"FLWR_HOME={home}".encode(), set()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                found.add(int(entry.name))
        except OSError:
            continue
    return found - {os.getpid()}
