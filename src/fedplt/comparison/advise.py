"""``fedplt.advise``: train every sensible strategy for a fleet, and say which one to take.

    <out>/
        devices.csv             the fleet, copied
        STRATEGY-seedN/         one run's folder, and .toml and .log beside it, as in a comparison
        rungs.json              with a budget of minutes: who went on, and for how long
        advice.json             the results

With ``minutes``, strategies are halved: all start with one seed and a part of the time, the better
half goes on for longer, and the last two are trained with all seeds.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from fedplt.builtin import find_fleet
from fedplt.comparison.advice import Advice, Outcome, Shares, best_first, score_after
from fedplt.comparison.retiming import client_seconds
from fedplt.comparison.run_comparison import (
    Run,
    Watch,
    check_folders,
    check_runs,
    evaluated_histories,
    make_folder,
    run_all,
    run_folder,
    variant,
)
from fedplt.comparison.strategies import (
    RECOMMENDED,
    Setting,
    Strategy,
    job_of,
    make_setting,
    strategies_of,
    with_exclusions,
)
from fedplt.configuration import ConfigLike, RunConfig, as_config
from fedplt.data import Fetching, Split, TrainingData
from fedplt.errors import ConfigError, DataError, FedpltError, RunError
from fedplt.federation import (
    History,
    Job,
    evaluate,
    load_data,
    on_device,
    split_data,
    take_lock,
)
from fedplt.federation.costs import forecast
from fedplt.federation.model_and_data import find_code, model_from_config
from fedplt.files import write_text
from fedplt.machine import available_cores

MOST_ROUNDS = 5
"""A strategy with short rounds does at most so many times the configuration's rounds."""
FIRST_SHARE = 0.3
"""Of the minutes, for the first rung."""
START_SECONDS = 6.0
"""Of a process, until its first round."""


@dataclass(frozen=True)
class Candidate:
    """A strategy with a learning rate."""

    label: str
    strategy: Strategy
    rate: float
    job: Job
    round_seconds: float
    """Simulated, of a round in which everybody takes part."""


def advise(
    config: ConfigLike,
    devices: str | Path,
    out: str | Path,
    *,
    seeds: Sequence[int] = (1, 2, 3),
    deadline_seconds: float | None = None,
    hours: float | None = None,
    minutes: float | None = None,
    rates: Sequence[float] = (),
    target: float | None = None,
    processes: int | None = None,
    fetching: Fetching = nullcontext,
    watch: Watch | None = None,
) -> Advice:
    """Train every sensible strategy for a fleet on the same data, and compare them by its clock.

    Args:
        config: a configuration, a dictionary of its sections, or the path of a TOML file. Its
            clients become the devices of the fleet; its method is replaced.
        devices: a file of devices, or a built-in fleet.
        out: the folder that gets one folder per run; the same call continues there.
        seeds: of each strategy; splits and initial weights are the same for all strategies.
        deadline_seconds: of a round, for strategies with a deadline (default: the planner's).
        hours: simulated hours after which strategies are compared (default: as long as FedPLT
            takes for the configuration's rounds).
        minutes: of this machine's time at most, by halving the strategies; default: no limit.
        rates: learning rates to try with every strategy, on the first seed and a quarter of the
            hours; default: the configuration's for all.
        target: report the hours to reach this score (default: one that most reach).
        processes: runs at a time (default: one per core).
        fetching: context manager that displays the progress of downloads.
        watch: gets progress callbacks.
    """
    ends = math.inf if minutes is None else time.monotonic() + 60 * minutes
    config, out, seeds = on_device(as_config(config)), Path(out), list(seeds)
    check_runs({"strategies": {}}, seeds, processes, target, config.task.task().metric.info)
    _check_positive(deadline_seconds=deadline_seconds, hours=hours, minutes=minutes)
    _check_positive(**{f"rates, number {i + 1}": rate for i, rate in enumerate(rates)})
    if config.engine.name != "simulator":
        raise ConfigError("advice is simulated: set engine.name = 'simulator'.", key="engine.name")
    make_folder(out)
    with closing(take_lock(out)):
        copied = _copied(devices, out)
        find_code(config)
        with fetching() as progress:
            data = load_data(config, progress)
        config = variant(config, config.name, {}, seeds[0])
        setting = make_setting(config, copied, data, model_from_config(config), deadline_seconds)
        strategies, skipped = strategies_of(setting)
        candidates = []
        for strategy in strategies:
            try:
                candidates += _candidates(setting, with_exclusions(strategy, setting, out), rates)
            except FedpltError as error:
                skipped[strategy.title] = str(error)
        if not candidates:
            reasons = [f"{title}: {why}." for title, why in skipped.items()]
            raise RunError("\n".join(["no strategy can be trained:", *reasons]))
        planned = next((c for c in candidates if c.strategy.label == RECOMMENDED), candidates[0])
        longest = max(planned.round_seconds, setting.plan.round_seconds)
        race = _Race(
            setting, data, out, seeds, processes or available_cores(), watch or Watch(), ends,
            3600 * hours if hours else config.rounds * longest,
        )  # fmt: skip
        advice = race.run(candidates, skipped, target)
        write_text(out / "advice.json", json.dumps(advice.to_json(), indent=1))
    return advice


