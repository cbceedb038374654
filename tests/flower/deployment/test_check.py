"""``fedplt deploy check``: what it finds."""

from __future__ import annotations

import json
import shutil
import socket
import ssl
import threading
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from fedplt.errors import RunError
from fedplt_flower.deployment import make_certificates as keys
from fedplt_flower.deployment.check import check_deployment, check_server_reachable, compare_clocks
from fedplt_flower.deployment.check_files import Finding, check_ca, check_certificate, versions
from fedplt_flower.deployment.manifest import make_address
from tests.support.deployments import free_ports, make_deployment

pytestmark = pytest.mark.slow

NOW = datetime(2026, 6, 1, 12, 0, tzinfo=UTC)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    (port,) = free_ports(1)
    return make_deployment(tmp_path_factory.mktemp("deployment"), port=port)


@pytest.fixture
def folder(made, tmp_path) -> Path:
    """A copy to damage; its connection file leads to the original."""
    copy = tmp_path / "fl"
    shutil.copytree(made, copy)
    connection = copy / "server" / "flwr-home" / "config.toml"
    connection.write_text(connection.read_text().replace(str(made), str(copy)))
    return copy


def problems(found) -> list[str]:
    return [f"{finding.text} -> {finding.do}" for finding in found if finding.level == "problem"]


def test_a_new_deployment_is_fine_before_it_is_started(folder):
    found = list(check_deployment(folder))
    assert problems(found) == []
    notes = [finding.text for finding in found if finding.level == "note"]
    assert len(notes) == 1 and "nothing answers at 127.0.0.1" in notes[0]
    assert problems(check_deployment(folder / "server")) == []


def test_a_node_needs_the_server(folder):
    for found in (
        check_deployment(folder, "n2"),
        check_deployment(folder / "nodes" / "n2"),
        check_deployment(folder / "nodes" / "n2", "n2"),
    ):
        (one,) = problems(found)
        assert "nothing answers at 127.0.0.1" in one and "superlink.sh" in one


def node_problems(folder: Path) -> list[str]:
    """Without the one that no server runs."""
    return [text for text in problems(check_deployment(folder, "n2")) if "answers" not in text]


def test_keys(folder):
    own = folder / "nodes" / "n2"
    (own / "node.key").chmod(0o640)
    assert "can be read by others (mode 640)" in node_problems(folder)[0]
    (own / "node.key").chmod(0o600)
    shutil.copy(folder / "nodes" / "n1" / "node.key", own / "node.key")
    assert "does not match node.pub" in node_problems(folder)[0]
    (own / "node.key").write_text("nothing")
    assert "damaged" in node_problems(folder)[0]
    (own / "node.key").unlink()
    assert "No such file" in node_problems(folder)[0]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda own: (own / "node.toml").write_text("name = 3"), "node.toml"),
        (
            lambda own: replace(own, "tiny:data", "tiny:fails"),
            "data.name: 'tests.support.tiny:fails' failed: OSError: no such disk",
        ),
        (lambda own: replace(own, "tiny:model", "nothing:model"), "cannot be imported"),
        (lambda own: replace(own, '"tests.support.tiny:model"', '"fcn"'), "does not fit the data"),
        (
            lambda own: replace(own, "\n[model]\n", "\n[model]\nmax_sublayers = 2\n"),
            "not the server's",
        ),
        (lambda own: replace(own, "client = 1", "client = 2"), "this folder is of n2, client 1"),
        (lambda own: (own / "limits.toml").write_text("max_ratio = 7"), "limits.toml, line 1"),
        (lambda own: replace(own, "client = 1", 'client = 1\nprofile = "no.toml"'), "profile: "),
        (lambda own: (own / "state").write_text("a file"), "cannot be written to"),
        (lambda own: (own / "ca.crt").write_text("no"), "ca.crt cannot be read"),
    ],
)
def test_what_is_wrong_on_a_node(folder, change, expected):
    change(folder / "nodes" / "n2")
    (one,) = node_problems(folder)
    assert expected in one


def replace(own: Path, old: str, new: str) -> None:
    path = own / "node.toml"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def test_a_moved_folder_and_a_changed_run(folder, made):
    connection = folder / "server" / "flwr-home" / "config.toml"
    text = connection.read_text()
    connection.write_text(text.replace(str(folder), str(made)))
    assert "not the ca.crt beside it" in problems(check_deployment(folder))[0]
    connection.write_text(text.replace(str(folder), "/nowhere"))
    assert "was the folder moved?" in problems(check_deployment(folder))[0]
    connection.write_text(text)
    run = folder / "run.toml"
    run.write_text(run.read_text().replace("tiny:model", "tiny:nothing"))
    (one,) = problems(check_deployment(folder))
    assert "run.toml cannot be run" in one


def test_versions():
    wanted = {"fedplt": "0.1.0", "flwr": "1.41.0", "torch": "2.13.0+cpu", "python": "3.11.7"}
    assert {finding.level for finding in versions(wanted, wanted)} == {"ok"}
    here = {"fedplt": "0.2.0", "flwr": "1.42.0", "torch": "2.12.0", "python": "3.12.1"}
    found = list(versions(wanted, here))
    assert [finding.level for finding in found] == ["problem", "problem", "problem", "note"]
    assert found[1].do == "pip install 'flwr==1.41.0'"
    here = {**wanted, "torch": "2.13.0+cu128", "python": "3.11.9"}
    assert [finding.level for finding in versions(wanted, here)] == ["ok", "ok", "note", "note"]


