"""Train the strategies for a fleet: all of them to the end, or by successive halving in a budget.

With a budget of minutes, all strategies start with one seed and a part of the simulated time. In
each further rung the better half continues for longer; the last two are trained with all seeds.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from fedplt.data import TrainingData
from fedplt.errors import DataError, RunError
from fedplt.federation import History, evaluate, forecast, split_data
from fedplt.files import write_text
from fedplt_compare.advice import Advice
from fedplt_compare.compare import (
    Run,
    Watch,
    check_folders,
    evaluated_histories,
    run_all,
    run_folder,
    variant,
)
from fedplt_compare.outcome import NO_TIME, Candidate, Outcome, examples_of, score_after
from fedplt_compare.processes import STOPPED
from fedplt_compare.strategies import Setting, Strategy, job_of
from fedplt_compare.time_and_energy import client_seconds, late_clients

MOST_ROUNDS = 5
"""A strategy with short rounds trains at most this multiple of the configuration's rounds."""
FIRST_SHARE = 0.3
"""Share of the minutes for the first rung."""
LAST_SHARE = 0.85
"""Share of the remaining minutes for all further rungs."""
FIRST_LIMIT = 0.6
"""The first rung is stopped after this share of the minutes."""
START_SECONDS = 6.0
"""Seconds from the start of a process to its first round."""


def candidates_of(setting: Setting, strategy: Strategy, rates: Sequence[float]) -> list[Candidate]:
    found = []
    for rate in rates or [setting.config.training.learning_rate]:
        label = f"{strategy.label}-rate{rate}" if len(rates) > 1 else strategy.label
        training = setting.config.training.model_dump(exclude_none=True, mode="json")
        sections = {**strategy.sections, "training": {**training, "learning_rate": rate}}
        strategy = replace(strategy, sections=sections)
        job = job_of(setting, variant(setting.config, label, sections, setting.config.seed))
        seconds, late = client_seconds(job), late_clients(job)
        there = [
            each
            for client, each in enumerate(seconds)
            if client not in late and job.device_name(client) not in strategy.excluded
        ]
        if not there:
            raise RunError("no device can take part")
        found.append(Candidate(label, strategy, rate, job, float(max(there))))
    return found