def _check_positive(**values: float | None) -> None:
    for name, value in values.items():
        if value is not None and not (isinstance(value, (int, float)) and 0 < value < math.inf):
            raise ConfigError(f"{name} is {value!r}; give a positive number.")


def _copied(devices: str | Path, out: Path) -> Path:
    """The fleet as a file of the advice: the runs depend on it."""
    source = find_fleet(devices)
    copy = out / f"devices{source.suffix.lower()}"
    try:
        text = source.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError):
        return source  # whoever reads it says why it cannot be read
    if copy.exists() and copy.read_text(encoding="utf-8") != text:
        raise ConfigError(
            f"{out} has advice for other devices ({copy}). Choose another folder with --out, or "
            "delete this one."
        )
    write_text(copy, text)
    return copy


def _candidates(setting: Setting, strategy: Strategy, rates: Sequence[float]) -> list[Candidate]:
    found = []
    for rate in rates or [setting.config.training.learning_rate]:
        label = f"{strategy.label}-rate{rate:g}" if len(rates) > 1 else strategy.label
        training = setting.config.training.model_dump(exclude_none=True, mode="json")
        sections = {**strategy.sections, "training": {**training, "learning_rate": rate}}
        strategy = replace(strategy, sections=sections)
        job = job_of(setting, variant(setting.config, label, sections, setting.config.seed))
        seconds = client_seconds(job)
        limit = job.config.fleet.late_after_seconds if job.config.fleet else None
        there = [
            each
            for client, each in enumerate(seconds)
            if job.device_name(client) not in strategy.excluded
            and (limit is None or each <= limit * (1 + 1e-9))
        ]
        if not there:
            raise RunError("no device can take part")
        found.append(Candidate(label, strategy, rate, job, float(max(there))))
    return found


