"""The server of the live page: read-only, for this machine, for known names."""

from __future__ import annotations

import http.client
import threading
import time

import pytest

from fedplt.engines.start import run_job
from fedplt.report.watch import make_server, watch_app
from tests.support.jobs import blob_job


@pytest.fixture(scope="module")
def port(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    run_job(blob_job(rounds=2), folder / "group" / "a <b>run")
    (folder / "broken").mkdir()
    for name in ("config.toml", "plan.json"):
        (folder / "broken" / name).write_text("nonsense")
    (folder / "secret.json").write_text("secret")
    server = make_server(watch_app(folder))
    socket = server.config.bind_socket()
    thread = threading.Thread(target=server.run, args=([socket],), daemon=True)
    thread.start()
    deadline = time.monotonic() + 60
    while not server.started:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    yield socket.getsockname()[1]
    server.should_exit = True
    thread.join(10)


@pytest.fixture
def ask(port):
    def ask(path, method="GET", **headers):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer, text

    return ask


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
