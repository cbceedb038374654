"""Records as tidy tables, and for TensorBoard."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from fedplt.report.export import export
from fedplt.report.page import read_run
from fedplt.text import Table, csv_text
from tests.support.jobs import blob_job
from tests.support.runs import run_job


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("export") / "run"
    sampling = {"name": "uniform", "num_clients": 2}
    run_job(blob_job(rounds=3, sampling=sampling, diagnostics={"enabled": True}), path)
    return path


def rows_of(path):
    return list(csv.DictReader(path.read_text().splitlines()))


def test_one_row_per_observation(fedplt, folder, tmp_path):
    records = read_run(folder).history.rounds
    tables = {"rounds": 3, "layers": 3 * 2, "clients": 3 * 2}
    for table, number in tables.items():
        path = tmp_path / f"{table}.csv"
        done = fedplt("export", folder, "--table", table, "--out", path)
        assert done.returncode == 0, done.stderr
        rows = rows_of(path)
        assert len(rows) == number
        assert {row["run"] for row in rows} == {"run"}
    rows = rows_of(tmp_path / "rounds.csv")
    assert [float(row["score"]) for row in rows] == [record.score for record in records]
    assert [int(row["total_bytes_up"]) for row in rows] == [r.total.bytes_up for r in records]
    chosen = [int(row["client"]) for row in rows_of(tmp_path / "clients.csv")]
    assert chosen == [client for r in records for client in r.sampling["chosen"]]


def test_parquet(fedplt, folder, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "rounds.parquet"
    assert fedplt("export", folder, folder, "--out", path).returncode == 0
    found = parquet.read_table(path).to_pydict()
    assert found["round"] == [1, 2, 3, 1, 2, 3]
    assert str(parquet.read_schema(path).field("score").type) == "double"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--out", "x.xlsx"], ".csv or .parquet"),
        (["--table", "layer"], "Did you mean 'layers'"),
    ],
)
def test_mistakes_are_told(fedplt, folder, arguments, expected):
    done = fedplt("export", folder, *arguments)
    assert done.returncode == 2 and expected in done.stderr
    assert not Path("x.xlsx").exists()


def test_rounds_are_logged_for_tensorboard(folder, tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from fedplt.report.export import tensorboard_rounds

    records = read_run(folder).history.rounds
    with tensorboard_rounds(tmp_path / "log") as log:
        assert not (tmp_path / "log").exists()  # a run makes its own folder first
        for record in records:
            log(record)
    events = EventAccumulator(str(tmp_path / "log"))
    events.Reload()
    scores = events.Scalars("validation/score")
    assert [event.step for event in scores] == [1, 2, 3]
    assert [event.value for event in scores] == pytest.approx([r.score for r in records])
    assert "effective_perturbation/0" in events.Tags()["scalars"]


def test_texts_are_no_formulas_in_a_spreadsheet(folder, tmp_path):
    run = read_run(folder)
    rejected = {"1": "=HYPERLINK(1)", "2": "@SUM(1)", "3": "-1+A1", "4": "plain"}
    records = [replace(run.history.rounds[0], rejected=rejected)]
    run = replace(run, history=replace(run.history, rounds=records))
    export([run], "clients", tmp_path / "clients.csv")
    refused = {row["client"]: row["refused"] for row in rows_of(tmp_path / "clients.csv")}
    assert [refused[k] for k in rejected] == ["'=HYPERLINK(1)", "'@SUM(1)", "'-1+A1", "plain"]
    table = Table("name", "title", ("a",), (("=1",), ("-",), ("-0.5 ± 0.1",)))
    assert csv_text(table).splitlines() == ["a", "'=1", "-", "-0.5 ± 0.1"]
