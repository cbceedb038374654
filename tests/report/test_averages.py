"""Runs with ``server.average`` have two scores per round: reports show the shipped model's."""

from __future__ import annotations

import csv

import pytest

from fedplt.federation import load_history
from fedplt.report.export import export, scalars
from fedplt.report.page import content_of, page_html, read_groups, read_run
from fedplt.report.page.read_runs import ShownRun
from fedplt.report.page.score_charts import (
    comparison_table,
    curve_alt,
    curves_of,
    differences_chart,
)
from fedplt.report.page.summary import headline
from tests.support.averaged import history
from tests.support.jobs import blob_job
from tests.support.runs import run_job

NONE = [None, None]
PRESET = "It has all settings of method.preset"


def shown(scores, averages, ship=True, seed=1):
    return ShownRun(f"run{seed}", seed, history(scores, averages, ship), len(scores))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Evaluated in every second round: the first record has no scores."""
    path = tmp_path_factory.mktemp("averages") / "run"
    average = {"average": {"decay": 0.9, "ship": True}}
    run_job(blob_job(rounds=4, server=average, evaluation={"every": 2}), path)
    return path


@pytest.mark.parametrize(
    ("ship", "model", "last", "mean"),
    [
        (True, "average of models", "90.00 %", "85.00 %"),
        (False, "last model", "60.00 %", "50.00 %"),
    ],
)
def test_the_headline_is_about_the_shipped_model(ship, model, last, mean):
    numbers = {name: text for text, name in headline({"a": [shown([0.4, 0.6], [0.8, 0.9], ship)]})}
    assert numbers[f"accuracy, last evaluation ({model})"] == last
    assert numbers[f"accuracy, mean of the last 2 evaluations ({model})"] == mean
    assert numbers[f"accuracy on the test set ({model})"] == "90.00 %"


def test_seeds_may_ship_different_models():
    runs = [
        shown([0.4, 0.6], [0.8, 0.9], "better", 1),
        shown([0.4, 0.6], [0.1, 0.2], "better", 2),
    ]
    names = [name for _, name in headline({"a": runs})]
    assert "accuracy, last evaluation (average of models or last model)" in names


def test_both_curves_are_drawn():
    groups = {"a": [shown([0.4, 0.6], [0.8, 0.9])]}
    last, average = curves_of(groups)["groups"]
    assert (last["label"], average["label"]) == ("last model", "average of models")
    assert last["runs"][0]["y"]["score"] == [0.4, 0.6]
    assert average["runs"][0]["y"]["score"] == [0.8, 0.9]
    assert average["runs"][0]["y"]["loss"] == [0.2, 0.2]
    assert average["runs"][0]["y"]["train_loss"] == NONE  # an average is not trained
    assert curves_of(groups)["target"] == 0.76  # a tenth below the mean of the shipped model
    alt = "last model from 40.0 % to 60.0 %; average of models from 80.0 % to 90.0 %."
    assert curve_alt(groups) == f"accuracy by round: {alt}"
    plain = {"b": [shown([0.5, 0.5], NONE, False)]}
    labels = [each["label"] for each in curves_of(groups | plain)["groups"]]
    assert labels == ["a, last model", "a, average of models", "b"]


def test_runs_are_compared_by_their_shipped_models():
    groups = {
        "plain": [shown([0.5, 0.5], NONE, False)],
        "averaged": [shown([0.4, 0.6], [0.8, 0.9])],
    }
    table = comparison_table(groups)
    assert [row[2:4] for row in table.rows] == [("50.00", "50.00"), ("90.00", "85.00")]
    assert table.notes[1:] == ("averaged: scores of the average of models.",)
    assert differences_chart(groups).traces[0]["x"] == [pytest.approx(35)]
    assert headline(groups)[0] == (
        "85.00 %", "best accuracy, mean of the last 10 evaluations: averaged",
    )  # fmt: skip


def test_the_average_is_exported(folder, tmp_path):
    run_job(blob_job(rounds=2), tmp_path / "plain")
    runs = [read_run(path) for path in (tmp_path / "plain", folder)]
    assert export(runs, "rounds", tmp_path / "rounds.csv") == 6
    rows = list(csv.DictReader((tmp_path / "rounds.csv").read_text().splitlines()))
    records = load_history(folder).rounds
    expected = [record.average_score for record in records]
    assert expected[0] is None and expected[1] is not None
    assert [row["average_score"] for row in rows] == [
        "" if score is None else str(score) for score in [None, None, *expected]
    ]
    found = scalars(records[1])
    assert found["validation/average_score"] == records[1].average_score
    assert found["validation/average_loss"] == records[1].average_loss
    assert not [name for name in scalars(runs[0].history.rounds[0]) if "average" in name]


def test_parquet_has_the_average_too(folder, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    export([read_run(folder)], "rounds", tmp_path / "rounds.parquet")
    found = parquet.read_table(tmp_path / "rounds.parquet").to_pydict()["average_score"]
    assert found == [record.average_score for record in load_history(folder).rounds]


def test_the_list_of_runs_names_both_scores(folder):
    watch = pytest.importorskip("fedplt.report.watch")
    record = load_history(folder).rounds[-1]
    text = f"{100 * record.score:.2f} %, average {100 * record.average_score:.2f} %"
    assert watch.listed_run("run", folder).score == text


def test_a_picture_of_curves_says_which_model_it_shows(fedplt, folder, tmp_path):
    done = fedplt("curve", folder, "--picture", tmp_path / "curve.svg")
    assert done.returncode == 0, done.stderr
    text = f"{100 * load_history(folder).of_average.final_score():.2f} % (one run; average of model"
    assert text in " ".join(done.stdout.split())


@pytest.mark.parametrize(
    ("method", "changes", "is_named"),
    [
        ({"name": "fedplt", "preset": "recommended"}, {}, True),
        ({"name": "fedplt", "preset": "recommended"}, {"messages": {"up": "float16"}}, False),
        ({"name": "fedplt"}, {}, False),
    ],
)
def test_the_page_names_the_preset(method, changes, is_named, tmp_path):
    run_job(blob_job(rounds=1, method=method, **changes), tmp_path / "run")
    content = content_of("a run", read_groups([tmp_path / "run"]))
    (settings,) = [part for part in content.details[0].sections if part.title == "Settings"]
    assert any(PRESET in text for text in settings.texts) is is_named
    assert (PRESET in page_html(content)) is is_named
