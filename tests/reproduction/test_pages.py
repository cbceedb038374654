"""Tables, figures and the page of claims: from runs.json alone, the same bytes every time.

``golden_runs.json`` has small runs made up by hand, ``golden_tables.*`` what must be written for
them. Where tables change on purpose: ``python -m tests.reproduction.test_pages`` writes them anew.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

import pytest

from fedplt import RunError
from fedplt.text import Table, latex, markdown, plain
from reproduction.pages import BEGIN, END, page_of, replace_generated, write_claims, write_tables
from reproduction.tables import load_results
from tests.support.recorded import fake_recorded, flat

HERE = Path(__file__).parent
FIGURES = {
    "exp1": ["accuracy"],
    "exp2": ["accuracy"],
    "exp3": ["accuracy-low", "accuracy-moderate"],
    "relu-logits": ["accuracy"],
    "input-scaling": ["accuracy"],
    "study": ["accuracy", "model", "layers"],
}


def golden_runs() -> dict[str, dict]:
    """What ``runs.json`` holds, by ``experiment/pair``."""
    return json.loads((HERE / "golden_runs.json").read_text())


def write_golden(folder: Path) -> None:
    """The recorded runs, and a page with a place for claims."""
    for name, runs in golden_runs().items():
        (folder / name).mkdir(parents=True)
        (folder / name / "runs.json").write_text(json.dumps(runs))
    (folder / "claims.md").write_text(f"# Claims\n\n{BEGIN}\nold\n{END}\n")


def write_texts(folder: Path) -> dict[str, str]:
    """All tables and the claims of a results folder, by ending."""
    results = load_results(folder)
    for key in results:
        page = page_of(results, *key)
        write_tables(folder.joinpath(*key), page)
        assert page.pictures == FIGURES[key[0]]
    write_claims(folder / "claims.md", folder, results)
    return {
        ending: "\n".join(path.read_text() for path in sorted(folder.rglob(f"*.{ending}")))
        for ending in ("md", "tex")
    }


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_tables_and_claims_are_these_bytes(tmp_path):
    write_golden(tmp_path)
    for ending, text in write_texts(tmp_path).items():
        assert text == (HERE / f"golden_tables.{ending}").read_text()


@pytest.mark.slow
def test_what_make_results_writes_is_the_same_every_time(reproduction, tmp_path):
    write_golden(tmp_path)
    for path in tmp_path.iterdir():
        if path.is_dir() and path.name != "study":  # figures take their time
            shutil.rmtree(path)
    before = contents(tmp_path)
    found = []
    for _ in range(2):
        page = ("--page", tmp_path / "claims.md")
        done = reproduction("tables", "--results", tmp_path, *page)
        assert done.returncode == 0, done.stderr
        found.append(contents(tmp_path))
    first, second = found
    assert first == second
    assert first["study/fashion-fcn/runs.json"] == before["study/fashion-fcn/runs.json"]
    drawn = {name: first[name] for name in first if name.endswith((".png", ".svg"))}
    assert {Path(name).stem for name in drawn} == set(FIGURES["study"])
    for content in drawn.values():
        assert b"atplotlib v" not in content and b"dc:date" not in content


@pytest.fixture
def results(tmp_path):
    write_golden(tmp_path)
    return load_results(tmp_path)


def test_a_diverged_run_is_named_and_in_no_mean(results):
    table = page_of(results, "exp2", "cifar-fcn").tables[0]
    assert any("FedDrop, seed 1: diverged after 4 rounds" in note for note in table.notes)
    assert any(
        "updates refused because they were not finite: 77 (seed 2)" in n for n in table.notes
    )
    row = next(row for row in table.rows if row[0] == "FedDrop†")
    assert row[2].endswith("(1 diverged)")
    gone = fake_recorded(
        "exp2", "cifar-fcn", {"feddrop": flat([0.1, 0.2], 9, diverged="why"), "fedavg": flat([0.5])}
    )
    table, budgets = page_of({("exp2", "cifar-fcn"): gone}, "exp2", "cifar-fcn").tables
    cells = next(row for row in table.rows if row[0] == "FedDrop")
    assert cells[2:4] == ("diverged", "diverged")
    assert budgets.rows[1][1] == "diverged"
    assert any(note.startswith("Not run yet: FedPLT; FedPMT") for note in table.notes)


def test_predictions_by_class_are_in_the_table_of_their_experiment(results, tmp_path):
    folder = tmp_path / "relu-logits" / "fashion-fcn"
    run = {"accuracy": 0.663, "counts": [2000, *[1000] * 8, 0], "without_logit": 950}
    (folder / "predictions.json").write_text(json.dumps({"fedavg-relu-seed3": run}))
    write_tables(folder, page_of(results, "relu-logits", "fashion-fcn"))
    row = next(line for line in (folder / "table.md").read_text().splitlines() if "2,000" in line)
    assert row.startswith("| FedAvg, ReLU on the logits | 3 | 66.3 | 2,000 |")
    assert row.endswith("| 0 | 950 |")


def test_every_table_states_rounds_and_seeds(results):
    for key in results:
        for table in page_of(results, *key).tables:
            if "configurations" not in table.name:  # nothing is run for these
                assert "rounds, seeds 1, 2" in table.title


def test_only_diverged_runs_give_tables_without_figures(tmp_path):
    gone = fake_recorded("exp1", "fashion-fcn", {"fedavg": flat([0.1], 5, diverged="why")})
    page = page_of({("exp1", "fashion-fcn"): gone}, "exp1", "fashion-fcn")
    assert page.pictures == []
    write_tables(tmp_path, page)
    assert "no run came to its end" in (tmp_path / "table.md").read_text()


def test_rendering():
    table = Table("t", "A 5 % title", ("a_b", "c|d"), (("x", "-1.5 ± 0.2"), ("y", "-")), ("Note.",))
    assert markdown(table).splitlines()[2:6] == [
        "| a_b | c\\|d |", "| --- | ---: |", "| x | -1.5 ± 0.2 |", "| y | - |",
    ]  # fmt: skip
    assert r"a\_b & c|d \\" in latex(table)
    assert r"x & $-$1.5 $\pm$ 0.2 \\" in latex(table)
    assert r"\caption{A 5 \% title}" in latex(table)
    assert plain(table).splitlines()[0] == "A 5 % title"


def test_a_page_without_a_place_is_refused(tmp_path):
    (tmp_path / "page.md").write_text("# Nothing\n")
    with pytest.raises(RunError, match="lacks the marker lines"):
        replace_generated(tmp_path / "page.md", "text")


def test_results_in_the_wrong_folder_are_refused(tmp_path):
    fake_recorded("exp1", "fashion-fcn", {"fedavg": flat([0.5], 2)}).save(
        tmp_path / "exp2" / "fashion-fcn" / "runs.json"
    )
    with pytest.raises(RunError, match="belongs to exp1 / fashion-fcn"):
        load_results(tmp_path)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        write_golden(Path(scratch))
        for name, written in write_texts(Path(scratch)).items():
            (HERE / f"golden_tables.{name}").write_text(written)
