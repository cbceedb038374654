"""The study beyond the paper: which runs it does, and what its table says of recorded ones."""

from __future__ import annotations

import pytest

from fedplt.configuration import parse_config
from reproduction import beyond
from reproduction.beyond import CONTESTANTS, STUDIES, Study, run_study
from reproduction.beyond_page import ALL_STUDIES as ALL
from reproduction.beyond_page import PAGE, _part, cost_to, full_seeds, table, target_of
from reproduction.fine_tuning import FINE_TUNING

SMALL = Study("small", "A small study", {}, 0.3, (0.1, 0.2), 2, 4, last=2)


def run(score, average=None, **more):
    costs = {key: [[len(score), 1.0]] for key in ("bytes_up", "bytes_down", "simulated_seconds")}
    return {"score": score, "average_score": average or [0.0] * len(score), **costs, **more}


RUNS = {
    "fedavg": {
        "0.1": {"1": run([0.1, 0.2])},
        "0.2": {"1": run([0.2, 0.4, 0.6, 0.8]), "2": run([0.2, 0.4, 0.6, 0.8])},
    },
    "recommended": {
        "0.1": {"1": run([0.1, 0.2, 0.3, 0.4], [0.0, 0.5, 0.7, 0.9])},
        "0.2": {"1": run([0.9, 0.9], diverged=True)},
    },
}


def test_a_run_ends_with_the_better_of_its_last_model_and_the_average():
    found = RUNS["recommended"]["0.1"]["1"]
    assert SMALL.accuracy(found) == pytest.approx(0.8)
    assert SMALL.accuracy(found, rounds=1) == pytest.approx(0.1)  # the average begins at 0
    assert SMALL.shipped(found) is found["average_score"]


def test_the_best_rate_is_that_of_the_grid_and_never_a_diverged_one():
    assert SMALL.best_rate(RUNS, "fedavg") == 0.2
    assert SMALL.best_rate(RUNS, "recommended") == 0.1


def test_the_target_is_half_way_and_the_cost_is_that_of_the_first_round_there():
    assert target_of(SMALL, RUNS, 1) == pytest.approx(0.3)
    found = RUNS["recommended"]["0.1"]["1"]
    assert cost_to(SMALL, 0.3, found, "bytes_up", "bytes_down") == 6.0  # (0.5 + 0.7) / 2 in round 3
    assert cost_to(SMALL, 0.99, found, "bytes_up") != cost_to(SMALL, 0.99, found, "bytes_up")  # NaN


def test_the_table_pairs_by_seed():
    lines = table(SMALL, RUNS).splitlines()
    assert len(lines) == 4
    assert "**FedPLT, recommended (one seed)** | 0.1 | 35.0 % | 80.0 % | +10.00 |" in lines[3]


def test_missing_runs_are_done_once(tmp_path, monkeypatch):
    class Record:
        score, average_score = 0.5, 0.6

        class cost:  # noqa: N801
            bytes_up = bytes_down = flops = simulated_seconds = 1

    class History:
        def __init__(self, number):
            self.rounds = [Record()] * number

    asked = []

    def fake(self, folder, name, rate, seed, rounds):
        asked.append((name, rate, seed, rounds))
        return History(rounds)

    monkeypatch.setattr(Study, "run", fake)
    run_study(SMALL, tmp_path, ["fedavg", "memory"], tmp_path)
    expected = [("fedavg", 0.1, 1, 2), ("fedavg", 0.2, 1, 2)]
    expected += [("fedavg", 0.1, seed, 4) for seed in (1, 2, 3)]
    assert asked[:5] == expected
    assert {name for name, *_ in asked[5:]} == {"memory"}
    number = len(asked)
    run_study(SMALL, tmp_path, ["fedavg", "memory"], tmp_path)
    assert len(asked) == number
    assert beyond.load(tmp_path, SMALL)["fedavg"]["0.1"]["2"]["bytes_up"] == [[4, 1]]


@pytest.mark.parametrize("name", CONTESTANTS)
def test_every_contestant_is_a_configuration_with_the_same_data_and_clients(name):
    for study in STUDIES.values():
        config = parse_config(study.config(name, 0.1, 1, 2))
        fedavg = parse_config(study.config("fedavg", 0.1, 1, 2))
        assert (config.data, config.training, config.seed) == (
            fedavg.data, fedavg.training, fedavg.seed,
        )  # fmt: skip
        assert config.clients.num_clients == fedavg.clients.num_clients


def test_every_contestant_tries_as_many_rates():
    assert {len(FINE_TUNING.rates_of(name)) for name in FINE_TUNING.contestants} == {3}


def test_the_page_shows_the_recorded_runs():
    page = PAGE.read_text(encoding="utf-8")
    for study in ALL.values():
        runs = beyond.load(beyond.RESULTS, study)
        if full_seeds(study, runs):
            assert _part(study, runs) in page, "make results"
