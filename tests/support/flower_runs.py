"""Flower's real simulation: a SuperLink of its own that ends with the test."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedplt.errors import RunError
from fedplt_flower.processes import end_all, environment, free_port, run_flwr

SECONDS = 900.0


@contextmanager
def simulation(folder: Path) -> Iterator[Path]:
    """Start a SuperLink for simulations; give its home."""
    home, port = folder / "home", free_port()
    home.mkdir(parents=True)
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "run"\n\n[superlink.run]\naddress = "127.0.0.1:{port}"\n'
        "insecure = true\n"
    )
    with (folder / "superlink.log").open("wb") as log:
        process = subprocess.Popen(
            [
                str(Path(sys.executable).with_name("flower-superlink")), "--insecure",
                "--simulation", "--disable-runtime-dependency-installation",
                "--host", "127.0.0.1", "--port", str(port),
            ],
            stdout=log, stderr=log, stdin=subprocess.DEVNULL,
            env=environment(home), start_new_session=True,
        )  # fmt: skip
    try:
        yield home
    finally:
        end_all(process, home)


def simulate(app: Path, folder: Path, *, num_clients: int, until: Path, **config: object) -> str:
    """Run an app until a file is there; return what Flower said."""
    ends = time.monotonic() + SECONDS
    settings = " ".join(f"{key.replace('_', '-')}={value!r}" for key, value in config.items())
    nodes = f"num-supernodes={num_clients} client-resources-num-cpus=1 init-args-num-cpus=2"
    with simulation(folder) as home:
        while not (told := _run(home, app, nodes, settings)).get("success"):
            assert time.monotonic() < ends, f"{told}\n{_log(folder)}"  # it may be starting
            time.sleep(1)
        while not until.exists() and time.monotonic() < ends and "Traceback" not in _log(folder):
            time.sleep(0.5)
        said = run_flwr(home, "log", str(told["run-id"]), "run", "--show")
        assert until.exists(), said + _log(folder)
    return said


def _run(home: Path, app: Path, nodes: str, settings: str) -> dict[str, Any]:
    more = ("--federation-config", nodes, "-c", settings, "--format", "json")
    try:
        return json.loads(run_flwr(home, "run", str(app), "run", *more))
    except (RunError, ValueError) as error:
        return {"error": str(error)}


def _log(folder: Path) -> str:
    return (folder / "superlink.log").read_text(errors="replace")
