"""What starts the tasks of a deployment's machines."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from flwr.supercore.constant import TaskType
from flwr.supercore.superexec.executor import ExecutionSpec, LaunchResultStatus

from fedplt.errors import RunError
from fedplt_flower.deployment.superexec import HiddenTokenExecutor
from fedplt_flower.node import flwr_clientapp as node_app

pytestmark = pytest.mark.slow

TASK = """
import json, sys
from pathlib import Path
options = dict(zip(sys.argv[2::2], sys.argv[3::2]))
token = Path(options["--token-file"])
Path(sys.argv[1]).write_text(json.dumps([sys.argv, token.is_file(), token.read_text()]))
"""


def spec(kind: TaskType) -> ExecutionSpec:
    return ExecutionSpec(
        task_type=kind, runtime_api_address="127.0.0.1:9", token="s3cret", insecure=False,
        root_certificates_path="ca.crt", runtime_dependency_install=False, parent_pid=7,
        suppress_output=False, task_id=1,
    )  # fmt: skip


def test_a_task_reads_its_token_and_nobody_sees_it(tmp_path, monkeypatch):
    out, started = tmp_path / "out.json", []
    executor = HiddenTokenExecutor("server")
    executor.program = [sys.executable, "-c", TASK, str(out)]
    popen = subprocess.Popen

    def start(*arguments, **options):
        started.append(popen(*arguments, **options))
        return started[0]

    monkeypatch.setattr("fedplt_flower.deployment.superexec.subprocess.Popen", start)
    assert executor.launch(spec(TaskType.SERVER_APP)).status == LaunchResultStatus.ACCEPTED
    assert started[0].wait(30) == 0
    command, is_file, token = json.loads(out.read_text())
    assert (is_file, token) == (True, "s3cret")
    assert not any("s3cret" in word for word in command)
    assert command[command.index("--parent-pid") + 1] == "7"


@pytest.mark.parametrize("side", ["server", "node"])
def test_a_machine_starts_tasks_of_one_kind(side):
    executor = HiddenTokenExecutor(side)
    others = set(TaskType) - {executor.kind}
    assert executor.get_eligible_capacity(set(TaskType)) == ({executor.kind}, set())
    for kind in others:
        assert executor.launch(spec(kind)).status == LaunchResultStatus.FAILED


def test_a_flower_that_does_not_fit_runs_nothing(monkeypatch):
    monkeypatch.delattr(node_app.flower, "install_from_fab")
    monkeypatch.setattr(node_app, "flwr_clientapp", lambda: pytest.fail("it ran"))
    with pytest.raises(RunError, match="install_from_fab"):
        node_app.main()


def test_what_waits_for_tasks_does_not_load_torch():
    module = "fedplt_flower.deployment.superexec"
    script = f"import runpy, sys; runpy.run_module({module!r}); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-P", "-c", script], timeout=60).returncode == 0
