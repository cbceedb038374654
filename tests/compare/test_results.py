"""Scores at equal cost, the cost to reach a score, and the tables of a comparison."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedplt.comparison import cost_to_reach, score_within
from fedplt.federation.run_folder.records import History, RoundRecord, Totals
from fedplt_compare.results import Comparison, MethodRuns, refusals
from tests.support.averaged import history as with_average


def history(accuracies, each):
    rounds = []
    for number, accuracy in enumerate(accuracies, start=1):
        total = Totals(number * each, number * each, number * each, float(number * each))
        rounds.append(RoundRecord(number, 1, 1.0, total, total, 0.1, accuracy, 0.5))
    return History(rounds)


def test_accuracy_at_a_budget_and_cost_to_an_accuracy():
    run = history([0.1, None, 0.5, 0.4], each=10)
    assert score_within(run, "bytes up", 30) == 0.5
    assert score_within(run, "bytes up", 25) == pytest.approx(0.4)  # 0.1 at 10, 0.5 at 30
    assert score_within(run, "bytes", 70) == pytest.approx(0.45)
    assert score_within(run, "bytes", 80) == 0.4
    assert score_within(run, "bytes", 81) is None  # it never spent that much
    assert score_within(run, "exact FLOPs", 9) is None
    assert cost_to_reach(run, "paper FLOPs", 0.45) == 30
    assert cost_to_reach(run, "bytes", 0.1) == 20
    assert cost_to_reach(run, "bytes", 0.6) is None


def test_the_cheapest_contestant_sets_the_budget():
    cheap = MethodRuns({"name": "a"}, {1: history([0.2, 0.3], 10)}, 0.1)
    dear = MethodRuns({"name": "b"}, {1: history([0.1, 0.2, 0.9], 15)}, 1.0)
    found = Comparison({"cheap": cheap, "dear": dear}, {})
    assert found.budgets("bytes up") == {1: 20}
    equal = found.at_equal("bytes up")
    assert equal["cheap"] == [0.3] and equal["dear"] == pytest.approx([0.1 + 0.1 / 3])
    text = found.text(0.3)
    assert "30.0" in text and "never" not in text
    assert "never" in found.text(0.95)


def test_every_seed_has_its_own_budget():
    """Splits differ, and so do costs: a mean budget is more than some run ever spent."""
    cheap = MethodRuns({"name": "a"}, {1: history([0.2, 0.3], 10), 2: history([0.2, 0.4], 30)}, 0.1)
    dear = MethodRuns({"name": "b"}, {1: history([0.1, 0.5], 20), 2: history([0.1, 0.7], 60)}, 1.0)
    found = Comparison({"cheap": cheap, "dear": dear}, {})
    assert found.budgets("bytes up") == {1: 20, 2: 60}
    equal = found.at_equal("bytes up")
    assert equal == {"cheap": [0.3, 0.4], "dear": [0.1, 0.1]}
    assert "bytes up <= 40 B" in found.text()


def test_a_run_that_ended_early_has_no_accuracy_at_equal_cost():
    whole = MethodRuns({"name": "a"}, {1: history([0.2, 0.3, 0.4], 10)}, 0.1)
    short = MethodRuns({"name": "b"}, {1: history([0.6], 10)}, 0.1, {1: "killed"})
    found = Comparison({"whole": whole, "short": short}, {})
    assert found.budgets("bytes") == {1: 60}
    assert found.at_equal("bytes") == {"whole": [0.4], "short": [None]}
    row = next(line for line in found.text().splitlines() if line.startswith("short"))
    assert row.startswith("short (ended early)") and row.count(" -") == len(found.measures) == 4


def test_refused_updates_are_told():
    rounds = list(history([0.2, 0.1, 0.1], 10).rounds)
    bad = {"3": "not finite", "4": "not finite"}
    rounds[1:] = [replace(record, rejected=bad) for record in rounds[1:]]
    assert refusals(history([0.2], 10)) == ""
    found = Comparison({"a": MethodRuns({"name": "a"}, {1: History(rounds)}, 0.1)}, {})
    words = "a, seed 1: 4 updates refused, rounds 2 to 3; the first, of client 3: not finite"
    assert words in found.text() and not found.problems
    run = found.to_json()["methods"]["a"]["runs"]["1"]
    assert [told["refused"] for told in run["rounds"]] == [0, 2, 2]


def test_the_last_score_stands_beside_the_mean_of_the_last_ten():
    run = MethodRuns({"name": "a"}, {1: history([0.2, 0.7], 10)}, 0.1)
    found = Comparison({"one": run}, {})
    row = next(line for line in found.text().splitlines() if line.startswith("one"))
    assert row.split()[2:4] == ["70.0", "45.0"]
    values = found.to_json()["methods"]["one"]
    assert values["runs"]["1"]["score_last"] == values["score_last_mean"] == 0.7
    assert values["runs"]["1"]["score_last_10"] == pytest.approx(0.45)


def test_simulated_time_is_a_cost_where_it_is_known():
    slow, fast = (
        [
            replace(r, total=replace(r.total, simulated_seconds=each * r.round))
            for r in history([0.2, 0.4, 0.6], 10).rounds
        ]
        for each in (100.0, 6.5)
    )
    runs = {label: History(rounds) for label, rounds in (("slow", slow), ("fast", fast))}
    found = Comparison({k: MethodRuns({"name": k}, {1: v}, 0.1) for k, v in runs.items()}, {})
    assert found.measures[-1] == "simulated time"
    assert found.budgets("simulated time") == {1: 19.5}
    assert found.at_equal("simulated time") == {"slow": [None], "fast": [0.6]}
    assert found.costs_to(0.4, "simulated time") == {"slow": [200.0], "fast": [13.0]}
    text = found.text(0.4)
    assert "simulated time <= 19.50 s" in text and "3:20" in text and "13.00 s" in text
    assert found.to_json(0.4)["methods"]["slow"]["cost_to_target"]["simulated time"] == [200.0]
    without = Comparison({"a": MethodRuns({"name": "a"}, {1: history([0.2], 10)}, 0.1)}, {})
    assert "simulated" not in without.text()


def test_a_comparison_prints_shortly_and_as_latex():
    two = MethodRuns({"name": "b"}, {1: history([0.2], 10), 2: history([0.4], 10)}, 0.1)
    found = Comparison({f"method_{i}": two for i in range(30)}, {})
    assert (
        repr(found).startswith("<Comparison by accuracy: method_0 30.0 %")
        and len(repr(found)) <= 300
    )
    assert found._repr_html_().startswith("<pre>accuracy in %")
    text = found.latex(0.3)
    assert text.count(r"\begin{tabular}") == 2 and text.count(r"method\_29 & ") == 2
    assert r"30.0 $\pm$ 14.1" in text and r"bytes up $\le$ 10 B" in text
    assert "+-" not in text and "<=" not in text


def test_one_seed_has_no_spread():
    one = MethodRuns({"name": "a"}, {1: history([0.2, 0.4], 10)}, 0.1)
    two = MethodRuns({"name": "b"}, {1: history([0.2], 10), 2: history([0.4], 10)}, 0.1)
    rows = Comparison({"one": one, "two": two}, {}).text().splitlines()
    assert "+-" not in next(row for row in rows if row.startswith("one"))
    assert "30.0 +- 14.1" in next(row for row in rows if row.startswith("two"))
    found = Comparison({"one": one, "two": two}, {}).to_json()["methods"]
    assert found["one"]["score_std"] is None
    assert found["two"]["score_std"] == pytest.approx(0.2 / 2**0.5)


def test_results_name_the_models_that_are_scored():
    """``compare`` gives it the histories of the shipped models."""
    runs = {
        seed: with_average([0.4, 0.6], [0.8, average], "better").shipped
        for seed, average in ((1, 0.9), (2, 0.0))
    }
    plain = MethodRuns({"name": "b"}, {1: history([0.2, 0.4], 10)}, 0.1)
    found = Comparison({"averaged": MethodRuns({"name": "a"}, runs, 0.1), "plain": plain}, {})
    assert found.methods["averaged"].lasts == [0.9, 0.6]
    values = found.to_json()["methods"]
    models = {seed: run["final_model"] for seed, run in values["averaged"]["runs"].items()}
    assert models == {"1": "average of models", "2": "last model"}
    assert values["averaged"]["runs"]["1"]["score_last"] == 0.9
    assert "final_model" not in values["plain"]["runs"]["1"]
    assert "averaged: scores of the average of models or last model\n" in found.text()
    assert "scores of" not in Comparison({"plain": plain}, {}).text()
