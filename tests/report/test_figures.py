"""Pictures draw without trouble, for small and large fleets."""

from __future__ import annotations

import numpy as np
import pytest

from fedplt import FedpltError, History, make_plan
from fedplt.federation.records import RoundRecord, Totals
from fedplt.report.figures import accuracy_figure, plan_figure, save_figure


@pytest.mark.parametrize(
    "ratios", [[0.3], [1.0] * 5 + [0.29] * 15 + [0.06] * 30, np.linspace(0.01, 1, 2000)]
)
def test_plan_figure(fcn, ratios, tmp_path):
    path = tmp_path / "sub" / "plan.svg"
    save_figure(plan_figure(make_plan(fcn, ratios)), path)
    assert path.stat().st_size > 5000


def history(offset):
    records = [
        RoundRecord(i, 1, 1.0, Totals(), Totals(), 0.1, accuracy=offset + i / 100)
        for i in range(1, 20)
    ]
    return History(records)


def test_accuracy_figure_shows_mean_and_spread(tmp_path):
    figure = accuracy_figure({"fedplt": [history(0.5), history(0.6)], "fedavg": [history(0.3)]})
    axes = figure.axes[0]
    assert len(axes.lines) == 2
    assert axes.lines[0].get_ydata()[0] == pytest.approx(56)
    assert len(axes.collections) == 1
    with pytest.raises(FedpltError, match="choose one of these"):
        save_figure(figure, tmp_path / "a.gif")
