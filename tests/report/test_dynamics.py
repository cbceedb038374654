"""Sampling and diagnostics in pictures and on the page."""

from __future__ import annotations

import re

import pytest

from fedplt import History
from fedplt.engines.start import run_job
from fedplt.federation.records import RoundRecord, Totals
from fedplt.report.dynamics import diagnostics_figure, sampling_figure
from fedplt.report.html import write_report
from tests.support.jobs import blob_job


def page(folder, **settings):
    from fedplt.federation.folder import RunFolder

    run_job(blob_job(**settings), folder)
    text = write_report(RunFolder.open(folder)).read_text()
    return re.sub(r"data:image/png;base64,[^']*", "", text)


def test_nothing_recorded_is_nothing_drawn(tmp_path):
    history = History([RoundRecord(1, 1, 1.0, Totals(), Totals(), 0.1, score=0.5)])
    assert diagnostics_figure(history) is None
    assert sampling_figure(history) is None
    text = page(tmp_path / "run", rounds=1)
    assert "Client sampling" not in text
    assert "How the model moved" not in text


@pytest.mark.slow
def test_the_page_shows_sampling_and_diagnostics(tmp_path):
    text = page(
        tmp_path / "run",
        ratios=[0.1, 0.1],
        rounds=8,
        sampling={"name": "ocs", "budget": 0.5},
        diagnostics={"enabled": True, "window": 3},
    )
    assert "<h2>Client sampling</h2>" in text
    assert "of a budget of 0.5" in text
    assert "times that of uniform" in text
    assert "nobody was chosen" in text
    assert "<h2>How the model moved</h2>" in text
    assert "looks back over 3 rounds" in text
    assert re.search(r"\d+ sub-layers of 0 were never trained", text)


def test_pictures_draw_what_was_recorded(tmp_path):
    sampling = {"name": "uniform", "num_clients": 2}
    history = run_job(blob_job(rounds=4, sampling=sampling, diagnostics={"enabled": True}))
    magnitude, alignment, age = diagnostics_figure(history).axes
    assert [line.get_label() for line in alignment.lines] == ["0", "2", "model"]
    model = [record.diagnostics["effective_perturbation"] for record in history.rounds]
    assert list(alignment.lines[-1].get_ydata()) == model
    assert magnitude.get_yscale() == "log"
    assert len(age.lines) == 2
    (often,) = sampling_figure(history).axes  # there is nothing to compare the variance with
    heights = [bar.get_height() for bar in often.patches]
    assert sum(heights) == 2.0  # of 5 clients, 2 in every round
