"""The files that docs/own_data.md shows are written and used as it says."""

from __future__ import annotations

import io
import re
import sys
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import pytest

from fedplt import load_history

PAGE = Path("docs/own_data.md").read_text()
FILES = {
    name: code
    for kind in ("py", "toml")
    for name, code in re.findall(rf"```{kind}\n# (\S+)\n(.*?)```", PAGE, re.DOTALL)
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name, code in FILES.items():
        (tmp_path / name).write_text(code)
        monkeypatch.delitem(sys.modules, name.partition(".")[0], raising=False)
    random = np.random.default_rng(0)
    table = np.hstack([random.normal(size=(100, 3)), random.normal(size=(100, 1)) + 3])
    np.savetxt(tmp_path / "houses.csv", table, delimiter=",", header="a,b,c,price")
    for client, number in (("a", 12), ("b", 30)):
        (tmp_path / "clients" / client).mkdir(parents=True)
        x, y = random.normal(size=(number, 3)).astype(np.float32), np.arange(number) % 1
        np.savez(tmp_path / "clients" / client / "train.npz", x=x, y=y)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_the_page(fedplt, folder, monkeypatch):
    done = fedplt("run", "houses.toml")
    assert done.returncode == 0, done.stderr
    run = folder / "runs" / "houses-seed0"
    assert load_history(run).metric.name == "RMSE"
    with redirect_stdout(io.StringIO()) as shown:
        exec(FILES["after.py"], {})  # noqa: S102 (our own page)
    assert re.match(r"RMSE [\d.]+ 81\n", shown.getvalue())
    done = fedplt("evaluate", run, "my_data:load")
    assert re.match(r"RMSE [\d.]+, loss [\d.]+ \(20 examples\)\n", done.stdout), done.stderr
    # From anywhere: the run remembers where its modules are.
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "houses.csv").write_text((folder / "houses.csv").read_text())
    monkeypatch.chdir(elsewhere)
    for name in ("my_data", "my_models"):
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry != str(folder)])
    done = fedplt("resume", run, "--set", "rounds=6")
    assert done.returncode == 0, done.stderr
    assert fedplt("report", run).returncode == 0


def test_a_folder_per_client(fedplt, folder):
    namespace: dict = {}
    exec(FILES["my_folders.py"], namespace)  # noqa: S102
    namespace["write_split"]()
    text = (folder / "houses.toml").read_text().replace("my_data:load", "my_folders:load")
    text = text.replace('split = "iid"', 'split = "given"\nsplit_file = "split.json"')
    text = text.replace('name = "regression"', 'name = "classification"')
    text = text.replace("num_clients = 4", "num_clients = 2")
    (folder / "folders.toml").write_text(text)
    done = fedplt("run", folder / "folders.toml", "--set", "rounds=1")
    assert done.returncode == 0, done.stderr
