"""Which model a run ends with (``server.average.ship``), and the scores of that model."""

from __future__ import annotations

import json

import pytest

from fedplt.federation import RunFolder, load_history
from fedplt.federation.run_folder.sealed import seal_json
from tests.support.averaged import history
from tests.support.jobs import blob_job
from tests.support.runs import run_job

AVERAGE = ["final_model", "average_score_last", "average_score_last_10"]


@pytest.mark.parametrize(
    ("ship", "averages", "is_average"),
    [
        (True, [0.1, 0.2], True),
        (False, [0.8, 0.9], False),
        ("better", [0.1, 0.2], False),
        ("better", [0.8, 0.9], True),
    ],
)
def test_the_shipped_model_is_scored(ship, averages, is_average):
    found = history([0.4, 0.6], averages, ship)
    shipped, scores = found.shipped, averages if is_average else [0.4, 0.6]
    assert found.ends_with_average is is_average
    assert found.final_model == ("average of models" if is_average else "last model")
    assert shipped.scores == scores and shipped.last_score == scores[-1]
    assert shipped.final_score() == pytest.approx(sum(scores) / 2)
    assert shipped.test_score == 0.9 and shipped.rounds[0].loss == (0.2 if is_average else 0.1)
    assert shipped.shipped.scores == scores  # of what is shipped, nothing more is shipped
    assert found.scores == [0.4, 0.6] and found.of_average.scores == averages
    assert f"accuracy of the {found.final_model} {100 * scores[-1]:.1f} %" in repr(found)


def test_a_run_without_averages_has_one_model():
    found = history([0.4, 0.6], [None, None])
    assert found.final_model == "" and found.shipped is found
    assert not set(AVERAGE) & set(found.final_numbers())
    assert not any("average" in key for key in found.rows()[0])
    assert repr(found) == "<History: 2 rounds, last accuracy 60.0 % (mean of the last 2: 50.0 %)>"


def test_all_rows_have_the_columns_of_the_average():
    """Also those of rounds that were not evaluated: a table has the columns of its first row."""
    first, second = history([None, 0.6], [None, 0.7]).rows()
    assert first.keys() == second.keys() and first["average_score"] is None
    assert (second["average_score"], second["average_loss"]) == (0.7, 0.2)


@pytest.mark.parametrize("ship", [True, False, "better"])
def test_a_folder_says_which_model_it_has(ship, tmp_path):
    job = blob_job(rounds=3, server={"average": {"decay": 0.9, "ship": ship}})
    run_job(job, tmp_path / "run")
    found, result = load_history(tmp_path / "run"), (tmp_path / "run" / "result.json")
    assert found.ends_with_average == (tmp_path / "run" / "last.safetensors").exists()
    values = json.loads(result.read_text())
    assert values["score_last"] == found.last_score and values["score_last_10"] == (
        found.final_score()
    )
    assert [values[key] for key in AVERAGE] == [
        found.final_model, found.of_average.last_score, found.of_average.final_score(),
    ]  # fmt: skip
    folder = RunFolder.open(tmp_path / "run")
    before = {key: value for key, value in values.items() if key not in (*AVERAGE, "seal")}
    result.write_text(seal_json(before, folder.run, "result"))  # of an earlier version
    assert load_history(folder.path).final_model == found.final_model
    other = {"average of models": "last model"}.get(found.final_model, "average of models")
    result.write_text(seal_json({**before, "final_model": other}, folder.run, "result"))
    assert load_history(folder.path).final_model == other  # although its records say otherwise
