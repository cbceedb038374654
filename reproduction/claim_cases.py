"""Cases of the paper's claims: where each is checked, the paper's number, and how to measure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from reproduction.accuracy_tables import paper_imbalance
from reproduction.catalog import EXPERIMENTS
from reproduction.measurements import (
    AtEqualCost,
    CurveDifference,
    Difference,
    FallsWithImbalance,
    Measurement,
    SamplingRatio,
    Saving,
    SimulatedTime,
    SmallerSpread,
    TrainsLess,
)
from reproduction.paper_numbers import BUDGETS, FINAL_ACCURACY, GAINS, SAMPLING_GAIN, STUDY_ROUNDS
from reproduction.settings import PAIRS, SETTINGS
from reproduction.statistics import spearman
from reproduction.targets import BYTES, COMPUTATION, EXACT_FLOPS, PAPER_FLOPS
from reproduction.verdicts import Rule, beats, on_par

PERCENT = {"fashion-fcn": 29, "cifar-fcn": 23, "cifar-resnet": 18}
"""Percent of the model that clients train in experiment 1."""


@dataclass(frozen=True)
class Case:
    """A claim for one pair of data and model, or for two contestants."""

    where: str
    paper: str
    measurement: Measurement
    paper_rounds: int


def _title(pair: str) -> str:
    return SETTINGS[pair].title


def _minus(experiment: str, pair: str, first: str, second: str) -> str:
    paper = FINAL_ACCURACY[experiment, pair]
    return f"{paper[first][0] - paper[second][0]:+.2f}"


def _case(where: str, paper: str, measurement: Measurement, rounds: int | None = None) -> Case:
    return Case(where, paper, measurement, rounds or SETTINGS[measurement.pair].rounds)


def like_fedavg(experiment: str, first: str) -> tuple[Case, ...]:
    return tuple(
        _case(
            _title(pair),
            _minus(experiment, pair, first, "fedavg"),
            Difference(experiment, pair, first, "fedavg", on_par),
        )
        for pair in PAIRS
    )


def above_fedavg() -> Iterator[Case]:
    """Where the paper's FedPLT is not only on par, but ahead."""
    for experiment, first, pair in (
        ("exp1", "balanced", "fashion-fcn"),
        ("exp1", "balanced", "cifar-fcn"),
        ("exp2", "fedplt", "fashion-fcn"),
    ):
        yield _case(
            f"{_title(pair)} ({experiment})",
            _minus(experiment, pair, first, "fedavg"),
            Difference(experiment, pair, first, "fedavg"),
        )


def balance() -> tuple[Case, ...]:
    def paper(pair: str) -> str:
        values = paper_imbalance(EXPERIMENTS["exp1"].blocks[pair])
        accuracy = FINAL_ACCURACY["exp1", pair]
        return f"{spearman([*values.values()], [accuracy[name][0] for name in values]):+.2f}"

    return tuple(_case(_title(p), paper(p), FallsWithImbalance("exp1", p)) for p in PAIRS)


def rivals() -> tuple[Case, ...]:
    names = {
        "fedpmt": "FedPMT", "fedrolex": "FedRolex", "feddrop": "FedDrop",
        "feddrop-unscaled": "FedDrop without its scaler", "heterofl": "HeteroFL",
    }  # fmt: skip
    return tuple(
        _case(
            f"{label}, {_title(pair)}",
            _minus("exp2", pair, "fedplt", name.removesuffix("-unscaled")),
            Difference("exp2", pair, "fedplt", name),
        )
        for pair in PAIRS
        for name, label in names.items()
    )


def spreads() -> Iterator[Case]:
    for experiment, first in (
        ("exp1", "balanced"),
        ("exp2", "fedplt"),
    ):
        for pair in PAIRS:
            paper = FINAL_ACCURACY[experiment, pair]
            yield _case(
                f"{_title(pair)} ({experiment})",
                f"{paper[first][1]:.2f} against {paper['fedavg'][1]:.2f}",
                SmallerSpread(experiment, pair, first, "fedavg"),
            )


def savings() -> Iterator[Case]:
    for pair in PAIRS:
        gains = GAINS[pair][0]
        assert gains.communication and gains.computation
        saved = gains.communication, gains.computation
        yield from _saved("exp1", pair, "balanced", gains.target, saved)
    yield from _saved("exp2", "fashion-fcn", "fedplt")  # the paper has no such table for this pair
    for pair, budgets in BUDGETS.items():
        (sent, flops, _), (own, own_flops, _) = (budgets.methods[n] for n in ("fedavg", "fedplt"))
        assert sent and own and flops and own_flops
        saved = sent - own, flops - own_flops
        yield from _saved("exp2", pair, "fedplt", budgets.accuracy, saved)


def _saved(
    experiment: str,
    pair: str,
    first: str,
    target: float | None = None,
    paper: tuple[float, float] | None = None,
) -> Iterator[Case]:
    """Communication and both counts of computation.

    The paper's GB and TFLOP at its target stand beside what they are to be compared with.
    """
    counted = COMPUTATION.get(pair, PAPER_FLOPS)
    for measure, words in (
        (BYTES, "communication"),
        (PAPER_FLOPS, "computation by the paper's formula"),
        (EXACT_FLOPS, "computation, exact"),
    ):
        number = "-"
        if paper is not None and target is not None and measure in (BYTES, counted):
            value = f"{paper[0]:+.2f} GB" if measure == BYTES else f"{paper[1]:+.2f} TFLOP"
            number = f"{value} at {100 * target:.0f} %"
        yield _case(
            f"{_title(pair)} ({experiment}), {words}",
            number,
            Saving(experiment, pair, first, "fedavg", measure, target),
        )


