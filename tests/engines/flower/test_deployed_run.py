"""A run on a real deployment on loopback: TLS, authentication, three unequal nodes."""

from __future__ import annotations

import pytest
from safetensors.torch import load_file

from fedplt.configuration.config_file import load_config, override
from fedplt.engines.start import run
from tests.support.deployments import free_ports, make_deployment, parts, start_federation
from tests.support.runs import same

pytestmark = [pytest.mark.flower, pytest.mark.timeout(2400)]


def test_the_weights_of_a_deployed_run_are_the_simulators(tmp_path):
    port, *node_ports = free_ports(4)
    folder = make_deployment(tmp_path, port=port)
    model = folder / "server" / "run" / "model.safetensors"
    with parts(tmp_path / "logs") as started:
        start_federation(started, folder, port, node_ports)
        done = started.run(folder / "server" / "start-run.sh", timeout=1200)
        assert model.exists(), done.stdout + done.stderr + started.said
    config = load_config(folder / "run.toml")
    simulated = override(config, ["engine.name=simulator"])
    run(simulated, tmp_path / "simulated")
    assert same(load_file(model), load_file(tmp_path / "simulated" / "model.safetensors"))
