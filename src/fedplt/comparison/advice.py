"""The answer of :func:`fedplt.advise`: a sentence, what would change it, tables."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean, stdev
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedplt.client import MetricInfo
from fedplt.comparison.results import cost_text, cost_to_reach, default_target, score_within
from fedplt.comparison.retiming import (
    Seconds,
    client_seconds,
    idle_share,
    joules,
    late_clients,
    never_there,
    retimed,
)
from fedplt.comparison.strategies import WAITS, WITHOUT, Setting, Strategy, memory_of
from fedplt.federation import History, Job, RoundRecord
from fedplt.fleet import plan_fleet
from fedplt.statistics import mean_interval
from fedplt.tables import Table
from fedplt.text import bytes_text, counted, flops_text, html_text, seconds_text, shortened, table

FORMAT = 1
TIME = "simulated time"
MOST_KINDS = 8
"""Kinds of devices in the table of memory."""
MOSTLY = 0.5
"""A label is mostly lost if more than this share of its examples is on devices left out."""
CHANGES = {
    "uplink": "up_bits_per_second",
    "downlink": "down_bits_per_second",
    "computing speed": "flops_per_second",
}
FACTORS = (2, 10)


def score_after(history: History, seconds: float) -> float | None:
    """The score after these simulated seconds, or of the last round if the run ended before.

    None: not one round had ended by then.
    """
    end = history.evaluated[-1].total.simulated_seconds
    return score_within(history, TIME, min(seconds, end))


def best_first(metric: MetricInfo, scores: Mapping[str, float]) -> list[str]:
    return sorted(scores, key=lambda key: scores[key], reverse=metric.direction == "higher")


@dataclass(frozen=True)
class Shares:
    """The examples of the clients: how many each has, and the labels of all, in client order."""

    numbers: NDArray[np.int64]
    labels: NDArray[Any] | None

    def lost(self, clients: Sequence[int]) -> tuple[float, list[int]]:
        """The share of examples on these clients, and the labels that are mostly there."""
        there = np.isin(np.arange(len(self.numbers)), clients)
        share = float(self.numbers[there].sum() / self.numbers.sum())
        if self.labels is None or not clients:
            return share, []
        owned = np.repeat(there, self.numbers)
        whole = np.bincount(self.labels)
        gone = np.bincount(self.labels[owned], minlength=len(whole))
        return share, np.flatnonzero(gone > MOSTLY * whole).tolist()


@dataclass(frozen=True, eq=False)
class Outcome:
    """A strategy and its runs."""

    label: str
    """Of its run folders."""
    strategy: Strategy
    rate: float
    job: Job
    histories: Mapping[int, History]
    """By seed; scores are those of the model that the run ends with."""
    seconds: Mapping[int, Seconds]
    shares: Mapping[int, Shares]
    slow_scores: Mapping[int, float | None]
    compared_after: float | None
    """Simulated seconds after which it was given up; None: it was trained to the end."""
    capped: bool
    """It did the most rounds that any strategy does, before the time was over."""
    failed: Mapping[int, str]

    def end(self, seed: int) -> float:
        return self.histories[seed].evaluated[-1].total.simulated_seconds

    def scores(self, seconds: float) -> dict[int, float]:
        """By seed; runs without a round by then are left out."""
        found = {seed: score_after(run, seconds) for seed, run in self.histories.items()}
        return {seed: score for seed, score in found.items() if score is not None}

    def total(self, seconds: float, what: str) -> float:
        """A cost until then, mean over the seeds."""

        def cost(record: RoundRecord) -> float:
            return float(getattr(record.total, what))

        return fmean(_until(run, seconds, [*map(cost, run.rounds)]) for run in self._runs)

    def energy(self, seconds: float) -> float | None:
        assert self.job.devices is not None
        if not any(profile.watts for profile in self.job.devices.profiles):
            return None
        return fmean(
            _until(run, seconds, joules(self.job, run, self.seconds[seed]))
            for seed, run in self.histories.items()
        )

    @property
    def _runs(self) -> list[History]:
        return list(self.histories.values())

    @property
    def num_rounds(self) -> int:
        return self._runs[0].rounds[-1].round

    @property
    def round_seconds(self) -> float:
        """Mean over the rounds."""
        return fmean(r.cost.simulated_seconds for run in self._runs for r in run.rounds)

    @property
    def idle(self) -> float:
        return fmean(idle_share(run, self.seconds[s]) for s, run in self.histories.items())

    @property
    def left_out(self) -> list[int]:
        """Clients that never took part, with the first seed."""
        return never_there(self._runs[0], self.job.plan.num_clients)

    @property
    def lost(self) -> tuple[float, list[int]]:
        """With the first seed."""
        return next(iter(self.shares.values())).lost(self.left_out)


def _until(history: History, seconds: float, values: Sequence[float]) -> float:
    """A cumulative value after this time, by linear interpolation between rounds."""
    times = [0.0, *(record.total.simulated_seconds for record in history.rounds)]
    return float(np.interp(seconds, times, [0.0, *values]))


@dataclass(frozen=True, eq=False)
class Advice:
    """Which strategy is best for a fleet, how sure that is, and what would change it."""

    setting: Setting
    metric: MetricInfo
    outcomes: Sequence[Outcome]
    skipped: Mapping[str, str]
    """Strategies that were not trained, by title: why."""
    seconds: float
    """Simulated seconds after which the strategies are compared."""
    rates: Sequence[float]
    given_target: float | None = None

    def __repr__(self) -> str:
        return f"<Advice: {self.sentence}>"

    def _repr_html_(self) -> str:
        return html_text(self.text())

    @cached_property
    def scores(self) -> dict[str, dict[int, float]]:
        """By strategy that was trained to the end, and seed."""
        return _scores(self.outcomes, self.seconds)

    @property
    def best(self) -> Outcome:
        return self._ranked[0]

    @cached_property
    def _ranked(self) -> list[Outcome]:
        means = {label: fmean(found.values()) for label, found in self.scores.items()}
        order = best_first(self.metric, means)
        return [next(o for o in self.outcomes if o.strategy.label == label) for label in order]

    @property
    def target(self) -> float:
        if self.given_target is not None:
            return self.given_target
        return default_target(self.metric, [[*found.values()] for found in self.scores.values()])

    @cached_property
    def sentence(self) -> str:
        """The answer in words and numbers, with its uncertainty."""
        best, time = self.best, cost_text(TIME, self.seconds)
        score = self._spread([*self.scores[best.strategy.label].values()])
        start = ""
        if best.strategy.label == WITHOUT:
            names = ", ".join(shortened(name) for name in self.setting.slow)
            start = f"Leave the slow devices out ({names}). "
        text = f"{start}{best.strategy.title}: {self.metric.name} {score} after {time}"
        if len(self._ranked) == 1:
            return f"{text}. No other strategy had a round by then."
        other = self._ranked[1]
        gain, sure = self._gain(best, other)
        if not sure:
            return (
                f"{text}, the best, but {other.strategy.title} cannot be told apart from it: "
                f"difference {gain}."
            )
        return f"{text}, the best: {gain} better than {other.strategy.title}, the next."

    def _gain(self, best: Outcome, other: Outcome) -> tuple[str, bool]:
        """How much better one strategy is, seed by seed, and whether that is more than noise."""
        mine, theirs = self.scores[best.strategy.label], self.scores[other.strategy.label]
        sign = 1 if self.metric.direction == "higher" else -1
        found = mean_interval([sign * (mine[s] - theirs[s]) for s in mine.keys() & theirs.keys()])
        unit = " points" if self.metric.unit == "%" else ""
        number = self.metric.number
        if found.low is None or found.high is None:
            return (
                f"{number(found.estimate)}{unit} (one seed, so nothing is known of chance)",
                False,
            )
        interval = f"95 % interval {number(found.low)} to {number(found.high)}"
        seeds = counted(found.number, "seed")
        return f"{number(found.estimate)}{unit} ({interval}, {seeds})", found.low > 0

    @cached_property
    def more(self) -> list[str]:
        """The sentences after the first: the alternatives, and who is served worse."""
        by_label = {o.strategy.label: o for o in self.outcomes}
        lines, best = [], self.best
        if WAITS in by_label and best.strategy.label != WAITS:
            waits = by_label[WAITS]
            found = waits.scores(waits.compared_after or self.seconds)
            at = (
                ""
                if waits.compared_after is None
                else (f" after {cost_text(TIME, waits.compared_after)}, when it was given up")
            )
            shown = self._spread([*found.values()]) if found else "not one round done"
            lines.append(f"Waiting for all: {shown}{at or ' by then'}.")
        if self.setting.slow:
            parts = [
                f"{o.strategy.title} {self._spread(known)}"
                for o in dict.fromkeys([best, *(by_label[k] for k in [WITHOUT] if k in by_label)])
                if (known := [s for s in o.slow_scores.values() if s is not None])
            ]
            if parts:
                names = ", ".join(shortened(name) for name in self.setting.slow[:5])
                lines.append(f"On the data of the slow devices ({names}): {'; '.join(parts)}.")
        return lines

    @cached_property
    def changes(self) -> list[str]:
        """What would change the answer, computed from the recorded rounds on changed devices."""
        found: list[str] = []
        same: list[str] = []
        for device in self.setting.devices:
            for what, field in CHANGES.items():
                for factor in FACTORS:
                    text = self._change(device.name, what, field, factor)
                    if text:
                        found.append(text)
                        break
                else:
                    same.append(f"{device.name}'s {what}")
        if not found:
            most = f"{FACTORS[-1]} times"
            found.append(
                f"No kind of device with {most} its uplink, downlink or computing speed would "
                "change which strategy is best."
            )
        return [*found, *self._deadlines()]

    def _change(self, name: str, what: str, field: str, factor: float) -> str:
        """What happens if one kind of device gets better; empty if the same strategy is best."""
        outcomes, unknown = [], []
        for outcome in self.outcomes:
            changed = self._changed(outcome, name, field, factor)
            if changed is None:
                unknown.append(outcome.strategy.title)
            else:
                outcomes.append(changed)
        ends = [o.end(s) for o in outcomes if o.compared_after is None and not o.capped
                for s in o.histories]  # fmt: skip
        seconds = min([self.seconds, *ends])
        means = {k: fmean(v.values()) for k, v in _scores(outcomes, seconds).items()}
        if not means:
            return ""
        label = best_first(self.metric, means)[0]
        if label == self.best.strategy.label:
            return ""
        winner = next(o for o in self.outcomes if o.strategy.label == label)
        scores = f"{self.metric.text(means[label])} after {cost_text(TIME, seconds)}"
        before = means.get(self.best.strategy.label)
        against = (
            "" if before is None else f", {self.best.strategy.title} {self.metric.text(before)}"
        )
        left = f" (not known for {', '.join(unknown)}: others would take part)" if unknown else ""
        times = "doubled" if factor == 2 else f"were {factor:g} times as fast"
        return (
            f"If {name}'s {what} {times}, {winner.strategy.title} would be best: "
            f"{scores}{against}{left}."
        )

    def _changed(self, outcome: Outcome, name: str, field: str, factor: float) -> Outcome | None:
        """The outcome with recorded rounds on changed devices; None if others would take part."""
        devices = outcome.job.devices
        assert devices is not None
        profiles = tuple(
            replace(p, **{field: factor * getattr(p, field)}) if p.name == name else p
            for p in devices.profiles
        )
        job = replace(outcome.job, devices=replace(devices, profiles=profiles))
        if late_clients(job) != late_clients(outcome.job):
            return None
        histories = {
            seed: retimed(run, outcome.seconds[seed], self._seconds(job, outcome, seed))
            for seed, run in outcome.histories.items()
        }
        return replace(outcome, job=job, histories=histories)

    def _seconds(self, job: Job, outcome: Outcome, seed: int) -> Seconds:
        offsets = np.concatenate([[0], np.cumsum(outcome.shares[seed].numbers)])
        return client_seconds(replace(job, offsets=offsets))

    def _deadlines(self) -> list[str]:
        """What other deadlines would mean, by planning anew."""
        lines, setting = [], self.setting
        target = setting.plan.target.model_dump(exclude={"deadline_seconds", "percentile"})
        total = sum(device.count for device in setting.devices)
        for factor, word in ((0.5, "half"), (2.0, "twice")):
            seconds = factor * setting.deadline
            plan = plan_fleet(setting.devices, setting.workload, deadline_seconds=seconds, **target)
            mean = sum(e.device.count * e.ratio for e in plan.devices) / total
            late = sum(entry.device.count for entry in plan.late)
            slow = sum(e.device.count for e in plan.devices if e.full.total > seconds)
            lines.append(
                f"With {word} the deadline ({seconds_text(seconds)} s), FedPLT would train "
                f"{100 * mean:.0f} % of the model on average and {counted(late, 'device')} would "
                f"miss it; FedAvg would leave out {slow} of {total}. Scores need training: "
                f"--deadline-seconds {seconds:.3g}."
            )
        return lines

    def _spread(self, values: Sequence[float]) -> str:
        mean = self.metric.text(fmean(values))
        if len(values) < 2:
            return mean
        return f"{self.metric.number(fmean(values))} ± {self.metric.number(stdev(values))}" + (
            f" {self.metric.unit}" if self.metric.unit else ""
        )

    def tables(self) -> list[Table]:
        """What each strategy brings, what it costs, and the memory that it needs."""
        return [self._gains(), self._costs(), self._memory()]

    def _gains(self) -> Table:
        after, target = cost_text(TIME, self.seconds), self.metric.text(self.target)
        header = (
            "strategy", f"{self.metric.name} after {after}", f"time to {target}",
            "on slow devices' data", "left out", "examples lost", "labels mostly lost",
        )  # fmt: skip
        rows, notes = [], []
        for outcome in self.outcomes:
            at = outcome.compared_after
            scores = [*outcome.scores(at or self.seconds).values()]
            shown = self._spread(scores) if scores else "no round"
            mark = "" if at is None else f" (given up after {cost_text(TIME, at)})"
            early = outcome.capped and any(
                outcome.end(seed) < self.seconds for seed in outcome.histories
            )
            if early and at is None:
                mark = " †"
                notes.append(
                    f"† {outcome.strategy.title} did {outcome.num_rounds} rounds, the most of any "
                    "strategy, in less time; its last score is shown."
                )
            costs = [cost_to_reach(run, TIME, self.target) for run in outcome.histories.values()]
            reached = [cost for cost in costs if cost is not None]
            missing = len(costs) - len(reached)
            time = cost_text(TIME, fmean(reached)) if reached else "not reached"
            slow = [score for score in outcome.slow_scores.values() if score is not None]
            share, labels = outcome.lost
            rows.append(
                (
                    outcome.strategy.title,
                    shown + mark,
                    time + (f" ({missing} of {len(costs)} not)" if reached and missing else ""),
                    self._spread(slow) if slow else "-",
                    str(len(outcome.left_out)),
                    f"{100 * share:.0f} %",
                    ", ".join(map(str, labels)) or "-",
                )
            )
        notes += [f"{title} was not trained: {why}." for title, why in self.skipped.items()]
        title = f"What each strategy brings, {self._seeds_text}"
        return Table("advice", title, header, tuple(rows), tuple(notes))

    @property
    def _seeds_text(self) -> str:
        most = max(len(outcome.histories) for outcome in self.outcomes)
        return "one seed" if most == 1 else f"mean ± sample standard deviation over {most} seeds"

    def _costs(self) -> Table:
        header = (
            "strategy", "a round", "bytes a device", "bytes in all", "FLOPs", "idle", "energy",
        )  # fmt: skip
        rows = []
        for outcome in self.outcomes:
            at = outcome.compared_after or self.seconds
            sent = outcome.total(at, "bytes_up") + outcome.total(at, "bytes_down")
            number = outcome.job.plan.num_clients - len(outcome.left_out)
            energy = outcome.energy(at)
            rows.append(
                (
                    outcome.strategy.title,
                    f"{seconds_text(outcome.round_seconds)} s",
                    bytes_text(sent / max(1, number)),
                    bytes_text(sent),
                    flops_text(outcome.total(at, "flops")),
                    f"{100 * outcome.idle:.0f} %",
                    "-" if energy is None else f"{energy / 3600:.3g} Wh",
                )
            )
        note = (
            "Bytes up and down, of a device that takes part. Idle: share of the time in which "
            "devices wait for the slowest. Energy: of devices with watts, while they compute and "
            "send."
        )
        return Table("advice-costs", "What it costs by then", header, tuple(rows), (note,))

    def _memory(self) -> Table:
        kinds = sorted(self.setting.devices, key=lambda device: device.memory_bytes or math.inf)
        shown = kinds[:MOST_KINDS]
        has = [
            f"{shortened(d.name, 20)}" + (f" (has {bytes_text(d.memory_bytes)})" if d.memory_bytes
                                          else "") for d in shown
        ]  # fmt: skip
        rows = []
        for outcome in self.outcomes:
            first = {outcome.job.device_name(k): k
                     for k in reversed(range(outcome.job.plan.num_clients))}  # fmt: skip
            cells = [
                "left out"
                if set(outcome.left_out) >= {first[d.name]}
                else bytes_text(memory_of(outcome.job.plan.assignment(first[d.name])))
                for d in shown
            ]
            rows.append((outcome.strategy.title, *cells))
        note = "The model, and gradients and update of what is trained; activations come on top."
        return Table(
            "advice-memory",
            "Memory of each kind of device",
            ("strategy", *has),
            tuple(rows),
            (note,),
        )

    @property
    def how(self) -> list[str]:
        """How the strategies were compared."""
        if len(self.rates) == 1:
            rates = f"One learning rate for all strategies: {self.rates[0]:g}."
        else:
            chosen = "; ".join(f"{o.strategy.title} {o.rate:g}" for o in self.outcomes)
            tried = ", ".join(f"{rate:g}" for rate in self.rates)
            rates = f"Every strategy tried the same learning rates ({tried}); its best: {chosen}."
        plan = self.setting.plan
        return [
            f"The deadline of a round is {seconds_text(plan.target_seconds)} s. All strategies "
            "have the same data, splits, initial weights and seeds.",
            rates,
        ]

    def text(self) -> str:
        """The answer as printed text."""
        parts = [" ".join([self.sentence, *self.more])]
        for made in self.tables():
            notes = "".join(f"\n{note}" for note in made.notes)
            parts.append(f"{made.title}\n\n{table(made.header, made.rows)}{notes}")
        parts.append("What would change the answer\n\n" + "\n".join(self.changes))
        return "\n\n".join([*parts, "\n".join(self.how)])

    def to_json(self) -> dict[str, Any]:
        """Everything as plain values: seconds, bytes, FLOPs, joules."""
        return {
            "format": FORMAT,
            "answer": self.sentence,
            "more": [*self.more, *self.changes, *self.how],
            "best": self.best.strategy.label,
            "seconds": self.seconds,
            "deadline_seconds": self.setting.deadline,
            "slow_devices": list(self.setting.slow),
            "target": self.target,
            "metric": self.metric.to_json(),
            "strategies": {o.strategy.label: self._outcome_json(o) for o in self.outcomes},
            "not_trained": dict(self.skipped),
        }

    def _outcome_json(self, outcome: Outcome) -> dict[str, Any]:
        at = outcome.compared_after or self.seconds
        share, labels = outcome.lost
        return {
            "title": outcome.strategy.title,
            "learning_rate": outcome.rate,
            "compared_after_seconds": at,
            "given_up": outcome.compared_after is not None,
            "scores": {str(seed): score for seed, score in outcome.scores(at).items()},
            "seconds_to_target": {
                str(seed): cost_to_reach(run, TIME, self.target)
                for seed, run in outcome.histories.items()
            },
            "slow_scores": {str(seed): score for seed, score in outcome.slow_scores.items()},
            "round_seconds": outcome.round_seconds,
            "bytes_up": outcome.total(at, "bytes_up"),
            "bytes_down": outcome.total(at, "bytes_down"),
            "flops": outcome.total(at, "flops"),
            "idle_share": outcome.idle,
            "joules": outcome.energy(at),
            "left_out": outcome.left_out,
            "examples_lost": share,
            "labels_mostly_lost": labels,
            "failed": {str(seed): why for seed, why in outcome.failed.items()},
        }


def _scores(outcomes: Sequence[Outcome], seconds: float) -> dict[str, dict[int, float]]:
    """Of the strategies that were trained to the end, by label and seed."""
    found = {o.strategy.label: o.scores(seconds) for o in outcomes if o.compared_after is None}
    return {label: scores for label, scores in found.items() if scores}
