"""How many bytes a round takes on the wire, against the cost model."""

from __future__ import annotations

import json

import pytest

from fedplt.configuration.config_file import load_config
from fedplt.federation.start import job_of
from fedplt.planning import download_bytes, upload_bytes
from tests.support.counting_proxy import CountingProxy
from tests.support.deployments import (
    free_ports,
    make_deployment,
    nodes_online,
    parts,
    start_node,
    start_server,
)

pytestmark = [pytest.mark.flower, pytest.mark.timeout(2400)]

NODES = "name,ratio\nn1,1.0\nn2,0.25\nn3,0.06\n"
CONFIG = """
name = "large"
rounds = 1
seed = 3

[data]
name = "tests.support.tiny:data"
alpha = 0.5

[model]
name = "tests.support.tiny:model_of_20_megabytes"
"""


ENCODED = """
[messages]
up = "int8"
down = "int2"
"""


@pytest.mark.parametrize("messages", ["", ENCODED], ids=["float32", "encoded"])
def test_bytes_are_what_the_cost_model_says(messages, tmp_path, capsys):
    """Within 3 % and 30 kB, at ratios 1, 0.25 and 0.06 of a model of 20 MB.

    Encoded: the first model as int8, then a difference; 50 kB a round. Polls and heartbeats take
    the same bytes in every run of that length, and do not shrink with the messages.
    """
    spare = 100_000 if messages else 30_000
    config = CONFIG.replace("rounds = 1", "rounds = 2") + messages if messages else CONFIG
    port, *node_ports = free_ports(4)
    folder = make_deployment(tmp_path, nodes=NODES, config=config, port=port)
    out = folder / "server" / "run"
    proxies = [CountingProxy(port) for _ in node_ports]
    with parts(tmp_path / "logs") as started:
        start_server(started, folder, port)
        for number, (proxy, node_port) in enumerate(zip(proxies, node_ports, strict=True)):
            address = f"127.0.0.1:{proxy.port}"
            start_node(started, folder, f"n{number + 1}", node_port, FEDPLT_SUPERLINK=address)
        started.wait_for("nodes online", lambda: nodes_online(started, folder) == 3, 300)
        done = started.run(folder / "server" / "start-run.sh", timeout=1200)
        assert (out / "model.safetensors").exists(), done.stdout + done.stderr + started.said
    job = job_of(load_config(folder / "run.toml"))
    for client, proxy in enumerate(proxies):
        proxy.close()
        assignment = job.plan.assignment(client)
        up, down = upload_bytes(assignment), download_bytes(assignment)
        if messages:
            up = 2 * upload_bytes(assignment, "int8")
            down = sum(download_bytes(assignment, encoding) for encoding in ("int8", "int2"))
        with capsys.disabled():
            told = {"ratio": assignment.ratio, "up": [up, proxy.up], "down": [down, proxy.down]}
            print(json.dumps(told))
        assert up <= proxy.up <= 1.03 * up + spare
        assert down <= proxy.down <= 1.03 * down + spare
