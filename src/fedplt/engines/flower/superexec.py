"""``flower-superexec`` of a deployment: starts the server app, or a node's client app.

    python3 -P superexec.py server|node [arguments of flower-superexec]

Two things differ from Flower's own. A task's token is not on its command line, where every account
of the machine reads it. And a node runs the client app of its installed fedplt: code that the
server sends is neither unpacked nor imported.

Scripts run this module by its file: importing its package loads torch, which only tasks need.
"""

from __future__ import annotations

import importlib
import signal
import subprocess
import sys
import tempfile
from typing import Any

from flwr.supercore.cli import flower_superexec
from flwr.supercore.constant import TaskType
from flwr.supercore.superexec.executor import ExecutionSpec, LaunchResult, SubprocessExecutor
from flwr.supernode.cli import flwr_clientapp

from fedplt.errors import RunError

MODULE = "fedplt.engines.flower.superexec"
PROGRAMS = {
    "server": (TaskType.SERVER_APP, ["flwr-serverapp"]),
    "node": (TaskType.CLIENT_APP, [sys.executable, "-P", "-m", MODULE, "client"]),
}
"""The one kind of task that each side starts, and its program."""


class QuietExecutor(SubprocessExecutor):
    """Starts tasks of one kind; a token is read from an open file that has no name."""

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
                *("--parent-pid", str(spec.parent_pid)),
            ]
            if spec.root_certificates_path is not None:
                command += ["--root-certificates", spec.root_certificates_path]
            output = subprocess.DEVNULL if spec.suppress_output else None
            subprocess.Popen(
                command, stdout=output, stderr=output, pass_fds=[token.fileno()]
            )  # it ends with this process (--parent-pid)
        return LaunchResult.accepted()


def run_installed_client() -> None:
    """``flwr-clientapp``, with the client app of this fedplt in place of the server's."""
    ours = importlib.import_module("fedplt.engines.flower.client_app")  # loads torch
    _replace(
        "flwr.supernode.runtime.run_clientapp",
        install_from_fab=lambda *_, **__: None,
        get_load_client_app_fn=lambda **_: lambda *__: ours.client_app(),
    )
    flwr_clientapp()


def _replace(module: str, **ours: Any) -> None:
    """Set functions of Flower's; refuse a Flower that has other ones."""
    found = importlib.import_module(module)
    for name, value in ours.items():
        if not hasattr(found, name):
            raise RunError(
                f"this version of Flower has no {module}.{name}, so that a node cannot be kept "
                "from running the server's code. Install the version in deployment.json."
            )
        setattr(found, name, value)


def main() -> None:
    side = sys.argv.pop(1) if len(sys.argv) > 1 else ""
    # A shell ignores Ctrl-C for jobs in the background; Flower uses it to end them.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if side == "client":
        run_installed_client()
    elif side in PROGRAMS:
        name = "flwr.supercore.superexec.run_superexec"
        _replace(name, get_executor=lambda *_, **__: QuietExecutor(side))
        flower_superexec()
    else:
        sys.exit("usage: superexec.py server|node [arguments of flower-superexec]")


if __name__ == "__main__":
    main()
