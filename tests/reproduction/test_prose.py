"""The numbers in the hand-written words of ``docs/reproduction.md`` follow from ``results/``.

Every test writes a piece of a sentence from the recorded runs, at the precision of the page, and
looks for it there. If one fails because results changed, change the words.
"""

from __future__ import annotations

import json
import math
import re
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from statistics import fmean, stdev

import pytest

from reproduction.pages import BEGIN
from reproduction.paper_numbers import FINAL_ACCURACY, GAINS
from reproduction.predictions import FILE as PREDICTIONS
from reproduction.readme_table import SEEDS
from reproduction.selection import select
from reproduction.tables import load_results, seeds_text
from reproduction.targets import (
    ACCURACY,
    BYTES,
    EXACT_FLOPS,
    PAPER_FLOPS,
    accuracy_target,
    cost_target,
    crossing_note,
    gain,
    value_at,
)

FASHION, CIFAR = "fashion-fcn", "cifar-fcn"
NUMBERS = ("no", "one", "two", "three", "four", "five")
RESULTS = load_results(Path("results"))
PROSE = Path("docs/reproduction.md").read_text(encoding="utf-8").partition(BEGIN)[0]


def said(*pieces):
    """Assert that the page has these words, however its lines are broken."""
    text = re.sub(r"\s+", " ", PROSE.replace("**", ""))
    for piece in pieces:
        assert piece in text, f"results/ say, and the page does not: {piece}"


def pick(experiment, pair, *names):
    recorded = RESULTS[experiment, pair]
    return select(recorded, names or None, None if len(names) > 1 else select(recorded).rounds)


def final(experiment, pair, name, seed):
    return 100 * pick(experiment, pair, name).finals(name)[seed]


def mean_std(experiment, pair, name, seeds=None, digits=1):
    found = pick(experiment, pair, name).finals(name)
    values = [100 * found[seed] for seed in seeds or found]
    return f"{fmean(values):.{digits}f} ± {stdev(values):.{digits}f}"


def minus(experiment, pair, first, second="fedavg"):
    """The paired difference of final accuracies, in points, with its interval."""
    return pick(experiment, pair, first, second).difference(first, second)


def at_target(experiment, pair, first, target_of, measure, wanted=None):
    """What a contestant gains over FedAvg, paired by seed."""
    selection = pick(experiment, pair, first, "fedavg")
    if target_of == ACCURACY:
        target = accuracy_target(selection, (first, "fedavg"), wanted)
    else:
        target = cost_target(selection, (first, "fedavg"), target_of, wanted)
    return gain(selection, first, "fedavg", target, measure).estimate


def saved_share(pair, measure, target):
    """The part of FedAvg's cost to an accuracy that FedPLT saves in the unequal fleet, in %."""
    selection = pick("exp2", pair, "fedplt", "fedavg")
    seeds = selection.pairs("fedplt", "fedavg")
    assert target.value == accuracy_target(selection, ("fedplt", "fedavg"), target.value).value
    ours, theirs = (
        fmean(value_at(selection.entries[name].histories[seed], target, measure) for seed in seeds)
        for name in ("fedplt", "fedavg")
    )
    return 100 * (1 - ours / theirs)


def test_how_far_full_training_is_ahead():
    balanced, fleet = minus("exp1", FASHION, "balanced"), minus("exp2", FASHION, "fedplt")
    nearest = [round(-minus(*key).estimate) for key in (("exp1", CIFAR, "balanced"),
                                                        ("exp2", CIFAR, "fedplt"))]  # fmt: skip
    said(
        f"on Fashion-MNIST it is {-balanced.estimate:.1f} to {-fleet.estimate:.1f} points behind "
        f"({NUMBERS[balanced.number]} seeds), on CIFAR-10 "
        f"{NUMBERS[nearest[0]]} to {NUMBERS[nearest[1]]}.",
        f"with {NUMBERS[balanced.number]} seeds FedPLT is behind by {_behind(balanced)} points "
        f"where all train 29 %, and by {_behind(fleet)} in the unequal fleet",
    )
    assert balanced.number == fleet.number
    paper = FINAL_ACCURACY["exp1", FASHION]
    fleet_gain = FINAL_ACCURACY["exp2", FASHION]["fedplt"][0] - paper["fedavg"][0]
    mean, std = paper["fedavg"]
    said(
        f"Our FedAvg reaches {_mean('exp1', FASHION, 'fedavg'):.0f} % with hardly any spread over "
        f"seeds; the paper's has {mean:.0f} ± {std:.0f} %",
        f"gains of {paper['balanced'][0] - mean:.1f} and {fleet_gain:.1f} points",
    )


