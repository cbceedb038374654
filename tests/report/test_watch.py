"""The server of the live page: read-only, for this machine, for known names."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from contextlib import ExitStack, contextmanager
from functools import partial

import pytest

from fedplt.report import watch
from fedplt.report.watch import make_server, watch_app
from tests.support.jobs import blob_job
from tests.support.runs import run_job


@contextmanager
def served(app, host="127.0.0.1"):
    """A running server; gives its port."""
    server = make_server(app, host)
    place = server.config.bind_socket()
    thread = threading.Thread(target=server.run, args=([place],), daemon=True)
    thread.start()
    deadline = time.monotonic() + 60
    while not server.started:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    yield place.getsockname()[1]
    server.should_exit = True
    thread.join(10)


@pytest.fixture(scope="module")
def port(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    run_job(blob_job(rounds=2), folder / "group" / "a <b>run")
    (folder / "broken").mkdir()
    for name in ("config.toml", "plan.json"):
        (folder / "broken" / name).write_text("nonsense")
    (folder / "secret.json").write_text("secret")
    with served(watch_app(folder)) as port:
        yield port


@pytest.fixture
def ask(port):
    return partial(answered, port)


def answered(port, path, method="GET", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer, text


def test_runs_are_listed_and_shown(ask):
    answer, text = ask("/")
    assert answer.status == 200
    assert "/run/group/a%20%3Cb%3Erun" in text and "<b>run" not in text
    assert "2 of 2" in text and "finished" in text
    assert "broken" in text  # with its problem, and the others are listed all the same
    answer, page = ask("/run/group/a%20%3Cb%3Erun")
    assert answer.status == 200 and 'src="/plotly.js"' in page
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
    again, empty = ask("/run/group/a%20%3Cb%3Erun", **{"If-None-Match": answer.headers["ETag"]})
    assert again.status == 304 and not empty
    assert ask("/plotly.js")[0].status == 200
    assert "broken" in ask("/run/broken")[1]


@pytest.mark.parametrize(
    ("path", "method", "host", "status"),
    [
        ("/", "GET", "evil.example", 400),
        ("/", "GET", "localhost", 200),
        ("/", "POST", "localhost", 405),
        ("/run/group/a%20%3Cb%3Erun", "DELETE", "localhost", 405),
        ("/run/../secret.json", "GET", "localhost", 404),
        ("/run/%2e%2e/secret.json", "GET", "localhost", 404),
        ("/run//etc/passwd", "GET", "localhost", 404),
        ("/secret.json", "GET", "localhost", 404),
    ],
)
def test_what_is_refused(ask, path, method, host, status):
    answer, text = ask(path, method, Host=host)
    assert answer.status == status
    assert "root:" not in text and "secret" not in text.replace("secret.json", "")


def test_an_open_address_needs_a_name(fedplt, tmp_path):
    done = fedplt("watch", tmp_path, "--host", "0.0.0.0")
    assert done.returncode == 2 and "--name" in done.stderr
    done = fedplt("watch", tmp_path / "nothing")
    assert done.returncode == 2 and "is not a folder" in done.stderr


@pytest.mark.parametrize(
    ("host", "status"),
    [("[::1]", 200), ("[::1]:80", 200), ("[::2]", 400), ("[::1", 400), ("", 400)],
)
def test_hosts_of_ipv6(ask, host, status):
    assert ask("/", Host=host)[0].status == status


def test_an_address_of_ipv6(tmp_path):
    with served(watch_app(tmp_path, ["::1"]), "::1") as port:
        connection = http.client.HTTPConnection("::1", port, timeout=20)
        connection.request("GET", "/")
        assert connection.getresponse().status == 200
        connection.close()


@pytest.mark.parametrize("slow", ["silent", "half a request", "does not read"])
def test_slow_connections_keep_nobody_out(port, ask, slow):
    sent = {
        "silent": b"",
        "half a request": b"GET / HTTP/1.1\r\nHost: localhost\r\n",
        "does not read": b"GET /plotly.js HTTP/1.1\r\nHost: localhost\r\n\r\n" * 2,
    }[slow]
    with ExitStack() as stack:
        for _ in range(3 * watch.MAX_CONNECTIONS):
            one = stack.enter_context(socket.create_connection(("127.0.0.1", port), 20))
            one.sendall(sent)
        for _ in range(3):
            assert ask("/")[0].status == 200


def test_a_slow_connection_ends(port, monkeypatch):
    monkeypatch.setattr(watch, "REQUEST_SECONDS", 0.5)
    with socket.create_connection(("127.0.0.1", port), 20) as one:
        one.sendall(b"GET / HTTP/1.1\r\n")
        assert one.recv(100) == b""


@pytest.mark.filterwarnings("ignore:.*rounds.jsonl has no record")
@pytest.mark.parametrize("name", ["more.json", "sessions.json", "result.json", "rounds.jsonl"])
def test_links_to_nowhere_in_a_run_folder_are_no_server_error(tmp_path, name):
    run_job(blob_job(rounds=1), tmp_path / "run")
    with served(watch_app(tmp_path)) as port:
        for target in ("nowhere", name):  # the second link leads to itself
            (tmp_path / "run" / name).unlink(missing_ok=True)
            (tmp_path / "run" / name).symlink_to(target)
            assert answered(port, "/")[0].status == answered(port, "/run/run")[0].status == 200