@dataclass
class Race:
    """Trains the candidates, all of them or by halving."""

    setting: Setting
    data: TrainingData
    out: Path
    seeds: list[int]
    processes: int
    watch: Watch
    ends: float
    """Time limit on this machine's clock; infinite: no limit."""
    seconds: float
    """Simulated seconds after which strategies are compared."""

    def __post_init__(self) -> None:
        self.failed: dict[tuple[str, int], str] = {}
        self.compared_after: dict[str, float] = {}
        """Simulated time of the last rung of each candidate."""
        splits = {s: variant(self.setting.config, "split", {}, s) for s in self.seeds}
        self.splits = {s: split_data(each, self.data.train) for s, each in splits.items()}
        self.most_rounds = MOST_ROUNDS * self.setting.config.rounds
        self.labels: NDArray[np.int64] | None = None
        with suppress(DataError):
            self.labels = np.asarray(self.data.train.labels())

    def run(
        self, candidates: list[Candidate], skipped: dict[str, str], target: float | None
    ) -> Advice:
        kept, ranked = self._halved(candidates)
        self._train(kept, self.seeds, self.seconds)
        chosen = with_best_rates([*kept, *ranked, *candidates])
        found = [self._outcome(c, c in kept) for c in candidates if c in chosen]
        least = min([self.seconds / 2, *(self.compared_after.get(c.label, math.inf) for c in kept)])
        outcomes = complete(found, skipped, self.seeds, least)
        seconds = min([self.seconds, *(o.known_until for o in outcomes if o.is_final)])
        if not any(o.is_final and o.scores(seconds) for o in outcomes):
            reasons = [f"{title}: {why}." for title, why in skipped.items()]
            more = "Start it again to continue, or give it more minutes."
            raise RunError("\n".join(["no strategy has got far enough.", *reasons, more]))
        rates = sorted({candidate.rate for candidate in candidates})
        metric = self.setting.job.metric.info
        return Advice(self.setting, metric, outcomes, skipped, seconds, rates, target)

    def _halved(self, candidates: list[Candidate]) -> tuple[list[Candidate], list[Candidate]]:
        """The candidates to train to the end, and all that have a score by then, best first."""
        if self.ends == math.inf:
            tuned = len({c.rate for c in candidates}) > 1
            ranked = self._rung(candidates, self.seconds / 4) if tuned else candidates
            return with_best_rates(ranked), ranked
        known = self._read_rungs()
        first = known[0] if known else self._affordable_first(candidates)
        self._write_rungs(first, *known[1:])
        ranked = self._rung(candidates, first, FIRST_LIMIT)
        kept = with_best_rates(ranked)
        if not kept:
            return [], []
        halvings = max(0, math.ceil(math.log2(len(kept) / 2)))
        last = known[1] if len(known) > 1 else self._affordable_last(kept, first, halvings)
        self._write_rungs(first, last)
        self.seconds = last
        for index in range(1, halvings + 1):
            kept = kept[: math.ceil(len(kept) / 2)]
            if index < halvings:
                kept = self._rung(kept, first * (last / first) ** (index / halvings)) or kept
        return kept, ranked

    def _rung(
        self, candidates: list[Candidate], seconds: float, share: float = 1.0
    ) -> list[Candidate]:
        """Train with the first seed; return those that have a score by then, best first."""
        self._train(candidates, self.seeds[:1], seconds, share)
        scores: dict[Candidate, float] = {}
        metric = self.setting.job.metric.info
        for candidate in candidates:
            self.compared_after[candidate.label] = seconds
            found = evaluated_histories(self.out, candidate.label, self.seeds[:1])
            for history in found.values():
                # The average of models lags behind at first, so take the better score.
                averages = [history.of_average] if history.ship and history.final_model else []
                both = [score_after(h, seconds) for h in (history, *averages)]
                if known := [score for score in both if score is not None]:
                    scores[candidate] = metric.best(known)
        return sorted(scores, key=lambda c: scores[c], reverse=metric.direction == "higher")

    def _histories(self, candidate: Candidate, seeds: Sequence[int]) -> dict[int, History]:
        found = evaluated_histories(self.out, candidate.label, seeds)
        return {seed: history.shipped for seed, history in found.items()}

    def _train(
        self,
        candidates: Sequence[Candidate],
        seeds: Sequence[int],
        seconds: float,
        share: float = 1.0,
    ) -> None:
        """Train for these simulated seconds, in at most this share of the time that is left."""
        runs = {}
        for seed in seeds:
            for candidate in candidates:
                label, folder = candidate.label, run_folder(self.out, candidate.label, seed)
                config = variant(self.setting.config, label, candidate.strategy.sections, seed)
                needed = max(1, math.ceil(seconds / candidate.planned_seconds - 1e-9))
                rounds = max(min(self.most_rounds, needed), Run(folder, config).done)
                runs[label, seed] = Run(folder, config.model_copy(update={"rounds": rounds}))
        check_folders(runs.values())
        if runs:
            left = share * (self.ends - time.monotonic())
            before = {key: why for key, why in self.failed.items() if key not in runs}
            self.failed = before | run_all(runs, self.processes, self.watch, left)

    def _affordable_first(self, candidates: Sequence[Candidate]) -> float:
        """Simulated seconds of the first rung, from one timed batch of each strategy.

        At least two planned rounds, as there would be nothing to rank otherwise.
        """
        budget = self.processes * FIRST_SHARE * (self.ends - time.monotonic())
        cost = 0.0
        for candidate in candidates:
            each = forecast(candidate.job, 1)
            cost += each.seconds / each.rounds / candidate.planned_seconds
        affordable = (budget - START_SECONDS * len(candidates)) / cost
        return max(2 * self.setting.plan.round_seconds, min(self.seconds / 4, affordable))

    def _affordable_last(self, kept: Sequence[Candidate], first: float, halvings: int) -> float:
        """Simulated seconds of the last rung, from the rounds that were measured."""
        costs = []
        for candidate in kept:
            rounds = self._histories(candidate, self.seeds[:1])[self.seeds[0]].rounds
            costs.append(fmean(r.seconds for r in rounds) / candidate.planned_seconds)
        finals = sum(sorted(costs)[-2:])  # the two strategies that take longest to simulate
        between = sum(costs) / 2 if halvings > 1 else 0.0
        starts = START_SECONDS * (2 * len(self.seeds) + (len(kept) / 2 if halvings > 1 else 0))
        budget = self.processes * LAST_SHARE * (self.ends - time.monotonic()) - starts
        last = (budget + first * finals) / (finals * len(self.seeds) + between / 2)
        return max(first, min(self.seconds, last))

    def _read_rungs(self) -> list[float]:
        try:
            values = json.loads((self.out / "rungs.json").read_text(encoding="utf-8"))
            return [float(value) for value in values["seconds"]]
        except (OSError, ValueError, KeyError, TypeError):
            return []

    def _write_rungs(self, *seconds: float) -> None:
        write_text(self.out / "rungs.json", json.dumps({"seconds": seconds}))

    def _outcome(self, candidate: Candidate, is_final: bool) -> Outcome:
        histories = self._histories(candidate, self.seeds if is_final else self.seeds[:1])
        return Outcome(
            **vars(candidate),
            histories=histories,
            splits=self.splits,
            labels=self.labels,
            slow_scores={seed: self._slow_score(candidate, seed) for seed in histories},
            compared_after=None if is_final else self.compared_after[candidate.label],
            most_rounds=self.most_rounds,
            failed={s: why for (k, s), why in self.failed.items() if k == candidate.label},
        )

    def _slow_score(self, candidate: Candidate, seed: int) -> float | None:
        """The final model's score on data distributed like the slow devices' data.

        The validation data is weighted by their labels; without labels, it is their own examples.
        """
        job, folder = candidate.job, run_folder(self.out, candidate.label, seed)
        slow = [k for k in range(job.plan.num_clients) if job.device_name(k) in self.setting.slow]
        if not slow:
            return None
        theirs = examples_of(self.splits[seed], slow)
        try:
            if self.labels is not None and self.setting.job.metric.is_mean:
                counts = np.bincount(self.labels[theirs])
                found = evaluate(folder, self.data.validation)
                return float(found.client_scores((counts / counts.sum())[None])[0])
            return evaluate(folder, self.data.train.arranged(theirs)).score
        except (RunError, DataError):  # the run was stopped before it wrote its model
            return None


