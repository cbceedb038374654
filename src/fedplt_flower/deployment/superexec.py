"""``flower-superexec`` of a deployment: starts the server app, or a node's client app.

    python3 -P -m fedplt_flower.deployment.superexec server|node [arguments of flower-superexec]

It differs from Flower's in two ways. A task's token is not on the command line, where every account
of the machine could read it. And a node runs :mod:`fedplt_flower.node.flwr_clientapp`, not
code that the server sends. It imports no torch, which only the tasks need.
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
"""The kind of task that each side starts, and its program."""


class HiddenTokenExecutor(SubprocessExecutor):
    """Starts tasks of one kind, which read their token from an unnamed open file."""

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
    # A shell ignores Ctrl-C for jobs in the background; Flower uses it to end them.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    flower_superexec()


if __name__ == "__main__":
    main()
