"""``fedplt advise`` as people use it."""

from __future__ import annotations

import json

import pytest

from tests.support.tiny import CONFIG

HEADER = "name,count,gflops,mbps_down,mbps_up\n"


@pytest.fixture
def files(tmp_path):
    start, end = CONFIG.index("[clients]"), CONFIG.index("[training]")
    (tmp_path / "mine.toml").write_text(CONFIG[:start] + CONFIG[end:])
    devices = tmp_path / "phones.csv"
    devices.write_text(HEADER + "new,3,1,1,1\nold,2,1,0.02,0.02\n")
    return devices, tmp_path / "mine.toml", tmp_path / "out"


def test_a_sentence_tables_and_a_page(fedplt, files, forked_runs):
    devices, config, out = files
    done = fedplt("advise", devices, "--run", config, "--out", out, "--seeds", "1", "--set",
                  "rounds=2", "--target", 0.5)  # fmt: skip
    assert done.returncode == 0, done.stderr
    answer = json.loads((out / "advice.json").read_text())
    first = done.stdout.splitlines()[0]
    assert first.startswith(answer["answer"]) and "may be chance" in first
    for words in ("What each strategy brings", "time to 50.0 %", "What it costs by then", "idle",
                  "Memory of each kind", "What would change the answer", "report: "):  # fmt: skip
        assert words in done.stdout, words
    assert "fedavg-all, seed 1: accuracy" in done.stderr  # progress
    page = (out / "report.html").read_text()
    assert "Answer" in page and "FedPLT, recommended" in page
    assert answer["answer"].split(":")[0] in page


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("name,count,gflops,mbps_down\nnew,3,1,1\n", "the upload bandwidth is missing"),
        (HEADER + "new,3,1,1,-1\n", "is negative"),
        (HEADER + "new,many,1,1,1\n", "not a number of devices"),
        (HEADER, "no devices"),
        ("", "is empty"),
    ],
)
def test_odd_files_are_refused_in_words_and_leave_nothing_behind(table, words, fedplt, files):
    devices, config, out = files
    devices.write_text(table)
    done = fedplt("advise", devices, "--run", config, "--out", out)
    assert done.returncode == 2 and words in done.stderr and "Traceback" not in done.stderr
    assert devices.name in done.stderr and not out.exists()


def test_options_that_do_not_go_together(fedplt, files):
    devices, config, _ = files
    done = fedplt("advise", devices, "--run", config, "--quick", "--minutes", 5)
    assert done.returncode == 2 and "give one of them" in done.stderr
    done = fedplt("advise", devices, "--run", config, "--rates", "fast")
    assert done.returncode == 2 and "write numbers with commas" in done.stderr
