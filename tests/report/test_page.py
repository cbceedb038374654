"""The content of the page: what is shown of which runs; files are data, never code."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from html import unescape

import numpy as np
import pytest

from fedplt import History, RunError, make_plan
from fedplt.comparison import default_target
from fedplt.configuration.config_file import parse_config
from fedplt.federation.round_costs import DeviceTimes
from fedplt.federation.run_folder.folder import RunFolder
from fedplt.federation.run_folder.records import RoundRecord, Totals
from fedplt.federation.run_folder.sealed import seal_json
from fedplt.fleet import RoundTime
from fedplt.report.page import content_of, page_html, read_groups, read_run
from fedplt.report.page.client_charts import away_table, worst_table
from fedplt.report.page.device_charts import device_chart
from fedplt.report.page.html_page import page_data
from fedplt.report.page.plan_charts import plan_charts
from fedplt.report.page.read_runs import ShownRun
from fedplt.report.page.score_charts import comparison_table, curves_of, differences_chart
from fedplt.report.page.summary import headline
from fedplt.text import csv_text
from tests.support.jobs import blob_job, created
from tests.support.runs import run_job


def shown(scores, seed=1, name="run", **more):
    """A run that is made up of its scores."""
    records = [
        RoundRecord(i, 1, 1.0, Totals(), Totals(bytes_up=100 * i), 0.5, score=score, loss=0.1)
        for i, score in enumerate(scores, start=1)
    ]
    return ShownRun(name, seed, History(records), len(records), **more)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run with everything that can be shown."""
    path = tmp_path_factory.mktemp("page") / "run"
    devices = path.parent / "devices.csv"
    devices.write_text("name,count,mflops,kbps_down,kbps_up\nfast,1,10,100,100\nslow,4,0.5,50,10\n")
    job = blob_job(
        rounds=3, fleet={"devices": str(devices), "dropout": 0.3, "deadline_seconds": 9},
        sampling={"name": "ocs", "budget": 2.0}, diagnostics={"enabled": True},
        evaluation={"per_client": True},
    )  # fmt: skip
    run_job(job, path)
    return path


def test_all_parts_of_a_run(folder):
    content = content_of("a run", read_groups([folder]))
    (details,) = content.details
    assert [part.title for part in details.sections] == [
        "Who trains what", "Time by device", "Clients", "Client sampling", "How the model moved",
        "Costs", "Settings",
    ]  # fmt: skip
    charts = {chart.name: chart for part in details.sections for chart in part.charts}
    assert charts.keys() == {
        "plan", "coverage", "contributions", "devices", "distribution", "spread", "probabilities",
        "budget", "update_magnitude", "effective_perturbation", "mean_age",
    }  # fmt: skip
    assert all(chart.alt for chart in charts.values())
    run = read_run(folder)
    shares = np.array(charts["plan"].traces[0]["z"])
    sizes = [layer.sublayer_size for layer in run.plan.layers for _ in range(layer.num_sublayers)]
    achieved = shares @ np.array(sizes) / run.plan.layers.size
    assert achieved == pytest.approx(run.plan.achieved_ratios, abs=1e-3)
    bars = {trace["name"]: trace["x"] for trace in charts["devices"].traces}
    totals = np.sum(list(bars.values()), axis=0)
    assert totals[::2] == pytest.approx(totals[0])  # with idle time, all take as long
    assert bars["idle"][0] == 0  # the slowest device waits for nobody
    assert "deadline" not in charts["devices"].note
    fleet = run.config.fleet.model_copy(update={"deadline_seconds": 0.2})
    config = run.config.model_copy(update={"fleet": fleet})
    assert (
        "4 clients miss the deadline of 0.2 s: slow."
        in device_chart(dataclasses.replace(run, config=config)).note
    )
    away = away_table(run)
    assert away is None or "(slow)" in str(away) or "(fast)" in str(away)
    assert "client" in str(worst_table(run).rows)
    assert content.checklist.notes[0].startswith("Machine: ")
    assert "torch" in content.checklist.notes[1]


def test_the_page_is_whole_and_fetches_nothing(folder):
    html = unescape(page_html(content_of("a run", read_groups([folder]))))
    assert "plotly.js (cartesian" in html
    assert not re.search(r"<(script|link|img)[^>]+(src|href)=['\"]?http", html)
    assert "default-src 'none'" in html and "connect-src 'none'" in html
    data = json.loads(re.search(r'id="data">(.*?)</script>', html, re.DOTALL)[1])
    assert data["curves"]["metric"]["name"] == "accuracy"
    assert "run0-plan" in data["charts"]


def test_the_last_score_and_the_mean_of_the_last_ten_are_named():
    """A run that ended at 100 % is not called 25 %."""
    numbers = {name: text for text, name in headline({"a": [shown([0.0] * 5 + [0.75, 1.0])]})}
    assert numbers["accuracy, last evaluation"] == "100.00 %"
    assert numbers["accuracy, mean of the last 7 evaluations"] == "25.00 %"