def _behind(interval):
    return f"{-interval.estimate:.1f} [{-interval.high:.1f}, {-interval.low:.1f}]"


def _mean(experiment, pair, name):
    return 100 * fmean(pick(experiment, pair, name).finals(name).values())


def test_the_other_partial_methods():
    paper = FINAL_ACCURACY["exp2", FASHION]
    pieces = []
    for name, digits, label in (
        ("fedpmt", 1, "FedPMT by {} points (paper: {})"),
        ("heterofl", 0, "HeteroFL by {} ({})"),
        ("fedrolex", 0, "FedRolex by {} ({})"),
        ("feddrop-unscaled", 0, "FedDrop without its scaler by {} ({})"),
    ):
        behind = minus("exp2", FASHION, "fedplt", name).estimate
        printed = paper["fedplt"][0] - paper[name.removesuffix("-unscaled")][0]
        pieces.append(label.format(f"{behind:.{digits}f}", f"{printed:.0f}"))
    said(", ".join(pieces))


def test_the_other_partial_methods_on_cifar():
    paper = FINAL_ACCURACY["exp2", CIFAR]
    runs = RESULTS["exp2", CIFAR].runs
    seeds = seeds_text(sorted(pick("exp2", CIFAR, "fedplt").entries["fedplt"].runs))
    said(
        f"FedPLT {mean_std('exp2', CIFAR, 'fedplt')} % ({seeds}; paper, after 1,000 rounds: "
        f"{paper['fedplt'][0]:.1f})"
    )
    for name, label in (
        ("fedpmt", "FedPMT"),
        ("heterofl", "HeteroFL"),
        ("fedrolex", "FedRolex"),
        ("feddrop-unscaled", "FedDrop without its scaler"),
    ):
        assert list(runs[name]) == [1]
        printed = paper[name.removesuffix("-unscaled")][0]
        said(f"{label} {final('exp2', CIFAR, name, 1):.1f} ({_tenths(printed)})")


def _tenths(printed):
    """A number of the paper, rounded as decimals are."""
    return Decimal(str(printed)).quantize(Decimal("0.1"), ROUND_HALF_UP)


def test_the_seeds_of_the_readme():
    names = "fedavg", "fedplt"
    quoted, all_five = (
        [mean_std("exp2", FASHION, name, seeds) for name in names] for seeds in (SEEDS, None)
    )
    assert {*RESULTS["exp2", FASHION].runs["fedplt"]} == {3, 4, 5, 6, 7}
    said(
        f"there FedAvg has {quoted[0]} and FedPLT {quoted[1]} %. With seeds 3 to 7, as in the "
        f"table below, they have {all_five[0]} and {all_five[1]} %."
    )


def test_costs_to_equal_accuracy():
    selection = pick("exp2", FASHION, "fedplt", "fedavg")
    target = accuracy_target(selection, ("fedplt", "fedavg"))
    sent, flops = (saved_share(FASHION, measure, target) for measure in (BYTES, EXACT_FLOPS))
    wanted, printed = GAINS[FASHION][0].target, GAINS[FASHION][0].communication
    gained = at_target("exp1", FASHION, "balanced", ACCURACY, BYTES, wanted)
    said(
        f"in the unequal fleet {sent:.0f} % of the communication to {100 * target.value:.0f} %, "
        f"and {flops:.0f} % of the exact FLOPs",
        f"it saves {gained:.0f} GB to the paper's target of {100 * wanted:.0f} %; the paper "
        f"reports {printed:.0f} GB",
    )