@dataclass
class _Race:
    """Trains the candidates, all of them or by halving."""

    setting: Setting
    data: TrainingData
    out: Path
    seeds: list[int]
    processes: int
    watch: Watch
    ends: float
    """By the machine's clock; infinite: there is no hurry."""
    seconds: float
    """Simulated seconds after which strategies are compared."""

    def run(
        self, candidates: list[Candidate], skipped: dict[str, str], target: float | None
    ) -> Advice:
        self.failed: dict[tuple[str, int], str] = {}
        self.compared_after: dict[str, float] = {}
        rates = sorted({candidate.rate for candidate in candidates})
        kept, everyone = self._halve(candidates), candidates
        self._train(kept, self.seeds, self.seconds)
        metric = self.setting.job.metric.info
        self.splits = {seed: split_data(self._seeded(seed), self.data.train) for seed in self.seeds}
        self.labels = self._labels()
        left = [c for c in everyone if c not in kept]
        outcomes = [self._outcome(c, self.seeds if c in kept else self.seeds[:1]) for c in
                    [*kept, *self._of_best_rates(left, kept)]]  # fmt: skip
        ended = [o for o in outcomes if o.histories]
        skipped |= {
            o.strategy.title: "; ".join(o.failed.values()) or "no round ended in the given minutes"
            for o in outcomes
            if not o.histories
        }
        if not ended:
            reasons = [f"{title}: {why}." for title, why in skipped.items()]
            raise RunError("\n".join(["no strategy has an evaluated round:", *reasons]))
        order = [*dict.fromkeys(c.strategy.label for c in everyone)]
        ended.sort(key=lambda outcome: order.index(outcome.strategy.label))
        finals = [o for o in ended if o.compared_after is None]
        lasts = [o.end(seed) for o in finals for seed in o.histories if not o.capped]
        return Advice(
            self.setting, metric, ended, skipped, min([self.seconds, *lasts]), rates, target
        )

    def _seeded(self, seed: int) -> RunConfig:
        return variant(self.setting.config, self.setting.config.name, {}, seed)

    def _labels(self) -> np.ndarray[Any, Any] | None:
        try:
            return np.asarray(self.data.train.labels())
        except DataError:
            return None

    def _of_best_rates(
        self, left: Sequence[Candidate], kept: Sequence[Candidate]
    ) -> list[Candidate]:
        """Of the candidates that were given up, one per strategy: that with the best score."""
        found: dict[str, Candidate] = {}
        for candidate in self._ranked(left):
            if candidate.strategy.label not in {c.strategy.label for c in kept}:
                found.setdefault(candidate.strategy.label, candidate)
        return list(found.values())

    def _halve(self, candidates: list[Candidate]) -> list[Candidate]:
        """The candidates that are trained to the end."""
        hurry, tuned = self.ends < math.inf, len({c.rate for c in candidates}) > 1
        if not hurry and not tuned:
            return candidates
        first = self.seconds / 4
        rungs = self._read_rungs()
        if hurry:
            first = rungs[0] if rungs else min(first, self._affordable_first(candidates))
        kept = self._rung(candidates, first)
        kept = self._ranked_strategies(kept)
        if not hurry:
            return kept
        number = max(1, math.ceil(math.log2(max(2, len(kept)) / 2)))
        self.seconds = rungs[1] if len(rungs) > 1 else self._affordable_last(kept, first, number)
        write_text(self.out / "rungs.json", json.dumps({"rungs": [first, self.seconds]}))
        for index in range(number):
            better = kept[: max(2, math.ceil(len(kept) / 2))]
            self._give_up(kept, better, first * (self.seconds / first) ** (index / number))
            kept = better
            if index + 1 < number:
                between = first * (self.seconds / first) ** ((index + 1) / number)
                kept = self._ranked(self._rung(kept, between))
        return kept

    def _rung(self, candidates: list[Candidate], seconds: float) -> list[Candidate]:
        """Train with the first seed; those without a round are given up."""
        self._train(candidates, self.seeds[:1], seconds)
        for candidate in candidates:
            self.compared_after[candidate.label] = seconds
        ranked = self._ranked(candidates)
        return ranked or candidates

    def _give_up(self, kept: Sequence[Candidate], better: Sequence[Candidate], at: float) -> None:
        for candidate in kept:
            if candidate not in better:
                self.compared_after[candidate.label] = at

    def _ranked_strategies(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Each strategy with its best rate, best first."""
        found: dict[str, Candidate] = {}
        for candidate in self._ranked(candidates):
            found.setdefault(candidate.strategy.label, candidate)
        return list(found.values()) or list(candidates)

    def _ranked(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Best first, by the score of the first seed after the time of their last rung."""
        scores = {}
        for candidate in candidates:
            history = self._histories(candidate, self.seeds[:1]).get(self.seeds[0])
            after = self.compared_after[candidate.label]
            score = score_after(history, after) if history else None
            if score is not None:
                scores[candidate.label] = score
        by_label = {candidate.label: candidate for candidate in candidates}
        return [by_label[label] for label in best_first(self.setting.job.metric.info, scores)]

    def _histories(self, candidate: Candidate, seeds: Sequence[int]) -> dict[int, History]:
        folders = {seed: run_folder(self.out, candidate.label, seed) for seed in seeds}
        return {s: of_final_model(h) for s, h in evaluated_histories(folders).items()}

    def _rounds(self, candidate: Candidate, seconds: float) -> int:
        most = MOST_ROUNDS * self.setting.config.rounds
        return min(most, max(1, math.ceil(seconds / candidate.round_seconds - 1e-9)))

    def _train(self, candidates: Sequence[Candidate], seeds: Sequence[int], seconds: float) -> None:
        runs = {}
        for seed in seeds:
            for candidate in candidates:
                folder = run_folder(self.out, candidate.label, seed)
                config = variant(
                    self.setting.config, candidate.label, candidate.strategy.sections, seed
                )
                wanted = {"rounds": self._rounds(candidate, seconds)}
                done = Run(folder, config).done
                wanted["rounds"] = max(wanted["rounds"], done)  # a later rung may have been further
                runs[candidate.label, seed] = Run(folder, config.model_copy(update=wanted))
        check_folders(runs.values())
        left = self.ends - time.monotonic()
        self.failed |= run_all(runs, self.processes, self.watch, left)

    def _affordable_first(self, candidates: Sequence[Candidate]) -> float:
        """Simulated seconds of the first rung, from one timed batch of each strategy."""
        budget = self.processes * FIRST_SHARE * (self.ends - time.monotonic())
        cost = 0.0
        for candidate in candidates:
            each = forecast(candidate.job, 1)
            cost += each.seconds / each.rounds / candidate.round_seconds
        return max(budget - START_SECONDS * len(candidates), budget / 4) / cost

    def _affordable_last(self, kept: Sequence[Candidate], first: float, number: int) -> float:
        """Simulated seconds of the last rung, from the rounds that were measured."""
        costs = []
        for candidate in kept:
            rounds = self._histories(candidate, self.seeds[:1])[self.seeds[0]].rounds
            costs.append(fmean(r.seconds for r in rounds) / candidate.round_seconds)
        finals = sum(sorted(costs)[-2:])  # the two that take the longest to simulate
        between = sum(costs[: math.ceil(len(costs) / 2)]) if number > 1 else 0.0
        starts = START_SECONDS * (2 * len(self.seeds) + (len(kept) / 2 if number > 1 else 0))
        budget = self.processes * 0.9 * (self.ends - time.monotonic()) - starts
        last = (budget + first * finals) / (finals * len(self.seeds) + between / 2)
        return min(self.seconds, max(first, last))

    def _read_rungs(self) -> list[float]:
        try:
            values = json.loads((self.out / "rungs.json").read_text(encoding="utf-8"))
            return [float(value) for value in values["rungs"]]
        except (OSError, ValueError, KeyError, TypeError):
            return []

    def _outcome(self, candidate: Candidate, seeds: Sequence[int]) -> Outcome:
        histories = self._histories(candidate, seeds)
        most = MOST_ROUNDS * self.setting.config.rounds
        slow = [k for k in range(candidate.job.plan.num_clients)
                if candidate.job.device_name(k) in self.setting.slow]  # fmt: skip
        return Outcome(
            candidate.label,
            candidate.strategy,
            candidate.rate,
            candidate.job,
            histories,
            {s: client_seconds(replace(candidate.job, offsets=self.splits[s].offsets))
             for s in histories},
            {s: Shares(np.diff(self.splits[s].offsets), self._labels_of(self.splits[s]))
             for s in histories},
            {s: self._slow_score(candidate, s, slow) for s in histories},
            self.compared_after.get(candidate.label) if len(seeds) < len(self.seeds) else None,
            all(history.rounds[-1].round >= most for history in histories.values()),
            {s: why for (label, s), why in self.failed.items() if label == candidate.label},
        )  # fmt: skip

    def _labels_of(self, split: Split) -> np.ndarray[Any, Any] | None:
        return None if self.labels is None else self.labels[split.order]

    def _slow_score(self, candidate: Candidate, seed: int, slow: Sequence[int]) -> float | None:
        """The final model's score on data like that of the slow devices.

        The validation data, weighted by their labels; without labels, their own examples.
        """
        if not slow:
            return None
        split, folder = self.splits[seed], run_folder(self.out, candidate.label, seed)
        parts = [split.order[split.offsets[k] : split.offsets[k + 1]] for k in slow]
        theirs = np.concatenate(parts)
        try:
            if self.labels is not None and self.setting.job.metric.is_mean:
                counts = np.bincount(self.labels[theirs])
                found = evaluate(folder, self.data.validation)
                return float(found.client_scores((counts / counts.sum())[None])[0])
            return evaluate(folder, self.data.train.arranged(theirs)).score
        except (RunError, DataError):  # it was stopped before its model was written
            return None


def of_final_model(history: History) -> History:
    """Scores of the model that the run ends with: the average of past models, if there is one."""
    rounds = [
        record if record.average_score is None else replace(record, score=record.average_score)
        for record in history.rounds
    ]
    return replace(history, rounds=rounds)
