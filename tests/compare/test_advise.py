"""Advice for a fleet: strategies, times by hand, the answer, halving, continuing."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from torch import nn

from fedplt import ConfigError, RoundRecord, advise
from fedplt.configuration import load_config
from fedplt.configuration.config_file import parse_config
from fedplt.data import Split
from fedplt.federation.run_folder.records import History, Totals
from fedplt_compare.compare import Watch
from fedplt_compare.outcome import NO_TIME, Outcome, lost, score_after
from fedplt_compare.processes import STOPPED
from fedplt_compare.race import Race, candidates_of, complete
from fedplt_compare.strategies import Strategy, make_setting, strategies_of, with_exclusions
from fedplt_compare.time_and_energy import idle_share, never_there, participants, retimed
from tests.support.jobs import blob_data, blob_job, small_model
from tests.support.runs import run_job
from tests.support.tiny import CONFIG

pytestmark = pytest.mark.usefixtures("forked_runs")

HEADER = "name,count,gflops,mbps_down,mbps_up,latency_ms,memory_mb,watts\n"
UNEQUAL = HEADER + "fast,3,1,1,1,10,10,5\nslow,2,1,0.02,0.02,10,10,2\n"


@pytest.fixture
def config(tmp_path):
    start, end = CONFIG.index("[clients]"), CONFIG.index("[training]")
    path = tmp_path / "tiny.toml"
    text = CONFIG[:start].replace("alpha = 0.5", 'split = "iid"') + CONFIG[end:]
    path.write_text(text.replace("workers = 2", "workers = 1\ncheck = false"))
    return path


@pytest.fixture(autouse=True)
def _few_tried_ratios(monkeypatch):
    """The memory of each is counted by training a step."""
    monkeypatch.setattr("fedplt_compare.strategies.RATIOS", 15)


@pytest.fixture
def devices(tmp_path):
    path = tmp_path / "devices.csv"
    path.write_text(UNEQUAL)
    return path


def wide_model():
    return nn.Sequential(nn.Linear(6, 1000), nn.ReLU(), nn.Linear(1000, 3))


def setting_of(text, tmp_path, deadline=None, model=None, **sections):
    path = tmp_path / "fleet.csv"
    path.write_text(text)
    values = {"training": {"local_steps": 5, "batch_size": 10}, **sections}
    return make_setting(parse_config(values), path, blob_data(), model or small_model(), deadline)


def record(number, seconds, score, dropped=(), late=()):
    cost = Totals(simulated_seconds=seconds)
    total = Totals(simulated_seconds=seconds * number)
    return RoundRecord(
        number, 1, 1.0, cost, total, 0.1, score, dropped=list(dropped), late=list(late)
    )


def test_times_of_three_devices_by_hand(tmp_path):
    """5 steps of 10 examples. The model has 6 * 8 + 8 + 8 * 3 + 3 = 83 parameters.

    Forward, an example: 2 * (48 + 24) = 144 FLOP. Backward: 144 for the weights, and 2 * 24 to
    pass the gradient through the second layer: 192. So 50 * 336 = 16,800 FLOP in a round.
    """
    text = HEADER + "a,1,1,8,8,0,,\nb,1,0.001,8,8,100,,\nc,1,1,8,0.008,0,,\n"
    setting = setting_of(text, tmp_path, 0.05)
    whole = setting.workload.work(1.0)
    assert whole.forward_flops == 50 * 144 and whole.backward_flops == 50 * 192
    down, up = whole.bytes_down, whole.bytes_up
    assert 4 * 83 <= up <= down < 4 * 83 + 200  # and the header of the message
    a, b, c = (entry.full.total for entry in setting.plan.devices)
    assert a == pytest.approx(16_800 / 1e9 + (down + up) / 1e6)  # 8 Mbit/s is 1 MB/s
    assert b == pytest.approx(0.1 + 16_800 / 1e6 + (down + up) / 1e6)
    assert c == pytest.approx(16_800 / 1e9 + down / 1e6 + up / 1e3)  # its uplink: 1 kB/s
    assert setting.slow == ("b", "c")


def test_the_strategies_and_who_takes_part(tmp_path):
    setting = setting_of(UNEQUAL, tmp_path, deadline=0.2)
    found, skipped = strategies_of(setting)
    labels = [strategy.label for strategy in found]
    assert setting.slow == ("slow",)
    assert labels[0] == "fedavg-all" and labels[-2:] == ["fedplt", "fedplt-recommended"]
    by_label = {strategy.label: strategy for strategy in found}
    without = by_label["fedavg-without-slow"].sections
    assert without["fleet"]["late_after_seconds"] == 0.2
    # The download alone takes the slow ones 8 * ~400 / 20000 = 0.16 s, the upload as much again:
    # with the whole model no number of steps helps.
    assert "fedavg-fewer-steps" not in by_label and any("one step" in w for w in skipped.values())
    heterofl = by_label["heterofl"].sections
    assert [group["num_clients"] for group in heterofl["clients"]["groups"]] == [3, 2]
    fast, slow = (group["ratio"] for group in heterofl["clients"]["groups"])
    assert fast == 1.0 > slow
    assert by_label["fedplt"].sections["fleet"]["deadline_seconds"] == 0.2


def test_slow_computers_may_take_fewer_steps(tmp_path):
    text = HEADER + "fast,3,1,1,1,10,,\nslow,2,0.0001,1,1,10,,\n"
    setting = setting_of(text, tmp_path, deadline=0.1)
    found, _ = strategies_of(setting)
    fewer = next(s for s in found if s.label == "fedavg-fewer-steps")
    assert fewer.sections["fleet"]["min_ratio"] == 1.0 and fewer.excluded == ()


def test_equal_devices_leave_nothing_to_choose(tmp_path):
    found, skipped = strategies_of(setting_of(HEADER + "phone,5,1,1,1,10,,\n", tmp_path))
    assert [strategy.label for strategy in found] == ["fedavg-all", "fedplt-recommended"]
    assert len(skipped) == 5 and all("same as waiting" in why for why in skipped.values())


def test_devices_without_the_memory_never_take_part(tmp_path):
    """The wide model has 10,003 parameters; a step of it holds about 160 kB."""
    text = HEADER + "big,3,1,1,1,10,10,\nsmall,2,1,1,1,10,0.12,\ntiny,1,1,1,1,10,0.0395,\n"
    setting = setting_of(text, tmp_path, 10.0, model=wide_model())
    assert setting.slow == ("small", "tiny")
    found, _ = strategies_of(setting)
    excluded = {strategy.label: strategy.excluded for strategy in found}
    assert excluded["fedavg-all"] == excluded["fedavg-without-slow"] == ("small", "tiny")
    assert excluded["fedplt"] == excluded["fedpmt"] == ("tiny",)  # not even the model fits
    assert excluded["heterofl"] == ()  # it holds a smaller model
    changed = with_exclusions(found[0], setting, tmp_path)
    path = Path(changed.sections["fleet"]["availability"])
    assert path.read_text().splitlines() == ["big,small,tiny", "1.0,0.0,0.0"]
    hours = tmp_path / "hours.csv"
    hours.write_text("hour,big,small\n0,0.5,1\n1,1,1\n")
    setting = setting_of(
        text, tmp_path, 10.0, model=wide_model(),
        fleet={"devices": "nowhere.csv", "availability": str(hours)},
    )  # fmt: skip
    with_exclusions(strategies_of(setting)[0][0], setting, tmp_path)
    assert path.read_text().splitlines()[1:] == ["0.5,0.0,0.0", "1.0,0.0,0.0"]


def test_learning_rates_per_client_are_refused(tmp_path):
    groups = [{"share": 1.0, "ratio": 1.0, "learning_rate": 0.1}]
    with pytest.raises(ConfigError, match="devices of the fleet"):
        setting_of(UNEQUAL, tmp_path, clients={"num_clients": 5, "groups": groups})


def test_recorded_rounds_on_other_devices():
    rounds = [record(1, 4.0, 0.1), record(2, 4.0, 0.5, late=[2]), record(3, 4.0, 0.6, dropped=[2])]
    history = History(rounds)
    before, after = np.array([1.0, 2.0, 4.0]), np.array([1.0, 2.0, 2.0])
    assert participants(rounds[1], 3) == [0, 1]
    changed = retimed(history, before, after)
    # Client 2 was the slowest of the first round only; its time is halved there.
    assert [r.cost.simulated_seconds for r in changed.rounds] == [2.0, 4.0, 4.0]
    assert [r.total.simulated_seconds for r in changed.rounds] == [2.0, 6.0, 10.0]
    assert never_there(History(rounds[1:]), 3) == [2] and never_there(history, 3) == []
    # Waiting: 3 + 2 + 0 of 12 seconds in the first round, 1 of 4 in the others.
    assert idle_share(history, before) == pytest.approx((5 + 1 + 1) / (12 + 4 + 4))
    assert score_after(history, 6.0) == pytest.approx(0.3)
    assert score_after(history, 3.9) is None and score_after(history, 99.0) == 0.6


def test_data_and_labels_that_are_lost():
    split = Split(np.arange(8), np.array([0, 2, 4, 8]))
    labels = np.array([0, 0, 0, 1, 1, 1, 2, 2])
    assert lost(split, labels, [2]) == (0.5, [1, 2]) and lost(split, labels, []) == (0.0, [])
    assert lost(Split(np.arange(4), np.array([0, 3, 4])), None, [1]) == (0.25, [])


def outcome(label, ends, most_rounds=99, compared_after=None, **failed):
    """An outcome whose runs did rounds of one second; ``ends``: the last round, by seed."""
    histories = {
        seed: History([record(i, 1.0, 0.5) for i in range(1, end + 1)])
        for seed, end in ends.items()
    }
    return Outcome(
        label, Strategy(label, {}), 0.1, None, 1.0, histories, {}, None,
        dict.fromkeys(histories, 0.5), compared_after, most_rounds,
        {int(seed[1:]): why for seed, why in failed.items()},
    )  # fmt: skip


def test_the_seeds_that_all_strategies_have_are_compared():
    """A capped run has its last score; one that was stopped before its first round has none."""
    skipped = {}
    capped, long = outcome("fedavg-all", {1: 5, 2: 5}, 5), outcome("fedplt", {1: 40, 2: 12})
    found = complete([capped, long], skipped, [1, 2], 20.0)
    assert [list(o.histories) for o in found] == [[1], [1]] and not skipped
    assert [o.slow_scores for o in found] == [{1: 0.5}, {1: 0.5}]
    assert capped.capped and capped.known_until == np.inf and long.known_until == 12.0

    capped = outcome("fedavg-all", {1: 5}, 5, s2=STOPPED)
    found = complete([capped, outcome("fedplt", {1: 9, 2: 40})], skipped, [1, 2], 20.0)
    assert [list(o.histories) for o in found] == [[1], [1]] and not skipped

    late = outcome("fedplt", {2: 40}, s1=STOPPED)  # its first seed had no time
    given_up, broken = (
        outcome("fedpmt", {1: 3}, compared_after=3.0),
        outcome("heterofl", {}, s1="X"),
    )
    found = complete([capped, late, given_up, broken], skipped, [1, 2], 20.0)
    assert [o.label for o in found] == ["fedavg-all", "fedpmt"]
    assert skipped == {late.strategy.title: NO_TIME, broken.strategy.title: "seed 1: X"}


def test_learning_rates_that_look_alike_have_folders_of_their_own(tmp_path):
    setting = setting_of(UNEQUAL, tmp_path, deadline=0.2)
    strategy = strategies_of(setting)[0][0]
    rates = [0.1, 0.1000001, 0.1000002]
    labels = [candidate.label for candidate in candidates_of(setting, strategy, rates)]
    assert labels == [f"fedavg-all-rate{rate}" for rate in rates]


class Counting(Watch):
    def __init__(self):
        self.started = []

    def on_start(self, *run):
        self.started.append(run)


def test_leaving_slow_devices_out_is_best_where_they_bring_nothing(config, devices, tmp_path):
    """All devices have like data (IID): the slow ones only make rounds longer."""
    advised = advise(load_config(config), devices, tmp_path / "out", seeds=[1, 2], processes=2)
    assert advised.best.left_out == [3, 4]
    assert advised.sentence.startswith("Leave the slow devices out (slow). FedAvg, without slow")
    assert ", the best: " in advised.sentence or ", the best, but" in advised.sentence
    short = replace(advised, skipped={"FedPMT": NO_TIME})  # what had no time may be better
    assert "the best of the strategies that had time" in short.sentence
    assert "2 seeds" in advised.sentence and "Waiting for all gives" in " ".join(advised.more)
    text = advised.text()
    assert "40 %" in text  # two of five equal clients are lost
    assert "With a deadline of" in text and "One learning rate for all strategies: 0.1" in text
    values = json.loads((tmp_path / "out" / "advice.json").read_text())
    assert values["best"] == "fedavg-without-slow" and values["slow_devices"] == ["slow"]
    all_, left = (values["strategies"][k] for k in ("fedavg-all", "fedavg-without-slow"))
    assert left["round_seconds"] < all_["round_seconds"] and left["idle_share"] < 0.01
    assert all_["left_out"] == [] and all_["joules"] > 0
    assert 0.3 < all_["slow_scores"]["1"] <= 1

    # With links as fast as the others', the slow devices would be late no more.
    without = next(o for o in advised.outcomes if o.strategy.label == "fedavg-without-slow")
    assert advised._changed(without, "slow", "up_bits_per_second", 1000) is None
    waits = advised.outcomes[0]
    faster = advised._changed(waits, "slow", "up_bits_per_second", 2)
    seconds = [o.histories[1].rounds[0].cost.simulated_seconds for o in (waits, faster)]
    work = advised.setting.workload.work(1.0)
    assert seconds[0] - seconds[1] == pytest.approx(8 * work.bytes_up / 0.02e6 / 2)

    # The same call continues: nothing is left to train, and the answer is the same.
    watch = Counting()
    again = advise(load_config(config), devices, tmp_path / "out", seeds=[1, 2], watch=watch)
    assert watch.started == [] and again.to_json() == advised.to_json()
    devices.write_text(UNEQUAL.replace("slow,2", "slow,3"))
    with pytest.raises(ConfigError, match="advice for other devices"):
        advise(load_config(config), devices, tmp_path / "out", seeds=[1, 2])


@pytest.mark.slow
def test_a_budget_of_minutes_halves_the_strategies(config, devices, tmp_path):
    out = tmp_path / "out"
    found = advise(load_config(config), devices, out, seeds=[1, 2], minutes=10, rates=[0.1, 0.02])
    final = [o for o in found.outcomes if o.is_final]
    assert len(final) == 2 and all(len(o.histories) == 2 for o in final)
    rest = [o for o in found.outcomes if not o.is_final]
    assert rest and all(list(o.histories) == [1] and o.compared_after for o in rest)
    first, last = json.loads((out / "rungs.json").read_text())["seconds"]
    assert first < last and "given up after" in found.text()
    assert "tried the same learning rates (0.02, 0.1)" in " ".join(found.how)
    assert (out / "fedplt-rate0.02-seed1").is_dir() and not (out / "fedplt-rate0.02-seed2").is_dir()


def test_too_little_time_is_said_in_words(config, devices, tmp_path):
    with pytest.raises(Exception, match="no strategy has got far enough"):
        advise(load_config(config), devices, tmp_path / "out", minutes=0.0001)


@pytest.mark.parametrize("bad", [{"minutes": 0}, {"hours": -1.0}, {"rates": [0.1, -1]}])
def test_nonsense_is_refused(bad, config, devices, tmp_path):
    with pytest.raises(ConfigError, match="give a positive number"):
        advise(load_config(config), devices, tmp_path / "out", **bad)


@pytest.mark.parametrize("ship", [True, False])
def test_scores_are_those_of_the_model_that_a_run_ends_with(ship, tmp_path):
    job = blob_job(rounds=2, server={"average": {"decay": 0.9, "ship": ship}})
    history = run_job(job, tmp_path / "a-seed1")
    race, candidate = SimpleNamespace(out=tmp_path), SimpleNamespace(label="a")
    found = Race._histories(race, candidate, [1])[1]
    assert found.scores == (history.of_average if ship else history).scores
    assert history.of_average.scores != history.scores
