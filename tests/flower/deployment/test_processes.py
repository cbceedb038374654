"""The generated scripts for real, on loopback: TLS, registered keys, three nodes."""

from __future__ import annotations

import re
import shutil

import httpx
import pytest
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor, SuperExecAuthHttpInterceptor
from flwr.supercore.runtime import RuntimeHttpClient

from fedplt_flower.deployment import make_certificates as keys
from fedplt_flower.deployment.check import check_deployment
from tests.support.deployments import answers, free_ports, make_deployment, nodes_online, parts


def problems(folder, node=None) -> str:
    return " ".join(f.text for f in check_deployment(folder, node) if f.level == "problem")


def refuses_tasks(own, port, secret) -> bool:
    """Whether another process of the machine is refused that asks for the node's tasks."""
    interceptors = [RuntimeVersionHttpInterceptor(component_name="SuperExec")]
    if secret is not None:
        methods = frozenset({"/flwr.proto.Runtime/AcquireTask"})
        interceptors.append(
            SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=methods)
        )
    ca = (own / "runtime-ca.crt").read_bytes()
    address = f"127.0.0.1:{port}"
    with RuntimeHttpClient.from_server_address(address, False, ca, interceptors) as client:
        try:
            client.AcquireTask(AcquireTaskRequest(supported_task_types=["flwr-clientapp"]))
        except httpx.HTTPStatusError as error:
            assert error.response.status_code in (401, 403)
            return True
    return False


@pytest.mark.flower
@pytest.mark.timeout(1800)
def test_three_nodes_join_over_tls_and_a_stranger_does_not(tmp_path):
    port, stranger_port, *node_ports = free_ports(5)
    folder = make_deployment(tmp_path, port=port)
    stranger = tmp_path / "stranger"
    shutil.copytree(folder / "nodes" / "n1", stranger)
    (stranger / "node.key").unlink()
    keys.write_private(stranger / "node.key", keys.openssh_private(keys.new_key()))
    with parts(tmp_path / "logs") as started:
        server = folder / "server"
        started.start("superlink", server / "superlink.sh")
        started.wait_for("SuperLink", lambda: answers(port), 180)
        started.start("superexec", server / "superexec.sh")
        assert "not registered: n1, n2, n3" in problems(folder)
        assert "does not know this node's key" in problems(folder, "n2")
        for expected in ("registered", "was registered before"):
            done = started.run(server / "register-nodes.sh")
            assert done.returncode == 0, done.stderr
            assert re.findall(r"^n\d: (.*)$", done.stdout, re.MULTILINE) == [expected] * 3

        started.start("stranger", stranger / "supernode.sh", FEDPLT_NODE_PORT=stranger_port)
        assert started.wait_for_end("stranger", 180) == 1
        assert "ref-exit-codes/305" in (tmp_path / "logs" / "stranger.log").read_text()

        for node, node_port in zip(("n1", "n2", "n3"), node_ports, strict=True):
            script = folder / "nodes" / node / "supernode.sh"
            started.start(node, script, FEDPLT_NODE_PORT=node_port)
        started.wait_for("nodes online", lambda: nodes_online(started, folder) == 3, 300)

        for node in (None, "n2"):
            found = list(check_deployment(folder, node))
            assert [finding for finding in found if finding.level == "problem"] == []
            said = " ".join(finding.text for finding in found)
            assert f"127.0.0.1:{port} answers" in said
            assert "the clocks agree" in said
            assert "registered" in said or "knows this node's key" in said
        for secret in (None, b"a guess"):
            assert refuses_tasks(folder / "nodes" / "n1", node_ports[0], secret)
        right = (folder / "nodes" / "n1" / "superexec.secret").read_bytes()
        assert not refuses_tasks(folder / "nodes" / "n1", node_ports[0], right)
    assert not answers(port)
    # The stranger's own processes may be interrupted by Flower while they start.
    for name in ("superlink", "superexec", "n1", "n2", "n3"):
        assert "Traceback" not in (tmp_path / "logs" / f"{name}.log").read_text(), started.said