def test_accuracy_at_equal_costs():
    sent = at_target("exp1", FASHION, "balanced", BYTES, ACCURACY, GAINS[FASHION][1].target)
    formula, exact = (
        at_target("exp1", FASHION, "balanced", measure, ACCURACY)
        for measure in (PAPER_FLOPS, EXACT_FLOPS)
    )
    said(
        f"it is ahead by {sent:.1f} points where all clients train 29 %",
        f"At equal computation it is ahead by {formula:.1f} points by the paper's formula and by "
        f"{exact:.1f} by exact FLOPs",
    )


def test_balance():
    others = ("mild", "moderate", "large")
    apart = [abs(minus("exp1", FASHION, name, "balanced").estimate) for name in others]
    cifar = minus("exp1", CIFAR, "balanced", "large").estimate
    paper = FINAL_ACCURACY["exp1", CIFAR]
    said(
        f"on Fashion-MNIST ({min(apart):.1f} to {max(apart):.1f} points) and tends to matter on "
        f"CIFAR-10 ({cifar:.0f} points)",
        f"the most balanced allocation has {final('exp1', CIFAR, 'balanced', 1):.1f} % (paper: "
        f"{paper['balanced'][0]:.1f}), the largely unbalanced one "
        f"{final('exp1', CIFAR, 'large', 1):.1f} ({paper['large'][0]:.1f}). The balanced one is "
        f"{-minus('exp1', CIFAR, 'balanced').estimate:.1f} points behind FedAvg",
    )


def test_the_same_ratio_in_every_layer():
    names, seeds = ("uniform-layers", "balanced"), (6, 7)
    alike, balanced = ([final("exp1", FASHION, name, seed) for seed in seeds] for name in names)
    losses = sorted(b - a for a, b in zip(alike, balanced, strict=True))
    on_cifar = [final("exp1", CIFAR, name, 1) for name in names]
    said(
        f"{alike[0]:.1f} and {alike[1]:.1f} % where the balanced allocation has "
        f"{balanced[0]:.1f} and {balanced[1]:.1f} % (seeds 6 and 7)",
        f"by {losses[0]:.0f} and {losses[1]:.0f} points on Fashion-MNIST (two seeds), by "
        f"{on_cifar[1] - on_cifar[0]:.0f} on CIFAR-10 (one seed)",
        f"{on_cifar[0]:.1f} % where the balanced allocation has {on_cifar[1]:.1f} % (seed 1",
    )


def test_section_three():
    ahead = minus("study", FASHION, "shallow-dominant", "deep-heavy").estimate
    said(
        f"Shallow-dominant ends ahead of deep-heavy (section III), by {ahead:.1f} points after 300"
    )


def test_small_and_large_budgets():
    selection = pick("exp2", CIFAR, "fedplt", "fedavg")
    target = accuracy_target(selection, ("fedplt", "fedavg"), 0.45)
    assert target.from_paper and selection.pairs("fedplt", "fedavg") == [1]
    (note,) = crossing_note(selection, "fedplt")
    until, since = re.findall(r"(\d+) GB", note)
    whole = select(RESULTS["exp2", CIFAR], uncut=True)
    (ahead,) = crossing_note(whole, "fedplt")
    (most,) = re.findall(r"at all budgets up to (\d+) GB", ahead)
    mean, std = FINAL_ACCURACY["exp2", CIFAR]["fedavg"]
    said(
        f"FedAvg has {final('exp2', CIFAR, 'fedavg', 1):.1f} % after 300 rounds (paper, after "
        f"1,000: {mean:.1f} ± {std:.1f})",
        f"FedPLT needs {saved_share(CIFAR, BYTES, target):.0f} % less communication to 45 %",
        f"FedPLT is ahead at all budgets up to {most} GB "
        f"({seeds_text(whole.pairs('fedplt', 'fedavg'))})",
        f"with seed 1 the curves cross between {until} and {since} GB",
    )
    saved = gain(whole, "fedplt", "fedavg", target, BYTES)
    low, high = f"{saved.low:.1f}", f"{saved.high:.1f}"
    said(f"{saved.estimate:.1f} GB [{low}, {high}] less over three seeds")


