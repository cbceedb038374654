"""``flower-superexec`` of a deployment: starts the server app, or a node's client app.

    python3 -P -m fedplt_flower.deployment.superexec server|node [arguments of flower-superexec]

It differs from Flower's in two ways. A task's token is not on the command line, where every user of
the machine could read it. And a node runs :mod:`fedplt_flower.node.flwr_clientapp`, not code that
the server sends. This module does not import torch, which only the tasks need.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from typing import Any

from flwr.supercore.cli import flower_superexec
from flwr.supercore.constant import TaskType
from flwr.supercore.superexec import run_superexec as flower
from flwr.supercore.superexec.executor import ExecutionSpec, LaunchResult, SubprocessExecutor

PROGRAMS = {
    "server": (TaskType.SERVER_APP, ["flwr-serverapp"]),
    "node": (
        TaskType.CLIENT_APP,
        [sys.executable, "-P", "-m", "fedplt_flower.node.flwr_clientapp"],
    ),
}
"""For the server and a node: the kind of task to start, and the program that runs it."""


class HiddenTokenExecutor(SubprocessExecutor):
    """Starts tasks of one kind; they read their token from an open file without a name."""

    def __init__(self, side: str) -> None:
        self.kind, self.program = PROGRAMS[side]

    def get_eligible_capacity(
        self, supported_task_types: set[TaskType], **options: Any
    ) -> tuple[set[TaskType], set[str]]:
        return supported_task_types & {self.kind}, set()

    def launch(self, spec: ExecutionSpec) -> LaunchResult:
        if spec.task_type != self.kind:
            return LaunchResult.failed(f"this machine starts {self.kind} tasks only.")
        with tempfile.TemporaryFile() as token:
            token.write(spec.token.encode())
            token.seek(0)
            command = [
                *self.program,
                *("--runtime-api-address", spec.runtime_api_address),
                *("--token-file", f"/dev/fd/{token.fileno()}"),
                *("--parent-pid", str(spec.parent_pid)),  # it ends with this process
            ]
            if spec.root_certificates_path is not None:
                command += ["--root-certificates", spec.root_certificates_path]
            output = subprocess.DEVNULL if spec.suppress_output else None
            subprocess.Popen(command, stdout=output, stderr=output, pass_fds=[token.fileno()])
        return LaunchResult.accepted()


def main() -> None:
    side = sys.argv.pop(1) if len(sys.argv) > 1 else ""
    if side not in PROGRAMS:
        sys.exit("usage: superexec.py server|node [arguments of flower-superexec]")
    if not hasattr(flower, "get_executor"):
        sys.exit("this version of Flower does not fit: install the one of deployment.json.")
    flower.get_executor = lambda *_, **__: HiddenTokenExecutor(side)
    # Shells let background jobs ignore SIGINT, with which Flower ends processes.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    flower_superexec()


if __name__ == "__main__":
    main()
