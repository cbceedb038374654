"""``fedplt deploy init``: what is in the folder."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_ssh_private_key,
)
from flwr.common.constant import FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE

from fedplt.configuration import load_config
from fedplt.errors import ConfigError, RunError
from fedplt_flower.deployment.config_files import client_groups, read_nodes
from fedplt_flower.deployment.create import node_port
from fedplt_flower.deployment.manifest import make_address, read_manifest
from fedplt_flower.node.node_config import load_node
from fedplt_flower.server.server_app import registered_clients
from tests.support.deployments import CONFIG, make_deployment

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return make_deployment(tmp_path_factory.mktemp("deployment"), hosts=["fl.example.org", "::1"])


def test_private_files_are_private_and_the_nodes_folders_closed(folder):
    private = [*folder.rglob("*.key"), *folder.rglob("*.secret")]
    assert len(private) == 2 + 1 + 3 * 3
    assert {stat.S_IMODE(path.stat().st_mode) for path in private} == {0o600}
    closed = [folder, folder / "ca", *(folder / "nodes").iterdir()]
    assert {stat.S_IMODE(path.stat().st_mode) for path in closed} == {0o700}


def test_a_loose_umask_opens_nothing(tmp_path):
    before = os.umask(0)
    try:
        made = make_deployment(tmp_path, config="")
    finally:
        os.umask(before)
    assert {stat.S_IMODE(path.stat().st_mode) for path in made.rglob("*.key")} == {0o600}


def test_no_private_key_is_where_it_does_not_belong(folder):
    for path in folder.rglob("*"):
        if path.is_file() and path.suffix != ".key":
            assert b"PRIVATE" not in path.read_bytes(), path
    assert not list((folder / "nodes").rglob("ca.key"))
    assert not list((folder / "server").rglob("node.key"))


def test_the_run_has_the_clients_of_the_csv(folder):
    config = load_config(folder / "run.toml")
    assert config.clients.num_clients == 3
    assert [group.ratio for group in config.clients.groups] == [1.0, 0.5, 0.1]
    assert config.engine.name == "flower"
    assert config.engine.round_timeout_seconds == 600
    assert config.server.min_clients == 3
    assert config.rounds == 2


def test_settings_of_the_given_configuration_stay(tmp_path):
    given = CONFIG + "[server]\nmin_clients = 3\n[engine]\nround_timeout_seconds = 20.0\n"
    config = load_config(make_deployment(tmp_path, config=given) / "run.toml")
    assert (config.server.min_clients, config.engine.round_timeout_seconds) == (3, 20.0)


@pytest.mark.parametrize(("number", "least"), [(1, 1), (2, 1), (3, 3), (4, 3), (7, 3), (9, 4)])
def test_rounds_need_three_clients_where_there_are_three(tmp_path, number, least):
    nodes = "name,ratio\n" + "".join(f"n{k},1.0\n" for k in range(number))
    made = make_deployment(tmp_path, nodes=nodes)
    assert load_config(made / "run.toml").server.min_clients == least
    warned = "does not protect" in (made / "README.md").read_text()
    assert warned == (number < 3)


def test_a_sampler_of_few_clients_can_still_fill_a_round(tmp_path):
    given = CONFIG + "[sampling]\nname = 'uniform'\nnum_clients = 2\n"
    made = make_deployment(tmp_path, config=given)
    assert load_config(made / "run.toml").server.min_clients == 2
    assert "does not protect" in (made / "README.md").read_text()


def test_a_sampler_that_draws_any_number_is_not_held_to_a_least_number(tmp_path):
    config = CONFIG + '[sampling]\nname = "fedplt-ocs"\nbudget = 1.0\n'
    made = make_deployment(tmp_path, config=config)
    assert load_config(made / "run.toml").server.min_clients == 0


def test_a_server_that_plans_by_devices_asks_the_nodes_for_them(tmp_path):
    fleet = CONFIG + '[fleet]\ndevices = "nodes"\nreplan = "on-change"\n'
    made = make_deployment(tmp_path, nodes="name\nn1\nn2\n", config=fleet)
    config = load_config(made / "run.toml")
    assert (config.clients.num_clients, config.fleet.replan) == (2, "on-change")
    own = made / "nodes" / "n1"
    assert load_node(own / "node.toml").profile == str(own / "profile.toml")
    assert "fedplt probe" in (made / "README.md").read_text()
    assert read_manifest(made).layers is not None


@pytest.mark.parametrize(
    ("nodes", "fleet", "words"),
    [
        ("name\nn1\n", "", "the column 'ratio' is missing"),
        ("name,ratio\nn1,0.5\n", '[fleet]\ndevices = "nodes"\n', "Remove the column ratio"),
        ("name\nn1\n", '[fleet]\ndevices = "fleet.csv"\n', "not from a file of devices"),
    ],
)
def test_ratios_come_from_one_place(nodes, fleet, words, tmp_path):
    with pytest.raises(ConfigError, match=words):
        make_deployment(tmp_path, nodes=nodes, config=CONFIG + fleet)


def test_the_task_is_the_nodes_too(tmp_path):
    task = '[task]\nname = "regression"\nmetric = "mae"\n'
    made = make_deployment(tmp_path, config=CONFIG + task)
    for config in (load_config(made / "run.toml"), load_node(made / "nodes" / "n1" / "node.toml")):
        assert (config.task.name, config.task.metric) == ("regression", "mae")


def test_a_node_knows_itself_alone(folder):
    node = load_node(folder / "nodes" / "n2" / "node.toml")
    assert (node.name, node.client, node.num_clients) == ("n2", 1, 3)
    assert (node.data.name, node.data.alpha, node.data.seed) == ("tests.support.tiny:data", 0.5, 3)
    assert node.model.name == "tests.support.tiny:model"
    assert node.state == str(folder / "nodes" / "n2" / "state")
    assert read_manifest(folder / "nodes" / "n2").nodes == {"n2": 1}
    for path in (folder / "nodes" / "n2").iterdir():
        assert not {"n1", "n3"} & set(path.read_text().replace(",", " ").split()), path


def test_a_given_split_is_copied(tmp_path):
    (tmp_path / "mine.json").write_text(json.dumps([[0, 1], [2], [3]]))
    split = f'split = "given"\nsplit_file = "{tmp_path / "mine.json"}"'
    made = make_deployment(tmp_path, config=CONFIG.replace("alpha = 0.5", split))
    node = load_node(made / "nodes" / "n3" / "node.toml")
    assert node.data.split_file == str(made / "nodes" / "n3" / "split.json")
    assert load_config(made / "run.toml").data.split_file == str(made / "server" / "split.json")


def test_openssl_and_ssh_keygen_accept_the_keys(folder):
    ca, server = folder / "ca" / "ca.crt", folder / "server" / "server.pem"
    for host in (["-verify_hostname", "fl.example.org"], ["-verify_ip", "127.0.0.1"]):
        command = ["openssl", "verify", "-x509_strict", "-CAfile", ca, *host, server]
        subprocess.run(command, check=True, capture_output=True, timeout=20)
    command = ["openssl", "verify", "-CAfile", ca, "-verify_hostname", "other.org", server]
    assert subprocess.run(command, capture_output=True, timeout=20).returncode
    key = folder / "nodes" / "n1" / "node.key"
    done = subprocess.run(["ssh-keygen", "-y", "-f", key], capture_output=True, timeout=20)
    assert done.stdout.split()[:2] == (folder / "server/keys/n1.pub").read_bytes().split()[:2]


def test_the_certificate_of_the_authority(folder):
    ca = x509.load_pem_x509_certificate((folder / "ca" / "ca.crt").read_bytes())
    constraints = ca.extensions.get_extension_for_class(x509.BasicConstraints)
    assert constraints.critical and constraints.value.ca
    assert ca.extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign
    copies = [folder / "server" / "ca.crt", *folder.glob("nodes/*/ca.crt")]
    assert {path.read_bytes() for path in copies} == {(folder / "ca" / "ca.crt").read_bytes()}


def test_scripts_are_valid_and_quiet(folder):
    scripts = list(folder.rglob("*.sh"))
    assert len(scripts) == 7
    for script in scripts:
        assert os.access(script, os.X_OK)
        subprocess.run(["sh", "-n", script], check=True, timeout=20)
        text = script.read_text()
        assert "FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1" in text
        assert "--insecure" not in text
    assert (
        '--superlink "${FEDPLT_SUPERLINK:-fl.example.org:8443}"'
        in (folder / "nodes" / "n1" / "supernode.sh").read_text()
    )


def test_start_run_continues_by_itself_and_takes_no_argument(folder):
    script = folder / "server" / "start-run.sh"
    command = [shutil.which("sh"), script, "--resume"]
    environment = {**os.environ, "FEDPLT_ENVIRONMENT": sys.prefix}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=20)
    assert done.returncode == 2
    assert "continues a run that has begun" in done.stderr
    page = Path(__file__).parents[3] / "docs" / "deploy.md"
    for text in ((folder / "README.md").read_text(), page.read_text()):
        assert "--resume" not in text
        assert "start-run.sh" in text


def test_without_flower_a_script_says_what_to_install(folder, tmp_path):
    done = subprocess.run(
        [shutil.which("sh"), folder / "server" / "superlink.sh"],
        env={"PATH": "/usr/bin:/bin", "FEDPLT_ENVIRONMENT": str(tmp_path)},
        capture_output=True, text=True, timeout=20,
    )  # fmt: skip
    assert done.returncode == 127
    assert "pip install 'fedplt[flower]'" in done.stderr


def test_the_superlink_stays_on_loopback_behind_a_proxy(folder, tmp_path):
    assert (
        '--host "${FEDPLT_BIND:-127.0.0.1}" --port 8444'
        in (folder / "server" / "superlink.sh").read_text()
    )
    proxy = (folder / "server" / "nginx.conf").read_text()
    assert "listen 8443 ssl;" in proxy
    assert "location /v1/fleet/" in proxy and "return 403;" in proxy
    connection = tomllib.loads((folder / "server" / "flwr-home" / "config.toml").read_text())
    assert connection["superlink"]["deployment"]["address"] == "127.0.0.1:8444"
    here = make_deployment(tmp_path)
    assert not (here / "server" / "nginx.conf").exists()
    assert "--port 8443" in (here / "server" / "superlink.sh").read_text()


@pytest.mark.slow
def test_flower_builds_the_app(folder, tmp_path):
    done = subprocess.run(
        [Path(sys.prefix) / "bin" / "flwr", "build", "--app", folder / "server" / "app"],
        cwd=tmp_path, capture_output=True, text=True, timeout=100,
        env={**os.environ, "FLWR_TELEMETRY_ENABLED": "0", "FLWR_HOME": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(tmp_path.glob("*.fab"))


def test_units_name_their_folders(folder):
    unit = (folder / "nodes" / "n1" / "fedplt-n1.service").read_text()
    assert "WorkingDirectory=/opt/fedplt/n1\nExecStart=/bin/sh supernode.sh" in unit
    unit = (folder / "server" / "fedplt-superexec.service").read_text()
    assert f"WorkingDirectory={folder / 'server'}\n" in unit
    assert "After=network-online.target fedplt-superlink.service" in unit


def test_a_path_with_spaces_is_quoted_and_an_odd_one_refused(tmp_path):
    folder = tmp_path / "my federation; 1"
    folder.mkdir()
    made = make_deployment(folder, hosts=["fl.example.org"])
    proxy = (made / "server" / "nginx.conf").read_text()
    for line in proxy.splitlines():
        if str(made) in line:
            assert line.split(None, 1)[1].startswith(f'"{made}/server/')
            assert line.endswith('";')
    assert proxy.count(str(made)) == 3
    for odd in ("a$b", "a'b", 'a"b', "a\\b", "a\nb"):
        (tmp_path / odd).mkdir()
        with pytest.raises(ConfigError, match="Choose another"):
            make_deployment(tmp_path / odd)


def test_the_proxy_bounds_requests_before_anybody_is_known(folder):
    proxy = (folder / "server" / "nginx.conf").read_text()
    assert "client_max_body_size 16m;" in proxy
    assert "proxy_request_buffering on;" in proxy
    assert "limit_conn fedplt 32;" in proxy
    assert proxy.count("{") == proxy.count("}") == 3
    # A piece of a model must get through.
    assert FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE <= 8_000_000


def test_every_node_has_a_port_of_its_own():
    address = make_address([], 9101)
    ports = [node_port(client, address) for client in range(1000)]
    assert len({*ports, address.port}) == 1001


def test_nothing_is_overwritten_and_nothing_half_is_left(tmp_path):
    made = make_deployment(tmp_path, config="")
    before = (made / "ca" / "ca.key").read_bytes()
    with pytest.raises(RunError, match="already exists, and its keys are never overwritten"):
        make_deployment(tmp_path, config="")
    assert (made / "ca" / "ca.key").read_bytes() == before
    with pytest.raises(ConfigError):
        make_deployment(tmp_path / "..", nodes="name,ratio\n")
    assert not list(tmp_path.glob(".*.part"))


def test_consecutive_equal_nodes_are_one_group(tmp_path):
    path = tmp_path / "nodes.csv"
    path.write_text("ratio;name;learning_rate\n1;a;\n1.0;b;\n0.5;c;\n0.5;d;0.1\n1;e;\n")
    assert client_groups(read_nodes(path)) == [
        {"num_clients": 2, "ratio": 1.0},
        {"num_clients": 1, "ratio": 0.5},
        {"num_clients": 1, "ratio": 0.5, "learning_rate": 0.1},
        {"num_clients": 1, "ratio": 1.0},
    ]


def test_the_server_knows_the_client_of_every_key(folder, tmp_path):
    """As Flower gives it: the key that a node was registered with, in PEM."""

    def pem(name):
        text = (folder / "nodes" / name / "node.key").read_bytes()
        public = load_ssh_private_key(text, None).public_key()
        return public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

    keys = {71: pem("n3"), 70: pem("n1"), 72: b"another"}
    assert registered_clients(folder / "server", lambda: keys)() == {71: 2, 70: 0}
    assert registered_clients(tmp_path, lambda: keys) is None
