"""The answer of :func:`fedplt.advise`: a recommendation, what would change it, and tables."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean
from typing import Any

from fedplt.client import MetricInfo
from fedplt.comparison import cost_text, default_target, mean_interval, spread_text
from fedplt.fleet import in_time
from fedplt.text import Table, counted, html_text, seconds_text, shortened, table
from fedplt_compare.outcome import NO_TIME, TIME, Outcome
from fedplt_compare.strategies import WAITS, WITHOUT, Setting
from fedplt_compare.tables import costs_table, gains_table, memory_table
from fedplt_compare.time_and_energy import late_clients, retimed

FORMAT = 1
CHANGES = {
    "uplink": "up_bits_per_second",
    "downlink": "down_bits_per_second",
    "computing speed": "flops_per_second",
}
FACTORS = (2, 10)
LONGER = 1.1
"""Rounds that exceed the deadline by more than this factor are reported."""
EARLY = 10
"""With fewer rounds, the answer is marked as uncertain."""


@dataclass(frozen=True, eq=False)
class Advice:
    """The best strategy for a fleet, the confidence in it, and what would change the answer."""

    setting: Setting
    metric: MetricInfo
    outcomes: Sequence[Outcome]
    skipped: Mapping[str, str]
    """Title of each strategy that was not trained -> why."""
    seconds: float
    """Simulated seconds after which the strategies are compared."""
    rates: Sequence[float]
    """Learning rates that every strategy tried."""
    given_target: float | None = None

    def __repr__(self) -> str:
        return f"<Advice: {self.sentence}>"

    def _repr_html_(self) -> str:
        return html_text(self.text())

    def when(self, outcome: Outcome) -> float:
        """The time at which a strategy is scored: the common time, or when it was dropped."""
        return outcome.compared_after or self.seconds

    @cached_property
    def target(self) -> float:
        if self.given_target is not None:
            return self.given_target
        found = [o.scores(self.seconds) for o in self.outcomes if o.is_final]
        return default_target(self.metric, [[*scores.values()] for scores in found if scores])

    @cached_property
    def ranked(self) -> list[Outcome]:
        """The strategies that were trained to the end, best first."""
        return self._rank(self.outcomes, self.seconds)

    @property
    def best(self) -> Outcome:
        return self.ranked[0]

    def _rank(self, outcomes: Sequence[Outcome], seconds: float) -> list[Outcome]:
        """Best first, by the rounded score; of equal ones, the first to reach the target."""
        sign = -1 if self.metric.direction == "higher" else 1

        def key(outcome: Outcome) -> tuple[float, float]:
            score = fmean(outcome.scores(seconds).values())
            times = outcome.times_to(self.target).values()
            to_target = fmean(math.inf if time is None else time for time in times)
            return sign * float(self.metric.number(score)), to_target

        return sorted((o for o in outcomes if o.is_final and o.scores(seconds)), key=key)

    @cached_property
    def sentence(self) -> str:
        """The recommendation in one sentence, with its uncertainty."""
        best, slow = self.best, [shortened(name) for name in self.setting.slow]
        start = ""
        if best.strategy.label == WITHOUT:
            start = f"Leave the slow devices out ({', '.join(slow)}). "
        score = self.spread(best.scores(self.seconds).values())
        after = cost_text(TIME, self.seconds)
        text = f"{start}{best.strategy.title}: {self.metric.name} {score} after {after}"
        if len(self.ranked) == 1:
            return f"{text}, the only strategy with a round by then."
        other = self.ranked[1]
        gain, is_sure = self._gain(best, other)
        text += ", the best of the strategies that had time" if self._untried else ", the best"
        if is_sure:
            return f"{text}: {gain} better than {other.strategy.title}, the next."
        return (
            f"{text}, but {other.strategy.title} cannot be told apart from it: difference {gain}."
        )

    @property
    def _untried(self) -> list[str]:
        """Titles of the strategies that a short budget had no time for."""
        return [title for title, why in self.skipped.items() if why == NO_TIME]

    def _gain(self, best: Outcome, other: Outcome) -> tuple[str, bool]:
        """How much better one strategy is, paired by seed, and whether this is significant."""
        mine, theirs = best.scores(self.seconds), other.scores(self.seconds)
        sign = 1 if self.metric.direction == "higher" else -1
        both = sorted(mine.keys() & theirs.keys())
        unit = " points" if self.metric.unit == "%" else ""
        if not both:
            return "not known, they have no seed in common", False
        found = mean_interval([sign * (mine[s] - theirs[s]) for s in both])
        shown = f"{self._number(found.estimate)}{unit}"
        if found.low is None or found.high is None:
            return f"{shown} with one seed, which may be chance", False
        low, high = self._number(found.low), self._number(found.high)
        return f"{shown} (95 % interval {low} to {high}, {found.number} seeds)", found.low > 0

    def _number(self, difference: float) -> str:
        """A difference as shown; -0.0 becomes 0.0."""
        text = self.metric.number(difference)
        return text.lstrip("-") if float(text) == 0 else text

    @cached_property
    def more(self) -> list[str]:
        """Further sentences: time to the target, FedAvg that waits for all, slow devices' data."""
        by_label, best = {o.strategy.label: o for o in self.outcomes}, self.best
        lines = []
        waits, without = by_label.get(WAITS), by_label.get(WITHOUT)
        times = [time for time in best.times_to(self.target).values() if time is not None]
        if times:
            goal = self.metric.text(self.target)
            lines.append(f"It reaches {goal} after {cost_text(TIME, fmean(times))}.")
        if waits is not None and waits is not best:
            scores = waits.scores(self.when(waits)).values()
            shown = self.spread(scores) if scores else "not one round"
            when = f" after {cost_text(TIME, self.when(waits))}"
            lines.append(f"Waiting for all gives {shown}{when}.")
        parts = [
            f"{o.strategy.title} {self.spread(o.slow_scores.values())}"
            for o in dict.fromkeys([best, *([without] if without else [])])
            if any(score is not None for score in o.slow_scores.values())
        ]
        if parts:
            names = ", ".join(shortened(name) for name in self.setting.slow[:5])
            lines.append(f"On data like that of the slow devices ({names}): {'; '.join(parts)}.")
        if self._untried:
            lines.append(f"No time for {'; '.join(self._untried)}: start it again to continue.")
        return lines

    @cached_property
    def changes(self) -> list[str]:
        """What would change the answer: recorded rounds on faster devices, and new plans."""
        found: list[str] = []
        for device in self.setting.devices:
            for what, field in CHANGES.items():
                tried = (self._change(device.name, what, field, factor) for factor in FACTORS)
                found += list(filter(None, tried))[:1]
        if not found:
            found.append(
                f"No kind of device with {FACTORS[-1]} times its uplink, downlink or computing "
                "speed would change which strategy is best."
            )
        return [*found, *self._deadlines()]

    def _change(self, name: str, what: str, field: str, factor: int) -> str:
        """The effect of one kind of device getting faster; empty if the same strategy is best."""
        changed = {o.strategy.title: self._changed(o, name, field, factor) for o in self.outcomes}
        if changed[self.best.strategy.title] is None:
            return (
                f"If {name} had {factor} times its {what}, more devices would meet the deadline, "
                f"and {self.best.strategy.title} would have to be trained again to know."
            )
        outcomes = [outcome for outcome in changed.values() if outcome]
        seconds = min([self.seconds, *(o.known_until for o in outcomes if o.is_final)])
        ranked = self._rank(outcomes, seconds)
        if not ranked or ranked[0].label == self.best.label:
            return ""
        scores = [
            f"{o.strategy.title} {self.spread(o.scores(seconds).values())}"
            for o in ranked
            if o.label in (ranked[0].label, self.best.label)
        ]
        unknown = [title for title, outcome in changed.items() if not outcome]
        rest = f" Not known for {', '.join(unknown)}: others would take part." if unknown else ""
        return (
            f"If {name} had {factor} times its {what}, {ranked[0].strategy.title} would be best "
            f"after {cost_text(TIME, seconds)}: {', '.join(scores)}.{rest}"
        )

    def _changed(self, outcome: Outcome, name: str, field: str, factor: int) -> Outcome | None:
        """The outcome with its rounds on changed devices; None if participants would change."""
        devices = outcome.job.devices
        assert devices is not None
        profiles = tuple(
            replace(p, **{field: factor * getattr(p, field)}) if p.name == name else p
            for p in devices.profiles
        )
        job = replace(outcome.job, devices=replace(devices, profiles=profiles))
        if late_clients(job) != late_clients(outcome.job):
            return None
        changed = replace(outcome, job=job)
        histories = {
            seed: retimed(run, outcome.seconds[seed], changed.seconds[seed])
            for seed, run in outcome.histories.items()
        }
        return replace(changed, histories=histories)

    def _deadlines(self) -> list[str]:
        """The effect of other deadlines, from new plans."""
        lines, setting = [], self.setting
        total = sum(device.count for device in setting.devices)
        for factor in (0.5, 2.0):
            seconds = float(f"{factor * setting.deadline:.3g}")
            plan = setting.plan_at(seconds)
            mean = sum(e.device.count * e.ratio for e in plan.devices) / total
            late = sum(entry.device.count for entry in plan.late)
            slow = [e.device.count for e in plan.devices if not in_time(e.full.total, seconds)]
            lines.append(
                f"With a deadline of {seconds:g} s instead of {seconds_text(setting.deadline)} s, "
                f"devices would train {100 * mean:.0f} % of the model on average with FedPLT and "
                f"{counted(late, 'device')} would miss it; FedAvg would leave out {sum(slow)} of "
                f"{total}. For scores: --deadline-seconds {seconds:g}."
            )
        return lines

    def spread(self, values: Iterable[float | None]) -> str:
        """Mean and sample standard deviation over seeds, as shown."""
        return spread_text(self.metric, values, unit=self.metric.unit)

    def tables(self) -> list[Table]:
        """Tables of each strategy's scores, costs and memory."""
        return [gains_table(self), costs_table(self), memory_table(self)]

    @property
    def how(self) -> list[str]:
        """How the strategies were compared."""
        rates = f"One learning rate for all strategies: {self.rates[0]}."
        if len(self.rates) > 1:
            chosen = "; ".join(f"{o.strategy.title} {o.rate}" for o in self.outcomes)
            tried = ", ".join(map(str, self.rates))
            rates = f"Every strategy tried the same learning rates ({tried}); its best: {chosen}."
        final = [o.num_rounds for o in self.outcomes if o.is_final]
        rough = " That is early: with more --minutes the order may change."
        late = [
            f"{o.strategy.title} {seconds_text(o.round_seconds)} s"
            for o in self.outcomes
            if o.strategy.label != WAITS and o.round_seconds > LONGER * self.setting.deadline
        ]
        unequal = (
            f"Rounds are longer than the deadline ({'; '.join(late)}), because some clients have "
            "more examples than others: training.local_steps gives all the same work."
        )
        return [
            *([unequal] if late else []),
            f"The strategies that were trained to the end did {min(final)} to {max(final)} rounds."
            + (rough if min(final) < EARLY else ""),
            f"The deadline of a round is {seconds_text(self.setting.deadline)} s. All strategies "
            "have the same data, splits, initial weights and seeds.",
            rates,
            "What would change the answer is computed from the recorded rounds: devices train what "
            "they did, and only their times change.",
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
            "strategies": {
                o.strategy.label: o.to_json(self.when(o), self.target) for o in self.outcomes
            },
            "not_trained": dict(self.skipped),
        }
