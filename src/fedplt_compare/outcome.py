"""The result of a strategy: scores and costs by simulated time, and clients left out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedplt.comparison import cost_to_reach, score_within
from fedplt.data import Split
from fedplt.federation import History, Job
from fedplt_compare.results import by_seed
from fedplt_compare.strategies import Strategy
from fedplt_compare.time_and_energy import Seconds, client_seconds, idle_share, joules, never_there

TIME = "simulated time"
NO_TIME = "there was no time for it"
"""Reason for skipping a strategy: the budget was too short."""
MOSTLY = 0.5
"""A label is mostly lost if more than this share of its examples is on devices left out."""


def score_after(history: History, seconds: float) -> float | None:
    """The score after these simulated seconds, or of the last round if the run ended earlier.

    None if no round had ended by then.
    """
    return score_within(history, TIME, min(seconds, _end(history)))


def examples_of(split: Split, clients: Sequence[int]) -> NDArray[np.int64]:
    """Indices of these clients' examples."""
    return np.concatenate([split.order[:0], *map(split.client, clients)])


def lost(
    split: Split, labels: NDArray[np.int64] | None, clients: Sequence[int]
) -> tuple[float, list[int]]:
    """The share of all examples that these clients have, and the labels that are mostly theirs."""
    gone = examples_of(split, clients)
    share = len(gone) / len(split.order)
    if labels is None:
        return share, []
    whole = np.bincount(labels[split.order])
    there = np.bincount(labels[gone], minlength=len(whole))
    return share, np.flatnonzero(there > MOSTLY * whole).tolist()


@dataclass(frozen=True, eq=False)
class Candidate:
    """A strategy with a learning rate."""

    label: str
    """Part of the names of its run folders."""
    strategy: Strategy
    rate: float
    job: Job
    planned_seconds: float
    """Simulated time of a round in which all clients take part."""


@dataclass(frozen=True, eq=False)
class Outcome(Candidate):
    """A candidate and its runs."""

    histories: Mapping[int, History]
    """Histories by seed, with the scores of the final model."""
    splits: Mapping[int, Split]
    labels: NDArray[np.int64] | None
    """Labels of the training data; None if it has none."""
    slow_scores: Mapping[int, float | None]
    compared_after: float | None
    """Simulated seconds after which it was dropped; None: it was trained to the end."""
    most_rounds: int
    """Limit for strategies with short rounds: a run ends after this many, even if time is left."""
    failed: Mapping[int, str]

    @property
    def is_final(self) -> bool:
        """Whether it was trained to the end, with all seeds."""
        return self.compared_after is None

    @cached_property
    def seconds(self) -> dict[int, Seconds]:
        """Seconds of a round by seed and client: splits differ from seed to seed."""
        offsets = {seed: self.splits[seed].offsets for seed in self.histories}
        return {seed: client_seconds(replace(self.job, offsets=o)) for seed, o in offsets.items()}

    @property
    def last_seconds(self) -> float:
        """The simulated time at which the first of its runs ended."""
        return min(map(_end, self._runs))

    @property
    def capped(self) -> bool:
        """Whether all its runs ended at ``most_rounds``."""
        return all(map(self._is_capped, self._runs))

    @property
    def known_until(self) -> float:
        """Simulated time up to which all runs have scores; a capped run keeps its last score."""
        ends = [_end(run) for run in self._runs if not self._is_capped(run)]
        return min(ends, default=math.inf)

    def _is_capped(self, run: History) -> bool:
        return run.rounds[-1].round >= self.most_rounds

    def reaches(self, seed: int, seconds: float) -> bool:
        """Whether the run of this seed has a score for this time."""
        run = self.histories.get(seed)
        return run is not None and (self._is_capped(run) or _end(run) >= seconds)

    def scores(self, seconds: float) -> dict[int, float]:
        """Score by seed after this time; runs without a round by then are left out."""
        found = {seed: score_after(run, seconds) for seed, run in self.histories.items()}
        return {seed: score for seed, score in found.items() if score is not None}

    def times_to(self, target: float) -> dict[int, float | None]:
        """Simulated seconds until this score, by seed."""
        return {seed: cost_to_reach(run, TIME, target) for seed, run in self.histories.items()}

    def total(self, seconds: float, what: str) -> float:
        """A field of Totals up to this simulated time, mean over the seeds."""
        return fmean(
            _until(run, seconds, [float(getattr(record.total, what)) for record in run.rounds])
            for run in self._runs
        )

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
        """Mean simulated time of a round."""
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
        """Share of examples and labels lost with :attr:`left_out`, with the first seed."""
        return lost(self.splits[next(iter(self.histories))], self.labels, self.left_out)

    def to_json(self, at: float, target: float) -> dict[str, Any]:
        """All results after ``at`` simulated seconds, as plain values."""
        share, labels = self.lost
        return {
            "title": self.strategy.title,
            "learning_rate": self.rate,
            "after_seconds": at,
            "given_up": not self.is_final,
            "scores": by_seed(self.scores(at)),
            "seconds_to_target": by_seed(self.times_to(target)),
            "slow_scores": by_seed(self.slow_scores),
            "round_seconds": self.round_seconds,
            **{key: self.total(at, key) for key in ("bytes_up", "bytes_down", "flops")},
            "idle_share": self.idle,
            "joules": self.energy(at),
            "left_out": self.left_out,
            "examples_lost": share,
            "labels_mostly_lost": labels,
            "failed": by_seed(self.failed),
        }


def _end(history: History) -> float:
    return history.evaluated[-1].total.simulated_seconds


def _until(history: History, seconds: float, values: Sequence[float]) -> float:
    """A cumulative value after this time, by linear interpolation between rounds."""
    times = [0.0, *(record.total.simulated_seconds for record in history.rounds)]
    return float(np.interp(seconds, times, [0.0, *values]))
