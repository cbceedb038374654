"""``python -m reproduction`` as people use it; nothing is trained here."""

from __future__ import annotations

import pytest

from reproduction import command as verb
from tests.support.recorded import fake_recorded, flat


def test_the_list_fits_a_terminal(reproduction, tmp_path):
    fake_recorded("exp1", "fashion-fcn", {"fedavg": flat([0.5, 0.6])}).save(
        tmp_path / "results" / "exp1" / "fashion-fcn" / "runs.json"
    )
    done = reproduction("list", "--out", tmp_path, "--seeds", "1,2")
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if str(tmp_path) not in line]
    assert max(map(len, lines)) <= 100
    row = next(line for line in lines if line.startswith("exp1") and "fashion-fcn" in line)
    assert "2 of 12" in row and "about" in row
    assert any("feddrop-unscaled" in line for line in lines)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["exp4"], "No such command 'exp4'"),
        (["exp1", "--pair", "mnist"], "exp1 has fashion-fcn, cifar-fcn, cifar-resnet"),
        (["exp2", "--methods", "fedplt,fedprox"], "exp2 has no such contestant"),
        (["exp1", "--seeds", "one"], "write whole numbers with commas"),
        (["exp1", "--seeds=-1"], "seeds are 0 or more"),
        (["tables"], "has no runs.json of these experiments"),
        (["tables", "exp9"], "there is no experiment 'exp9'"),
    ],
)
def test_mistakes_are_said_in_words(reproduction, tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    done = reproduction(*arguments)
    assert done.returncode == 2
    assert said in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["exp2", "--quick"], ("fashion-fcn", 7, [1, 2], 30, "runs/reproduce-quick")),
        (["exp1", "--quick", "--seeds", "5"], ("fashion-fcn", 6, [5], 30, "runs/reproduce-quick")),
        (["exp3", "--quick"], ("cifar-fcn", 16, [1, 2], 30, "runs/reproduce-quick")),
        (["exp2", "--pair", "cifar-fcn", "--methods", "fedavg, fedplt"],
         ("cifar-fcn", 2, [1, 2, 3], None, "runs/reproduce")),
    ],
)  # fmt: skip
def test_what_is_run(reproduction, monkeypatch, arguments, expected):
    blocks = []

    def run(block, place, seeds, rounds, processes):
        where = str(place.out)
        blocks.append((block.pair, len(block.contestants), seeds, rounds, where))
        return 0

    monkeypatch.setattr(verb, "_run", run)
    done = reproduction(*arguments)
    assert done.returncode == 0, done.stderr
    assert blocks == [expected]


def test_tables_are_printed_and_written_in_the_end(reproduction, tmp_path):
    """Without run folders what is recorded stays, and nothing is run."""
    folder = tmp_path / "results" / "exp1" / "fashion-fcn"
    runs = {"fedavg": flat([0.5, 0.6], 12), "balanced": flat([0.51, 0.62], 12, trained=0.29)}
    fake_recorded("exp1", "fashion-fcn", runs).save(folder / "runs.json")
    before = (folder / "runs.json").read_bytes()
    command = ("exp1", "--pair", "fashion-fcn", "--no-train", "--out", tmp_path)
    done = reproduction(*command)
    assert done.returncode == 0, done.stderr
    assert "12 rounds, seeds 1, 2" in done.stdout
    assert "+1.50 [-4.85, +7.85]" in done.stdout  # 1 and 2 points: 1.5 +- 12.706 * 0.5
    assert {path.name for path in folder.iterdir()} == {
        "runs.json", "table.md", "table.tex", "accuracy.png", "accuracy.svg",
    }  # fmt: skip
    assert (folder / "runs.json").read_bytes() == before
    assert reproduction("exp2", "--no-train", "--out", tmp_path).returncode == 1