def equal_costs() -> Iterator[Case]:
    for pair in PAIRS:
        paper = GAINS[pair][1]
        yield _case(
            f"{_title(pair)} (exp1)",
            f"{paper.accuracy:+.2f} at {paper.target / 1e9:.2f} GB",
            AtEqualCost("exp1", pair, "balanced", "fedavg", BYTES, paper.target),
        )
    yield _case(
        f"{_title('fashion-fcn')} (exp2)",
        "-",
        AtEqualCost("exp2", "fashion-fcn", "fedplt", "fedavg", BYTES),
    )
    for pair, budgets in BUDGETS.items():
        gained = budgets.methods["fedplt"][2] - budgets.methods["fedavg"][2]
        yield _case(
            f"{_title(pair)} (exp2)",
            f"{gained:+.2f} at {budgets.communication / 1e9:.2f} GB",
            AtEqualCost("exp2", pair, "fedplt", "fedavg", BYTES, budgets.communication),
        )


def equal_computation() -> Iterator[Case]:
    """By the count that the paper's numbers stand beside, and by exact FLOPs."""
    for pair in PAIRS:
        paper, counted = GAINS[pair][2], COMPUTATION.get(pair, PAPER_FLOPS)
        for measure, words in ((PAPER_FLOPS, "by the paper's formula"), (EXACT_FLOPS, "exact")):
            printed = measure == counted
            yield _case(
                f"{_title(pair)}, {words}",
                f"{paper.accuracy:+.2f} at {paper.target / 1e12:.2f} TFLOP" if printed else "-",
                AtEqualCost("exp1", pair, "balanced", "fedavg", measure,
                            paper.target if printed else None),
            )  # fmt: skip


def similar_curves() -> Iterator[Case]:
    for pair in PAIRS:
        yield _case(_title(pair), "similar (figure)", CurveDifference("exp1", pair, "balanced",
                                                                      "fedavg"))  # fmt: skip


def spreads_by_balance() -> Iterator[Case]:
    for pair in PAIRS:
        paper = FINAL_ACCURACY["exp1", pair]
        yield _case(
            _title(pair),
            f"{paper['balanced'][1]:.2f} against {paper['large'][1]:.2f}",
            SmallerSpread("exp1", pair, "balanced", "large"),
        )


def stragglers() -> Iterator[Case]:
    """The paper has a numerical example alone; here, the fleet of README.md."""
    for target in (0.75, 0.8):
        yield _case(
            f"{_title('fashion-fcn')} (exp2), devices of the fleet `kitchen`",
            "a round of 4.35 s for 17.65 s (its example)",
            SimulatedTime("exp2", "fashion-fcn", "fedplt", "fedavg", target),
        )


def original_ocs() -> Iterator[Case]:
    """The paper has FedPLT behind in the low fleet, and ahead in the moderate one."""
    for where, first, second in (
        ("full model ahead, low fleet", "full-ocs", "low-ocs"),
        ("FedPLT ahead, moderate fleet", "moderate-ocs", "full-ocs"),
    ):
        gains = {"full-ocs": 0.0, **SAMPLING_GAIN}
        yield Case(
            where,
            f"{gains[first] - gains[second]:+.2f}",
            Difference("exp3", "cifar-fcn", first, second),
            SETTINGS["cifar-fcn-sampling"].rounds,
        )


def sampling_ratios(of: str) -> Iterator[Case]:
    """FedPLT-aware OCS divided by the original OCS."""
    for fleet in ("low", "moderate"):
        for second, words in _OCS.items():
            yield Case(
                f"{fleet} fleet, {words}",
                "-",
                SamplingRatio("exp3", "cifar-fcn", f"{fleet}-aware", f"{fleet}-{second}", of),
                SETTINGS["cifar-fcn-sampling"].rounds,
            )


_OCS = {"ocs": "5 models against 5 clients", "ocs-equal": "equal expected uploads"}


def aware_ocs() -> Iterator[Case]:
    return sampling("aware", _OCS)


def sampling(first: str, seconds: Mapping[str, str], rule: Rule = beats) -> Iterator[Case]:
    """Cases of experiment 3 in both fleets; contestants are named without their fleet."""
    for fleet in ("low", "moderate"):
        for second, words in seconds.items():
            a, b = (n if n.startswith("full") else f"{fleet}-{n}" for n in (first, second))
            gains = {"full-ocs": 0.0, **SAMPLING_GAIN}
            paper = f"{gains[a] - gains[b]:+.2f}" if a in gains and b in gains else "-"
            yield Case(
                f"{fleet} fleet, {words}",
                paper,
                Difference("exp3", "cifar-fcn", a, b, rule),
                SETTINGS["cifar-fcn-sampling"].rounds,
            )


def study() -> tuple[Case, ...]:
    deep, shallow = "deep-heavy", "shallow-dominant"
    fcn, resnet = "fashion-fcn", "cifar-resnet"
    return (
        _case(f"deep-heavy, {_title(fcn)}", "ahead (figure)",
              Difference("study", fcn, deep, shallow), STUDY_ROUNDS[fcn]),
        _case(f"shallow-dominant, {_title(resnet)}", "ahead (figure)",
              Difference("study", resnet, shallow, deep), STUDY_ROUNDS[resnet]),
    )  # fmt: skip


def fewer_parameters() -> Iterator[Case]:
    for pair, percent in PERCENT.items():
        yield _case(
            _title(pair),
            f"-{100 - percent} %; accuracy {_minus('exp1', pair, 'balanced', 'fedavg')}",
            TrainsLess("exp1", pair, "balanced", "fedavg"),
        )