def test_seeds_are_grouped_and_groups_compared():
    groups = {
        "a": [shown([0.2, 0.5], 1), shown([0.2, 0.6], 2)],
        "b": [shown([0.4, 0.6], 1), shown([0.4, 0.9], 2), shown([0.1, 0.1], 3)],
    }
    chart = differences_chart(groups)
    # Final: the mean of both rounds. b - a is 0.15 and 0.25; seed 3 has no partner.
    assert chart.traces[0]["x"] == [pytest.approx(20)]
    assert "+20.00 [-43.53, +83.53] (2 seeds)" in chart.note
    table = comparison_table(groups)
    assert table.rows[0][:4] == ("a", "1, 2", "55.00 ± 7.07", "37.50 ± 3.54")
    assert csv_text(table).startswith("run,seeds,last accuracy (%),")
    one, other = (shown([0.5], 1, sessions=[{"processor": name}]) for name in ("one", "other"))
    assert differences_chart({"a": [one], "b": [other]}) is None  # not on the same processor
    columns = curves_of(groups)
    assert [axis["key"] for axis in columns["axes"]] == ["round", "bytes_up", "bytes", "measured"]
    assert page_data(content_of("t", groups))["copies"]["comparison-latex"].count("toprule") == 1


def test_thousands_of_clients_are_grouped(fcn):
    plan = make_plan(fcn, [1.0] * 1000 + [0.3] * 3000 + [0.05] * 6000)
    picture, cover, vectors = plan_charts(shown([0.5], plan=plan))
    rows = picture.traces[0]["y"]
    assert len(rows) == 60 and rows[0].startswith("167 clients")
    assert sum(int(row.split()[0]) for row in rows) == 10_000
    shares = np.array(picture.traces[0]["z"])
    assert shares.shape[1] <= 480 and (shares[:6] == 1).all()
    assert "10000 clients in 60 groups" in picture.note
    assert len(cover.traces[0]["y"]) == shares.shape[1]
    assert len(vectors.traces) == len(fcn)
    sums = np.sum([trace["x"] for trace in vectors.traces], axis=0)
    assert sums == pytest.approx(1, abs=0.01)


def test_the_page_and_a_comparison_have_the_same_default_target():
    groups = {"a": [shown([0.5, 0.87])], "b": [shown([0.3])]}
    finals = [[run.history.final_score() for run in runs] for runs in groups.values()]
    target = default_target(groups["a"][0].history.metric, finals)
    assert curves_of(groups)["target"] == target == 0.61  # whole percent
    assert "61.0 %" in comparison_table(groups).notes[0]


def test_refused_late_and_dropped_clients_have_names():
    time = RoundTime(0, 1, 1, 1, 1)
    run = shown([0.5], devices=[DeviceTimes("<old> phone", [3, 4], 0.1, time, time)])
    record = RoundRecord(
        1, 1, 1.0, Totals(), Totals(), 0.5, score=0.5,
        rejected={"4": "not finite"}, dropped=[3], late=[0],
    )  # fmt: skip
    run = ShownRun("run", 1, History([record]), 1, devices=run.devices)
    table = away_table(run)
    assert table.rows[0] == ("client 4 (<old> phone)", "1", "-", "-", "round 1: not finite")
    assert {row[0] for row in table.rows[1:]} == {"client 3 (<old> phone)", "client 0"}


def test_no_code_that_a_file_names_is_run(folder, tmp_path, monkeypatch):
    """A run from elsewhere may name any module as its method, model or data."""
    path = tmp_path / "foreign"
    path.mkdir()
    for file in folder.iterdir():
        if file.suffix in (".toml", ".json", ".jsonl"):
            (path / file.name).write_bytes(file.read_bytes())
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "evil_module.py").write_text("raise SystemExit('it was imported')")
    opened, evil = RunFolder.open(path), {"name": "evil_module:Method"}
    plan = {**opened.plan().to_json(), "method": evil}
    (path / "plan.json").write_text(seal_json(plan, opened.run, "plan"))
    values = opened.config().model_dump(exclude_none=True, mode="json")
    opened.write_config(parse_config({**values, "method": evil}))
    html = page_html(content_of("foreign", read_groups([path])))
    assert "evil_module" not in sys.modules
    assert "Who trains what is not shown: " in html


def test_nothing_to_report_is_said(tmp_path):
    job = blob_job()
    created(tmp_path / "run", job).unlock()
    with pytest.raises(RunError, match="no evaluated round yet"):
        read_groups([tmp_path / "run"])


def test_a_private_run_says_where_its_key_is(tmp_path):
    job = blob_job(
        rounds=1, privacy={"clip": 0.5, "noise_multiplier": 1.0}, server={"weights": "equal"}
    )
    run_job(job, tmp_path / "run")
    content = content_of("a run", read_groups([tmp_path / "run"]))
    (part,) = [part for part in content.details[0].sections if part.title == "Privacy"]
    assert "differential privacy after 1 round" in part.texts[0]
    assert "mode 0600" in part.texts[1]
