"""Pictures show what they are given, for small and large fleets."""

from __future__ import annotations

import numpy as np
import pytest

from fedplt import FedpltError, History, make_plan
from fedplt.federation.run_folder.records import RoundRecord, Totals
from fedplt.report.figures import plan_figure, save_figure, score_figure
from tests.support.pictures import svg_texts


def trained(figure):
    """By layer: clients (rows) by sub-layers, 0 where a client does not train, else its colour."""
    return [np.asarray(panel.images[0].get_array()) for panel in figure.axes]


@pytest.mark.parametrize("ratios", [[0.3], [1.0] * 5 + [0.29] * 15 + [0.06] * 30])
def test_plan_figure_shows_who_trains_what(fcn, ratios):
    plan = make_plan(fcn, ratios)
    figure = plan_figure(plan)
    for index, (panel, picture) in enumerate(zip(figure.axes, trained(figure), strict=True)):
        assert panel.get_title() == f"{fcn[index].name} ({fcn[index].size:,})"
        assert np.count_nonzero(picture, axis=1).tolist() == plan.counts[:, index].tolist()
        assert np.count_nonzero(picture, axis=0).tolist() == plan.coverage[index].tolist()
    kinds = sorted(set(ratios), reverse=True)
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.texts] == [f"ratio {ratio:g}" for ratio in kinds]
    # One colour per ratio.
    for ratio, row in zip(ratios, trained(figure)[-1], strict=True):
        assert set(row[row > 0]) == {1 + kinds.index(ratio)}


def test_plan_figure_of_a_large_fleet_is_a_sample(fcn):
    plan = make_plan(fcn, np.linspace(0.01, 1, 2000))
    figure = plan_figure(plan)
    assert figure.axes[0].get_ylabel() == "client (a sample)"
    assert not figure.legends  # too many ratios
    for index, picture in enumerate(trained(figure)):
        assert picture.shape == (300, fcn[index].num_sublayers)
        numbers = np.count_nonzero(picture, axis=1)
        assert numbers[[0, -1]].tolist() == plan.counts[[0, -1], index].tolist()


@pytest.mark.parametrize(
    ("ending", "begins"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".PDF", b"%PDF")]
)
def test_pictures_are_saved_as_their_ending_says(fcn, ending, begins, tmp_path):
    path = tmp_path / "a new folder" / f"plan{ending}"
    save_figure(plan_figure(make_plan(fcn, [0.3, 0.1])), path)
    assert path.read_bytes().startswith(begins)
    if ending == ".svg":
        assert {"fc1 (401,920)", "fc4 (1,290)", "ratio 0.3", "ratio 0.1"} <= set(svg_texts(path))


def history(offset):
    records = [
        RoundRecord(i, 1, 1.0, Totals(), Totals(), 0.1, score=offset + i / 100)
        for i in range(1, 20)
    ]
    return History(records)


def test_score_figure_shows_mean_and_spread(tmp_path):
    figure = score_figure({"fedplt": [history(0.5), history(0.6)], "fedavg": [history(0.3)]})
    axes = figure.axes[0]
    assert len(axes.lines) == 2
    assert axes.lines[0].get_ydata()[0] == pytest.approx(56)
    assert len(axes.collections) == 1
    with pytest.raises(FedpltError, match="choose one of these"):
        save_figure(figure, tmp_path / "a.gif")