def test_sampling():
    runs = RESULTS["exp3", CIFAR].runs
    aware, original, equal, uniform = (
        final("exp3", CIFAR, f"low-{name}", 1)
        for name in ("aware", "ocs", "ocs-equal", "uniform-equal")
    )
    times = round(runs["low-aware"][1].costs["bytes_up"].sum()
                  / runs["low-ocs"][1].costs["bytes_up"].sum())  # fmt: skip
    said(
        f"{aware:.1f} against {original:.1f} % after {runs['low-aware'][1].rounds} rounds. But it "
        f"uploads {NUMBERS[times]} times as much. With equal uploads the original OCS has "
        f"{equal:.1f} %, uniform sampling {uniform:.1f} %",
    )


def test_feddrop_diverges():
    runs = [run for p in (FASHION, CIFAR) for run in RESULTS["exp2", p].runs["feddrop"].values()]
    assert all(run.diverged for run in runs)
    last = 1 + max(run.rounds for run in runs)  # the round that has no finite update
    said(f"FedDrop with its scaler diverges within {last} rounds for all seeds")


def test_a_relu_behind_the_logits():
    fedavg, balanced, fleet = (
        mean_std("relu-logits", FASHION, f"{name}-relu")
        for name in ("fedavg", "balanced", "fedplt")
    )
    mean, std = FINAL_ACCURACY["exp1", FASHION]["fedavg"]
    values = [
        100 * x for x in pick("relu-logits", FASHION, "fedavg-relu").finals("fedavg-relu").values()
    ]
    said(
        f"our FedAvg reaches {fedavg} % over {NUMBERS[len(values)]} seeds, where the paper has "
        f"{mean:.1f} ± {std:.1f} %",
        f"leave a standard error of {stdev(values) / math.sqrt(len(values)):.0f} points",
        f"{balanced} % where all clients train 29 %, and {fleet} % in the unequal fleet",
    )
    counts = [run["counts"] for run in json.loads(PREDICTIONS.read_text()).values()]
    silent = [found.count(0) for found in counts if 0 in found]
    assert {*silent} <= {1, 2}
    said(
        f"In {NUMBERS[len(counts)]} of the runs we looked at the final models: "
        f"{NUMBERS[len(silent)]} never predict one or two of the ten classes"
    )


def test_the_scaling_of_inputs():
    rounds, factors, ends = {}, [], {}
    for name, paper_rounds in (("fedavg", 438), ("fedplt", 621)):
        found = []
        for experiment, which in (("exp2", name), ("input-scaling", f"{name}-symmetric")):
            history = pick(experiment, CIFAR, which).entries[which].histories[1]
            found.append(next(r.round for r in history.evaluated if r.score >= 0.45))
            ends[which] = final(experiment, CIFAR, which, 1)
        rounds[name] = found
        factors.append(found[1] / found[0])
        mean, std = FINAL_ACCURACY["exp2", CIFAR][name]
        label = {"fedavg": "FedAvg", "fedplt": "FedPLT"}[name]
        said(
            f"| {label} | {found[0]} | {found[1]} | {paper_rounds} | {ends[name]:.1f} % | "
            f"{ends[f'{name}-symmetric']:.1f} % | {mean:.1f} ± {std:.1f} % |"
        )
    apart = [ends["fedavg" + end] - ends["fedplt" + end] for end in ("-symmetric", "")]
    printed = FINAL_ACCURACY["exp2", CIFAR]
    said(
        f"a factor of {min(factors):.1f} to {max(factors):.1f} of the paper's slower training",
        f"FedPLT is {apart[0]:.1f} points behind it instead of {apart[1]:.1f} (paper: "
        f"{printed['fedavg'][0] - printed['fedplt'][0]:.1f})",
    )


def test_words_that_are_wrong_are_found(monkeypatch):
    monkeypatch.setitem(globals(), "PROSE", PROSE.replace("[0.7, 1.5] points", "[0.8, 1.5] points"))
    with pytest.raises(AssertionError, match="the page does not: with five seeds"):
        test_how_far_full_training_is_ahead()