def test_the_times_of_certificates(tmp_path):
    key, address = keys.new_key(), make_address([], 8443)
    ca = keys.make_ca(key, NOW)
    (tmp_path / "ca.crt").write_bytes(keys.pem_certificate(ca))
    server_key = keys.new_key()
    (tmp_path / "server.key").write_bytes(keys.pem_private(server_key))
    certificate = keys.make_server_certificate(server_key, ca, key, address, NOW)
    (tmp_path / "server.pem").write_bytes(keys.pem_certificate(certificate))

    def at(moment: datetime) -> list[Finding]:
        return list(check_certificate(tmp_path, address, now=moment))

    assert {finding.level for finding in at(NOW)} == {"ok"}
    assert "not valid before" in problems(at(NOW - timedelta(days=1)))[0]
    assert "expired on 2028-05-31" in problems(at(NOW + timedelta(days=800)))[0]
    assert [finding.level for finding in at(NOW + timedelta(days=720))].count("note") == 1
    assert "expired" in problems(check_ca(tmp_path / "ca.crt", NOW + timedelta(days=4000)))[0]
    other = make_address(["fl.example.org"], 8443)
    (one,) = problems(check_certificate(tmp_path, other, now=NOW))
    assert "is for 127.0.0.1, localhost, not for fl.example.org" in one
    assert "not the certificate of an authority" in problems(check_ca(tmp_path / "server.pem"))[0]


def test_keys_and_authorities_that_do_not_belong_together(folder, tmp_path):
    (tmp_path / "other").mkdir()
    other = make_deployment(tmp_path / "other", config="")
    shutil.copy(other / "server" / "server.key", folder / "server" / "server.key")
    (one,) = problems(check_deployment(folder))
    assert "is not the key of server.pem" in one
    shutil.copy(other / "server" / "server.pem", folder / "server" / "server.pem")
    (one,) = problems(check_deployment(folder))
    assert "is not signed by" in one


@pytest.mark.parametrize(
    ("seconds", "level"), [(0, "ok"), (3, "ok"), (6, "problem"), (-30, "note"), (-400, "problem")]
)
def test_clocks(seconds, level):
    assert compare_clocks(NOW, NOW + timedelta(seconds=seconds)).level == level


@contextmanager
def server(folder: Path | None, answer: bytes = b""):
    """Answers one connection, with TLS if a server's folder is given."""
    listening = socket.create_server(("127.0.0.1", 0))
    listening.settimeout(20)

    def serve() -> None:
        try:
            connection, _ = listening.accept()
            connection.settimeout(20)
            with connection:
                if folder is not None:
                    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                    context.load_cert_chain(folder / "server.pem", folder / "server.key")
                    connection = context.wrap_socket(connection, server_side=True)
                connection.recv(1000)
                connection.sendall(answer or b"?\r\n\r\n")
                connection.close()
        except OSError:
            pass  # the other side left, as it may

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield listening.getsockname()[1]
    finally:
        thread.join(30)
        listening.close()
    assert not thread.is_alive()


def test_reaching_the_server(folder, tmp_path):
    ca = folder / "server" / "ca.crt"
    late = b"HTTP/1.1 404 Not Found\r\nDate: Sun, 31 Dec 2045 00:00:00 GMT\r\n\r\n"
    with server(folder / "server", late) as port:
        found = list(check_server_reachable("127.0.0.1", port, ca, expected=True))
    assert [finding.level for finding in found] == ["ok", "problem"]
    assert "behind the server's" in found[1].text
    with server(folder / "server") as port:  # no HTTP: nothing is known of its clock
        assert [f.level for f in check_server_reachable("127.0.0.1", port, ca, expected=True)] == [
            "ok"
        ]
    with server(None) as port:
        (one,) = problems(check_server_reachable("127.0.0.1", port, ca, expected=False))
    assert "does not speak TLS" in one
    (tmp_path / "other").mkdir()
    other = make_deployment(tmp_path / "other", config="")
    with server(other / "server") as port:
        (one,) = problems(check_server_reachable("127.0.0.1", port, ca, expected=True))
    assert "a certificate that is refused" in one


def test_a_server_that_says_nothing_is_given_up_in_time(folder, monkeypatch):
    monkeypatch.setattr("fedplt_flower.deployment.check.DEADLINE_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        (one,) = problems(
            check_server_reachable("127.0.0.1", port, folder / "server" / "ca.crt", expected=True)
        )
    assert "does not speak TLS" in one


@pytest.mark.parametrize(
    ("text", "words"),
    [
        *((text, "copy the folder again") for text in ("", "{}", "[]", '{"format": 2}')),
        ('{"format": 2, "nodes": 3}', "copy the folder again"),
        ('{"format": 1}', "another version of fedplt"),
    ],
)
def test_a_damaged_manifest(folder, text, words):
    (folder / "server" / "deployment.json").write_text(text)
    with pytest.raises(RunError, match=words):
        list(check_deployment(folder))


def test_other_folders(folder, tmp_path):
    with pytest.raises(RunError, match="is not a deployment"):
        check_deployment(tmp_path)
    with pytest.raises(RunError, match="has no node 'n4'"):
        check_deployment(folder, "n4")
    with pytest.raises(RunError, match="is the folder of n2, not of n1"):
        check_deployment(folder / "nodes" / "n2", "n1")


def test_a_model_that_was_not_recorded_is_only_noted(folder):
    own = folder / "nodes" / "n2"
    record = json.loads((own / "deployment.json").read_text())
    (own / "deployment.json").write_text(json.dumps({**record, "layers": None}))
    found = list(check_deployment(folder, "n2"))
    assert any("was not recorded" in finding.text for finding in found)
