"""Every verdict, from runs made by hand."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from fedplt.comparison.statistics import Interval
from reproduction import measurements
from reproduction.claims import CLAIMS, claims_tables
from reproduction.measurements import (
    AtEqualCost,
    CurveDifference,
    Difference,
    FallsWithImbalance,
    SamplingRatio,
    Saving,
    SimulatedTime,
    SmallerSpread,
    TrainsLess,
)
from reproduction.recorded import RecordedRun, Sampled
from reproduction.verdicts import Verdict, beats, judge, on_par
from tests.support.recorded import fake_recorded, fake_run, flat

PAIR = "fashion-fcn"


def results(experiment="exp2", pair=PAIR, **runs):
    return {(experiment, pair): fake_recorded(experiment, pair, runs)}


def verdict(measurement, found, rounds=300):
    return judge(measurement.evidence(found), rounds)


@pytest.mark.parametrize(
    ("ends", "by_beats", "by_par"),
    [
        ((0.1, 0.9), True, True),
        ((-0.5, 0.5), None, True),
        ((0.5, 1.5), True, None),
        ((1.1, 1.5), True, False),
        ((-0.9, -0.1), False, True),
        ((-3.0, -1.1), False, False),
        ((-2.0, 2.0), None, None),
        ((None, None), None, None),
    ],
)
def test_the_rules(ends, by_beats, by_par):
    interval = Interval(0.5, *ends, 3)
    assert beats(interval)[0] is by_beats
    assert on_par(interval)[0] is by_par
    assert beats(interval)[1] and on_par(interval)[1]
    behind = Interval(-1.5, None, None, 1)
    assert not beats(behind)[1] and not on_par(behind)[1]


def test_a_clear_difference_decides():
    ahead = Difference("exp2", PAIR, "fedplt", "fedpmt")
    found = results(fedplt=flat([0.80, 0.81, 0.82]), fedpmt=flat([0.70, 0.712, 0.718]))
    assert verdict(ahead, found).verdict == Verdict.HOLDS
    assert ahead.evidence(found).ours == "+10.00 points"
    behind = Difference("exp2", PAIR, "fedpmt", "fedplt")
    assert verdict(behind, found).verdict == Verdict.FAILS
    par = Difference("exp2", PAIR, "fedplt", "fedpmt", on_par)
    assert verdict(par, found).text == "does not hold (better)"
    near = results(fedplt=flat([0.80, 0.81, 0.82]), fedpmt=flat([0.801, 0.809, 0.821]))
    assert verdict(par, near).verdict == Verdict.HOLDS
    assert verdict(ahead, near).text == "not decided (tends not to hold)"


def test_what_is_too_little_is_not_decided_but_has_a_tendency():
    ahead = Difference("exp2", PAIR, "fedplt", "fedpmt")
    two = results(fedplt=flat([0.80, 0.81]), fedpmt=flat([0.70, 0.71]))
    assert verdict(ahead, two).text == "not decided (tends to hold; 2 seeds)"
    short = results(fedplt=flat([0.8, 0.8, 0.8], 20), fedpmt=flat([0.9, 0.9, 0.9], 20))
    assert verdict(ahead, short).text == "not decided (tends not to hold; 20 of 300 rounds)"
    assert verdict(ahead, short, 40).verdict == Verdict.FAILS  # half is enough
    one = results(fedplt=flat([0.8], 20), fedpmt=flat([0.7], 20))
    assert verdict(ahead, one).text == "not decided (tends to hold; 1 seed, 20 of 300 rounds)"


def test_a_verdict_that_hangs_on_the_mean_of_ten_says_so():
    ahead = Difference("exp2", PAIR, "fedplt", "fedpmt")
    steady = flat([0.70, 0.71, 0.72])
    ends = {1: 0.69, 2: 0.75, 3: 0.90}  # the last round alone: the interval contains 0
    late = {
        seed: fake_run([0.80 + seed / 100] * 299 + [ends[seed]], test_accuracy=0.8 + seed / 100)
        for seed in ends
    }
    tested = {seed: replace(run, test_accuracy=0.6 + seed / 100) for seed, run in steady.items()}
    found = results(fedplt=late, fedpmt=tested)
    assert verdict(ahead, found).text == "holds (by the last round: not decided)"
    assert ahead.evidence(found).others["test set"].text == "+20.00 [+20.00, +20.00]"
    assert verdict(ahead, results(fedplt=late, fedpmt=steady)).verdict == Verdict.HOLDS


def ending(finals, last, tested=None):
    """Runs by seed that are level, with another accuracy in the last round and on the test set."""
    tested = tested or [None] * len(finals)
    return {
        seed: fake_run([level] * 299 + [end], test_accuracy=on_test)
        for seed, (level, end, on_test) in enumerate(zip(finals, last, tested, strict=True), 1)
    }


def test_an_undecided_verdict_says_what_the_last_round_would_decide():
    """Ahead by 0, 10 and 20 points over the last ten, less steadily, or steadily in the end."""
    ahead = Difference("exp2", PAIR, "fedplt", "fedpmt")
    level = flat([0.7, 0.7, 0.7])
    steady = ending([0.70, 0.80, 0.90], [0.80, 0.80, 0.80])
    found = results(fedplt=steady, fedpmt=level)
    assert verdict(ahead, found).text == "not decided (tends to hold; by the last round: holds)"
    wild = ending([0.70, 0.80, 0.90], [0.30, 0.80, 0.90])
    found = results(fedplt=wild, fedpmt=level)
    assert verdict(ahead, found).text == (
        "not decided (tends to hold; by the last round: tends not to hold)"
    )
    few = results(fedplt=ending([0.7, 0.8], [0.8, 0.8]), fedpmt=flat([0.7, 0.7]))
    assert verdict(ahead, few).text == "not decided (tends to hold; 2 seeds)"


def test_a_cost_to_a_target_that_was_reached_needs_no_more_rounds():
    found = results(fedplt=climbing(5e9), fedavg=climbing(10e9))
    saving = Saving("exp2", PAIR, "fedplt", "fedavg", "bytes", 0.2)
    assert verdict(saving, found, 1000).verdict == Verdict.HOLDS
    ahead = AtEqualCost("exp2", PAIR, "fedplt", "fedavg", "bytes", 3e12)
    assert verdict(ahead, found, 1000).text == "not decided (tends to hold; 300 of 1,000 rounds)"


def test_what_did_not_run_is_said():
    ahead = Difference("exp2", PAIR, "fedplt", "fedpmt")
    assert verdict(ahead, {}).text == "not run yet"
    assert verdict(ahead, results(fedplt=flat([0.8] * 3))).text == "not run yet"
    different = results(fedplt=flat([0.8] * 3), fedpmt=flat([0.7] * 3, processor="another"))
    assert verdict(ahead, different).text == "not decided (0 seeds)"
    assert ahead.evidence(different).ours == "no two runs of one seed and processor"


def test_a_diverged_rival_is_named_and_decides_nothing():
    ahead = Difference("exp2", PAIR, "fedplt", "feddrop")
    found = results(fedplt=flat([0.8] * 3), feddrop=flat([0.1] * 3, 9, diverged="why"))
    assert ahead.evidence(found).ours == "FedDrop diverged"
    assert verdict(ahead, found).text == "not decided (tends to hold)"
    unsteady = results(fedplt=flat([0.8] * 3), feddrop=flat([0.1] * 3, refused=5000))
    evidence = ahead.evidence(unsteady)
    assert evidence.ours.endswith("†") and "refused" in evidence.note


def test_balance_and_accuracy():
    falls = FallsWithImbalance("exp1", PAIR)
    names = ("balanced", "mild", "moderate", "large")
    finals = {
        name: flat([0.8 - 0.01 * i, 0.7 - 0.01 * i, 0.6 - 0.01 * i]) for i, name in enumerate(names)
    }
    evidence = falls.evidence(results("exp1", **finals))
    assert (evidence.ours, evidence.decision) == ("-1.00 (of the means -1.00)", True)
    assert evidence.interval == "4 allocations, p < 0.001"
    turned = dict(zip(names, reversed(finals.values()), strict=True))
    assert verdict(falls, results("exp1", **turned)).verdict == Verdict.FAILS
    mixed = finals | {"large": finals["balanced"]}
    assert verdict(falls, results("exp1", **mixed)).verdict == Verdict.OPEN
    assert falls.evidence(results("exp1", balanced=finals["balanced"])) is None


def test_balance_by_the_last_round_and_on_the_test_set():
    """Accuracy falls with imbalance over the last ten; it rises in the last round."""
    falls = FallsWithImbalance("exp1", PAIR)
    levels = (0.8, 0.7, 0.6)
    signs = {"mean": (-1, -1, -1), "last": (1, 1, 1), "test": (1, -1, 1)}  # by seed
    finals = {
        name: ending(*([level + step * sign / 100 for level, sign in zip(levels, each, strict=True)]
                       for each in signs.values()))
        for step, name in enumerate(("balanced", "mild", "moderate", "large"))
    }  # fmt: skip
    others = falls.evidence(results("exp1", **finals)).others
    assert (others["last round"].text, others["last round"].decision) == ("+1.00, p < 0.001", False)
    assert others["test set"].text.startswith("+0.33, p = 0.")
    assert others["test set"].decision is None
    assert verdict(falls, results("exp1", **finals)).text == (
        "holds (by the last round: does not hold; by the test set: not decided)"
    )


def test_spread_over_seeds():
    smaller = SmallerSpread("exp2", PAIR, "fedplt", "fedavg")
    wide, narrow = flat([0.6, 0.7, 0.8]), flat([0.700, 0.701, 0.702])
    found = results(fedplt=narrow, fedavg=wide)
    assert verdict(smaller, found).verdict == Verdict.HOLDS
    assert smaller.evidence(found).ours == "0.10 against 10.00"
    assert verdict(smaller, results(fedplt=wide, fedavg=narrow)).verdict == Verdict.FAILS
    similar = results(fedplt=flat([0.62, 0.7, 0.78]), fedavg=wide)
    assert verdict(smaller, similar).text == "not decided (tends to hold)"
    alone = results(fedplt=flat([0.6]), fedavg=flat([0.6]))
    assert smaller.evidence(alone).ours == "too few seeds for a spread"
    assert verdict(smaller, alone).text == "not decided (1 seed)"


def test_spread_by_the_last_round_and_on_the_test_set():
    """The first is steadier over the last ten and on the test set, not in the last round."""
    smaller = SmallerSpread("exp2", PAIR, "fedplt", "fedavg")
    wide, narrow = [0.6, 0.7, 0.8], [0.700, 0.701, 0.702]
    found = results(
        fedplt=ending(narrow, wide, narrow), fedavg=ending([0.5, 0.7, 0.9], narrow, wide)
    )
    evidence = smaller.evidence(found)
    assert evidence.others["last round"].text.startswith("10.00 against 0.10, ratio in [")
    assert evidence.others["test set"].text.startswith("0.10 against 10.00, ratio in [")
    assert verdict(smaller, found).text == "holds (by the last round: does not hold)"
    untested = results(fedplt=ending(narrow, wide), fedavg=ending([0.5, 0.7, 0.9], narrow))
    assert set(smaller.evidence(untested).others) == {"last round"}


def climbing(up):
    curves = {s: [round(n / 1000 + s / 100, 6) for n in range(1, 301)] for s in (1, 2, 3)}
    return {seed: fake_run(curve, up=up) for seed, curve in curves.items()}


def test_costs_at_equal_accuracy_and_the_reverse():
    found = results(fedplt=climbing(5e9), fedavg=climbing(10e9))
    saving = Saving("exp2", PAIR, "fedplt", "fedavg", "bytes", 0.2)
    assert verdict(saving, found).verdict == Verdict.HOLDS
    assert saving.evidence(found).ours == "+900.00 GB saved at 20 %"  # (200 - 10 seed) rounds
    ahead = AtEqualCost("exp2", PAIR, "fedplt", "fedavg", "bytes", 3e12)
    assert ahead.evidence(found).ours == "+5.00 points at 3000.00 GB"
    assert verdict(ahead, found).verdict == Verdict.HOLDS
    other = AtEqualCost("exp2", PAIR, "fedavg", "fedplt", "bytes", 9e12)
    assert other.evidence(found).ours.endswith("at 4500.00 GB (ours)")
    assert verdict(other, found).verdict == Verdict.FAILS


def test_fewer_parameters_need_an_accuracy_on_par():
    less = TrainsLess("exp1", PAIR, "balanced", "fedavg")
    ours = flat([0.80, 0.81, 0.82], trained=0.29, up=2.9e9)
    found = results("exp1", balanced=ours, fedavg=flat([0.801, 0.81, 0.82]))
    evidence = less.evidence(found)
    assert evidence.ours == (
        "-71.0 % (upload -71 %, all bytes -36 %, exact FLOPs +0 %, FLOPs by the formula +0 %); "
        "accuracy -0.03"
    )
    assert verdict(less, found).verdict == Verdict.HOLDS
    late = ending([0.80, 0.81, 0.82], [0.85, 0.86, 0.87], [0.801, 0.811, 0.821])
    tested = {seed: replace(run, test_accuracy=run.accuracy[-1]) for seed, run in ours.items()}
    by_other = results("exp1", balanced=tested, fedavg=late)
    others = less.evidence(by_other).others
    assert others["last round"].text == "-5.00 [-5.00, -5.00]"
    assert others["test set"].text == "-0.10 [-0.10, -0.10]"
    assert verdict(less, by_other).text == "holds (by the last round: does not hold)"
    worse = results("exp1", balanced=ours, fedavg=flat([0.85, 0.86, 0.87]))
    assert verdict(less, worse).text == "does not hold (worse)"


def test_curves_are_compared_over_all_rounds():
    late = {seed: fake_run([0.2] * 150 + [0.8 + seed / 1000] * 150) for seed in (1, 2, 3)}
    curves = CurveDifference("exp1", PAIR, "balanced", "fedavg")
    found = results("exp1", balanced=late, fedavg=flat([0.801, 0.802, 0.803]))
    assert curves.evidence(found).ours == "-30.10 points"
    assert verdict(curves, found).text == "does not hold (worse)"


def sampled(variance, probabilities):
    return {
        seed: replace(run, sampled=Sampled(variance + seed / 100, 1.0, probabilities))
        for seed, run in flat([0.4, 0.41, 0.42]).items()
    }


def test_samplers_are_compared_by_variance_and_fairness():
    found = results(
        "exp3",
        "cifar-fcn",
        **{"low-aware": sampled(1, (0.5, 0.5)), "low-ocs": sampled(2, (1.0, 0.0))},
    )
    for of, ours in (("variance", "0.50 times (1.02, 2.02)"), ("fairness", "2.00 times (1, 0.5)")):
        compared = SamplingRatio("exp3", "cifar-fcn", "low-aware", "low-ocs", of)
        assert compared.evidence(found).ours == ours
        assert verdict(compared, found).verdict == Verdict.HOLDS
        reverse = SamplingRatio("exp3", "cifar-fcn", "low-ocs", "low-aware", of)
        assert verdict(reverse, found).verdict == Verdict.FAILS
    run = found["exp3", "cifar-fcn"].runs["low-aware"][1]
    assert RecordedRun.from_json(run.to_json()).sampled == run.sampled


def test_simulated_time_to_an_accuracy(monkeypatch, tmp_path):
    rounds = {"fedplt": 36, "fedavg": 72}
    times = {name: dict.fromkeys("123", seconds) for name, seconds in rounds.items()}
    (tmp_path / "times.json").write_text(json.dumps({"round_seconds": times}))
    monkeypatch.setattr(measurements, "TIMES", tmp_path / "times.json")
    rising = {seed: fake_run([0.5] * (98 + seed) + [0.8] * 100) for seed in (1, 2, 3)}
    found = results(fedplt=rising, fedavg=rising)
    time = SimulatedTime("exp2", PAIR, "fedplt", "fedavg", 0.75)
    assert time.evidence(found).ours == "+1.01 h saved at 75 %"  # 101 rounds of 36 s more
    assert verdict(time, found).verdict == Verdict.HOLDS
    never = SimulatedTime("exp2", PAIR, "fedplt", "fedavg", 0.9)
    assert verdict(never, found).verdict == Verdict.OPEN


def test_the_claims_of_the_paper():
    """Every claim can be asked of no runs at all, and carries the paper's number."""
    overview, *tables = claims_tables({})
    assert len(tables) == len(CLAIMS) == len(overview.rows) >= 10
    assert all(row[-1] == "not run yet" for table in tables for row in table.rows)
    first, second, third = (dict(zip(t.header, t.rows[0], strict=True)) for t in tables[:3])
    assert (first["paper"], second["paper"], third["paper"]) == ("+3.58", "-0.80", "+12.27")
    assert overview.rows[0][1:] == ("", "", "", "3")
    for claim in CLAIMS:
        for case in claim.cases:
            assert case.paper_rounds >= 200
