"""The study beyond the paper: which runs it does, and what its table says of recorded ones."""

from __future__ import annotations

from statistics import fmean

import pytest

from fedplt.comparison import mean_interval
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
    assert "**FedPLT, recommended (seed 1 only)** | 0.1 | 35.0 % | 80.0 % | +10.00 |" in lines[3]


def test_a_row_with_fewer_seeds_than_fedavg_says_which():
    whole = {str(seed): run([0.2, 0.4, 0.6, 0.8]) for seed in (1, 2, 3)}
    two = {"1": run([0.2, 0.4]), "2": whole["2"], "3": whole["3"]}
    short = {"1": run([0.1, 0.2])}
    lines = table(SMALL, {name: {"0.1": short, "0.2": found} for name, found in (
        ("fedavg", whole), ("fedplt", whole), ("int2", two),
    )}).splitlines()  # fmt: skip
    assert [line.split(" | ")[0] for line in lines[2:]] == [
        "| FedAvg",
        "| FedPLT, as in the paper",
        "| FedPLT, recommended, but 2-bit differences (seeds 2, 3 only)",
    ]


def test_the_rates_are_those_that_each_row_tried():
    class Adapters(Study):
        def rates_of(self, name):
            return (0.5, 0.6) if name == "recommended" else self.rates

    study = Adapters("small", "A small study", {}, 0.3, (0.1, 0.2), 2, 4, last=2)
    whole = run([0.2, 0.4, 0.6, 0.8])
    runs = {
        "fedavg": {"0.1": {"1": run([0.1, 0.2])}, "0.2": {"1": whole}},
        "recommended": {"0.5": {"1": run([0.1, 0.2])}, "0.6": {"1": whole}},
    }
    assert _part(study, runs).splitlines()[2] == (
        '4 rounds, seed 1; learning rates tried: 0.1, 0.2; of "FedPLT, recommended": 0.5, 0.6.'
    )
    assert "learning rates tried: 0.1, 0.2." in _part(study, {"fedavg": runs["fedavg"]})


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


def test_what_the_page_says_of_rates_and_processors_is_recorded():
    words = " ".join(PAGE.read_text(encoding="utf-8").replace("**", "").split())
    study = STUDIES["cifar-fcn"]
    runs = beyond.load(beyond.RESULTS, study)

    def ends(name, rate):
        return [100 * study.accuracy(runs[name][rate][str(seed)]) for seed in beyond.SEEDS]

    low, high = ends("fedavg", "0.12"), ends("fedavg", "0.24")
    assert max(study.rates) == study.best_rate(runs, "fedavg") == 0.24
    assert f"rate 0.12 ends at {fmean(low):.2f} %, 0.24 at {fmean(high):.2f} %" in words
    apart = mean_interval([a - b for a, b in zip(low, high, strict=True)])
    assert apart.low < 0 < apart.high  # within the noise
    grid = {
        rate: 100 * study.accuracy(runs["fedavg"][rate]["1"], study.grid_rounds)
        for rate in ("0.06", "0.12", "0.24")
    }
    for rate in ("0.12", "0.24"):
        assert f"0.06 is {grid[rate] - grid['0.06']:.1f} points below both" in words
    behind = []
    for theirs in (low, high):
        found = mean_interval(
            [b - a for a, b in zip(ends("recommended", "0.12"), theirs, strict=True)]
        )
        behind.append(f"{found.estimate:.2f} [{found.low:.2f}, {found.high:.2f}]")
    assert f"is {behind[0]} points below FedAvg at rate 0.12, and {behind[1]} below" in words
    cnn = STUDIES["cifar-cnn"]
    assert cnn.best_rate(beyond.load(beyond.RESULTS, cnn), "fedavg") == max(cnn.rates) == 0.2
    recorded = [
        run
        for each in ALL.values()
        for by_rate in beyond.load(beyond.RESULTS, each).values()
        for by_seed in by_rate.values()
        for run in by_seed.values()
    ]
    kinds = {run["processor"].split("(R)")[0] for run in recorded if "processor" in run}
    assert kinds == {"Intel"}
    assert "one idea at a time on Fashion-MNIST, from an Intel Xeon" in words
