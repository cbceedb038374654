"""Deployments for tests: made in the test's folder, and their processes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

from fedplt_flower.deployment.create import init_deployment
from fedplt_flower.deployment.manifest import make_address

ROOT = Path(__file__).parents[2]
NODES = "name,ratio\nn1,1.0\nn2,0.5\nn3,0.1\n"
CONFIG = """
name = "tiny"
rounds = 2
seed = 3

[data]
name = "tests.support.tiny:data"
alpha = 0.5

[model]
name = "tests.support.tiny:model"
"""


def make_deployment(
    folder: Path, nodes: str = NODES, config: str = CONFIG, hosts: list[str] = (), port: int = 8443
) -> Path:
    """A deployment in ``folder / "fl"``; ``config`` may be empty."""
    (folder / "nodes.csv").write_text(nodes)
    path = None
    if config:
        path = folder / "given.toml"
        path.write_text(config)
    address = make_address(list(hosts), port)
    init_deployment(folder / "fl", folder / "nodes.csv", address, path)
    return folder / "fl"


def free_ports(number: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


class Parts:
    """Started scripts of a deployment; each has a log, and all end with the test."""

    def __init__(self, logs: Path) -> None:
        self.logs = logs
        self.running: dict[str, subprocess.Popen] = {}
        self.may_end: set[str] = set()
        self.ended: dict[str, subprocess.Popen] = {}
        path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
        self.environment = {**os.environ, "FEDPLT_ENVIRONMENT": sys.prefix, "PYTHONPATH": path}

    def start(self, name: str, script: Path, **environment: object) -> subprocess.Popen:
        given = {key: str(value) for key, value in environment.items()}
        with (self.logs / f"{name}.log").open("w") as log:
            self.running[name] = subprocess.Popen(
                [script], stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                env={**self.environment, **given}, start_new_session=True,
            )  # fmt: skip
        return self.running[name]

    def run(self, *command: object, timeout: float = 300, **environment: object):
        given = {key: str(value) for key, value in environment.items()}
        return subprocess.run(
            [str(part) for part in command], capture_output=True, text=True, timeout=timeout,
            env={**self.environment, **given}, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def wait_for_end(self, name: str, seconds: float) -> int:
        """The exit code of a part that ends by itself. (Its children wait until it is reaped.)"""
        part = self.running[name]
        self.wait_for(f"{name} ends", lambda: part.poll() is not None, seconds, ends=name)
        self.ended[name] = self.running.pop(name)
        return part.returncode

    def wait_for(
        self, what: str, happened: Callable[[], object], seconds: float, ends: str = ""
    ) -> None:
        """Fails with the logs when it does not happen in time, or when a part has ended."""
        end = time.monotonic() + seconds
        while not happened():
            ended = [
                name
                for name, part in self.running.items()
                if part.poll() is not None and name != ends and name not in self.may_end
            ]
            if ended or time.monotonic() > end:
                raise AssertionError(f"{what}: not within {seconds} s; ended: {ended}\n{self.said}")
            time.sleep(0.5)

    @property
    def said(self) -> str:
        logs = sorted(self.logs.glob("*.log"))
        return "\n".join(f"--- {log.name}\n{log.read_text()[-3000:]}" for log in logs)

    def stop(self) -> None:
        """Ask, then kill, with everything they started: each is a process group of its own."""
        all_parts = [*self.running.values(), *self.ended.values()]
        for number, seconds in ((signal.SIGTERM, 20.0), (signal.SIGKILL, 10.0)):
            for part in all_parts:
                _signal(part.pid, number)
            end = time.monotonic() + seconds
            while any(part.poll() is None or _alive(part.pid) for part in all_parts):
                if time.monotonic() > end:
                    break
                time.sleep(0.1)


def _signal(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return


def _alive(group: int) -> bool:
    """Whether any process of the group still does something: zombies do not."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            _, _, rest = stat.read_text().rpartition(")")
        except OSError:
            continue
        state, _, its_group = rest.split()[:3]
        if int(its_group) == group and state != "Z":
            return True
    return False


@contextmanager
def parts(logs: Path):
    logs.mkdir()
    started = Parts(logs)
    try:
        yield started
    finally:
        started.stop()


def answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def nodes_online(started: Parts, folder: Path) -> int:
    flwr = Path(sys.prefix) / "bin" / "flwr"
    home = folder / "server" / "flwr-home"
    quiet = {"FLWR_TELEMETRY_ENABLED": 0, "FLWR_DISABLE_UPDATE_CHECK": 1}
    command = (flwr, "supernode", "list", "deployment", "--format", "json")
    done = started.run(*command, FLWR_HOME=home, **quiet)
    assert done.returncode == 0, done.stdout + done.stderr
    return sum(node["status"] == "online" for node in json.loads(done.stdout)["nodes"])


NAMES = ("n1", "n2", "n3")


def start_server(started: Parts, folder: Path, port: int) -> None:
    """SuperLink and SuperExec, with the nodes registered."""
    server = folder / "server"
    started.start("superlink", server / "superlink.sh")
    started.wait_for("SuperLink", lambda: answers(port), 180)
    started.start("superexec", server / "superexec.sh")
    done = started.run(server / "register-nodes.sh")
    assert done.returncode == 0, done.stderr


def start_node(started: Parts, folder: Path, name: str, port: int, **environment: object) -> None:
    script = folder / "nodes" / name / "supernode.sh"
    started.start(name, script, FEDPLT_NODE_PORT=port, **environment)


def start_federation(started: Parts, folder: Path, port: int, node_ports: list[int]) -> None:
    """The whole federation: server, and three nodes that are online."""
    start_server(started, folder, port)
    for name, node_port in zip(NAMES, node_ports, strict=True):
        start_node(started, folder, name, node_port)
    started.wait_for("nodes online", lambda: nodes_online(started, folder) == len(NAMES), 300)


def records(folder: Path) -> list[dict]:
    """The records of the run's rounds so far."""
    path = folder / "server" / "run" / "rounds.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if line]
