"""A run on a real deployment on loopback: TLS, authentication, three unequal nodes."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from pathlib import Path

import pytest
from safetensors.torch import load_file

from fedplt.api import run
from fedplt.configuration.config_file import load_config, override
from tests.support.deployments import free_ports, make_deployment, parts, start_federation
from tests.support.runs import same

pytestmark = [pytest.mark.flower, pytest.mark.timeout(2400)]


@contextmanager
def command_lines(folder: Path):
    """Those of the tasks that Flower's processes start meanwhile, as every account sees them."""
    seen, ended = set(), threading.Event()

    def look() -> None:
        while not ended.wait(0.05):
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    text = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
                except OSError:
                    continue
                if "--token" in text and (str(folder) in text):
                    seen.add(text)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        ended.set()
        thread.join()


def test_the_weights_of_a_deployed_run_are_the_simulators(tmp_path):
    port, *node_ports = free_ports(4)
    folder = make_deployment(tmp_path, port=port)
    model = folder / "server" / "run" / "model.safetensors"
    stolen = tmp_path / "the-servers-code-ran-on-a-node"
    (client,) = (folder / "server" / "app").glob("*/client_app.py")
    client.write_text(f"open({str(stolen)!r}, 'w')\n" + client.read_text())
    with parts(tmp_path / "logs") as started, command_lines(folder) as seen:
        start_federation(started, folder, port, node_ports)
        done = started.run(folder / "server" / "start-run.sh", timeout=1200)
        assert model.exists(), done.stdout + done.stderr + started.said
    assert done.returncode == 0, done.stderr
    assert not stolen.exists()
    assert any("flwr-serverapp" in text for text in seen)
    assert any("flower.node.flwr_clientapp" in text for text in seen)
    assert all("--token-file /dev/fd/" in text and "--token " not in text for text in seen)
    config = load_config(folder / "run.toml")
    simulated = override(config, ["engine.name=simulator"])
    run(simulated, tmp_path / "simulated")
    assert same(load_file(model), load_file(tmp_path / "simulated" / "model.safetensors"))
