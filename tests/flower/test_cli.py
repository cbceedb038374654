"""``fedplt deploy`` as people use it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.deployments import CONFIG, NODES

pytestmark = pytest.mark.slow


def files(tmp_path, nodes: str = NODES, config: str = CONFIG):
    (tmp_path / "nodes.csv").write_text(nodes)
    (tmp_path / "run.toml").write_text(config)
    return ("--nodes", tmp_path / "nodes.csv", "--config", tmp_path / "run.toml")


def test_init_and_check(fedplt, tmp_path):
    done = fedplt("deploy", "init", tmp_path / "fl", *files(tmp_path), "--port", 1)
    assert done.returncode == 0, done.stderr
    assert "3 nodes (n1, n2, n3)" in done.stdout
    assert f"{tmp_path / 'fl' / 'README.md'}" in done.stdout
    assert "PRIVATE" not in done.stdout + done.stderr
    done = fedplt("deploy", "check", tmp_path / "fl")
    assert done.returncode == 0, done.stdout
    assert "No problems." in done.stdout
    done = fedplt("deploy", "check", tmp_path / "fl", "--node", "n1")
    assert done.returncode == 1
    assert "PROBLEM nothing answers at 127.0.0.1:1" in done.stdout
    assert "1 problem." in done.stdout
    done = fedplt("deploy", "init", tmp_path / "fl", *files(tmp_path))
    assert done.returncode == 2
    assert "never overwritten" in done.stderr


def test_a_model_that_is_not_here_is_no_obstacle(fedplt, tmp_path):
    config = CONFIG.replace("tests.support.tiny:model", "only_on_the_nodes:model")
    done = fedplt("deploy", "init", tmp_path / "fl", *files(tmp_path, config=config))
    assert done.returncode == 0, done.stderr
    assert "cannot compare" in done.stdout and "only_on_the_nodes" in done.stdout


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ("", "nodes.csv is empty. Its first line names the columns: name,ratio"),
        ("name,ratio\n", "has no nodes"),
        ("name\nn1\n", "node n1 has no ratio: the column 'ratio' is missing"),
        ("name,ratoi\nn1,1\n", "line 1: there is no column 'ratoi'. Did you mean 'ratio'?"),
        ("name,ratio,ratio\nn1,1,1\n", "the column 'ratio' is there twice"),
        ("name,ratio\nn1,1\nn1,0.5\n", "line 3: the name 'n1' is taken already"),
        ("name,ratio\nn1,1\nN1,0.5\n", "line 3: the name 'N1' is taken already"),
        ("name,ratio\n../n1,1\n", "line 2: name: '../n1' cannot name a node"),
        ("name,ratio\n,1\n", "line 2: name: '' cannot name a node"),
        ("name,ratio\nn1,1\n\nn2,25%\n", "line 4: ratio: must be a number, but it is '25%'"),
        ("name,ratio\nn1,\n", "node n1 has no ratio"),
        ("name,ratio\nn1,0\n", "line 2: ratio: must be a number greater than 0, but it is '0'"),
        (
            "name,ratio\nn1,25\n",
            "ratio: must be a number less than or equal to 1, but it is '25'",
        ),
        ("name,ratio\nn1,nan\n", "line 2: ratio: must be a finite number, but it is 'nan'"),
        ("name,ratio\nn1\n", "line 2: 1 values for 2 columns"),
        (
            "name,ratio,learning_rate\nn1,1,-1\n",
            "learning_rate: must be a number greater than 0",
        ),
    ],
)
def test_mistakes_in_the_nodes(fedplt, tmp_path, nodes, expected):
    done = fedplt("deploy", "init", tmp_path / "fl", *files(tmp_path, nodes))
    assert done.returncode == 2
    assert expected in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "fl").exists()


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (CONFIG + "[sampling]\nname = 'uniform'\nnum_clients = 9\n", "there are 3 clients"),
        (CONFIG + "[fleet]\ndevices = 'x.csv'\n", "not from a file of devices"),
        (
            CONFIG + "[[clients.groups]]\nshare = 1.0\nratio = 0.5\nlearning_rate = 0.1\n",
            "clients.groups.0.learning_rate would be lost",
        ),
        (CONFIG + "[trianing]\n", "Did you mean 'training'?"),
    ],
)
def test_mistakes_in_the_configuration(fedplt, tmp_path, config, expected):
    done = fedplt("deploy", "init", tmp_path / "fl", *files(tmp_path, config=config))
    assert done.returncode == 2
    assert expected in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--host", "https://fl.example.org"], "without scheme and port"),
        (["--host", "fl.example.org:8443"], "without scheme and port"),
        (["--port", 0], "from 1 to 65534"),
        (["--nodes", "missing.csv"], "missing.csv cannot be read: No such file"),
        (["--config", "missing.toml"], "missing.toml cannot be read: No such file"),
    ],
)
def test_mistakes(fedplt, tmp_path, arguments, expected):
    done = fedplt("deploy", "init", tmp_path / "fl", *files(tmp_path), *arguments)
    assert done.returncode == 2
    assert expected in done.stderr
    assert "Traceback" not in done.stderr
    assert fedplt("deploy", "check", tmp_path).returncode == 2


def test_without_flower_the_message_says_how_to_get_it(fedplt, tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("fedplt_flower.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    done = fedplt("deploy", "check", tmp_path)
    assert done.returncode == 2
    assert "pip install 'fedplt[flower]'" in done.stderr


@pytest.mark.slow
def test_the_command_line_does_not_import_flower():
    script = (
        "import sys, fedplt.cli, fedplt_flower; torch = 'torch' in sys.modules\n"
        "import fedplt.engines\n"
        "sys.exit(torch or any(name in sys.modules for name in ('flwr', 'cryptography')))"
    )
    assert subprocess.run([sys.executable, "-c", script], timeout=60).returncode == 0