def with_best_rates(ranked: Sequence[Candidate]) -> list[Candidate]:
    """The best candidate of each strategy: the first one in the ranking."""
    found: dict[str, Candidate] = {}
    for candidate in ranked:
        found.setdefault(candidate.strategy.label, candidate)
    return [*found.values()]


def complete(
    outcomes: Sequence[Outcome], skipped: dict[str, str], seeds: Sequence[int], least: float
) -> list[Outcome]:
    """The outcomes to compare, with the seeds for which all have a score after ``least`` seconds.

    A run that was stopped early would shorten the time after which all are compared. Strategies
    without a run are added to ``skipped``, with the reason.
    """
    ended = []
    for outcome in outcomes:
        failed = outcome.failed.items()
        broken = {seed: why for seed, why in failed if not why.startswith(STOPPED)}
        # A rung that was stopped early says nothing about the strategy.
        unusable = broken if outcome.is_final else outcome.failed
        if outcome.histories and not unusable:
            ended.append(outcome)
            continue
        why = "; ".join(f"seed {seed}: {why}" for seed, why in broken.items())
        skipped[outcome.strategy.title] = why or NO_TIME
    finals = [outcome for outcome in ended if outcome.is_final]
    good = [seed for seed in seeds if all(o.reaches(seed, least) for o in finals)] or seeds[:1]
    found = []
    for outcome in ended:
        runs = {seed: run for seed, run in outcome.histories.items() if seed in good}
        if not outcome.is_final:
            found.append(outcome)
        elif runs:
            slow = {seed: score for seed, score in outcome.slow_scores.items() if seed in runs}
            found.append(replace(outcome, histories=runs, slow_scores=slow))
        else:
            skipped[outcome.strategy.title] = NO_TIME
    return found
