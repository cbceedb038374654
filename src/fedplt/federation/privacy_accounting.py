"""The private rounds of a run: their key, their aggregator, and the privacy that they spend.

Google's dp-accounting computes the spent privacy with privacy loss distributions. It rounds up, so
that epsilon is never too small. The package is imported when it is used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedplt.configuration import RunConfig
from fedplt.errors import ConfigError
from fedplt.federation.job import Job
from fedplt.imports import optional_module
from fedplt.planning import RoundAssignments
from fedplt.server import PrivateAggregator, SecretStream
from fedplt.text import counted

STEP = 1e-3
"""Discretization of the privacy loss; a tenth of it changes epsilon by less than 0.001."""
MOST_STEPS = 1e6
LEAST_NOISE, MOST_NOISE = 0.3, 1e4


class PrivateRounds:
    """Client-level differential privacy of a run's models."""

    def __init__(self, job: Job) -> None:
        assert job.config.privacy is not None
        self.job, self.settings = job, job.config.privacy
        _refuse_leaks(job)
        _accounting()  # refuse at once if it is not installed
        seed = self.settings.noise_seed
        self.secret = SecretStream.fresh() if seed is None else SecretStream.from_seed(seed)
        self.repeats = 0
        """Rounds that were run again although their first model may have been seen."""

    def aggregator(self, round: int, everybody: RoundAssignments) -> PrivateAggregator:
        """An aggregator whose divisors count all clients of the plan, available or not."""
        job, settings = self.job, self.settings
        made = PrivateAggregator(
            job.layers, job.recipe.normalizer, clip=settings.clip,
            noise_multiplier=settings.noise_multiplier, probability=probability_of(job.config),
            secret=self.secret, round=round, min_contributors=job.config.server.min_contributors,
        )  # fmt: skip
        for client in range(job.plan.num_clients):
            made.expect(everybody[client])
        return made

    def record(self, rounds: int) -> dict[str, Any]:
        return privacy_record(self.job.config, rounds, self.repeats)

    def repeat(self, rounds: int) -> int:
        """Note that the next rounds are released again, with new noise and clients; they count.

        Returns their number; 0 if ``rounds`` is not positive.
        """
        if rounds <= 0:
            return 0
        self.repeats += rounds
        # A folder may be restored twice to the same key, which would give the same noise twice.
        fresh = self.settings.noise_seed is None
        self.secret = SecretStream.fresh() if fresh else self.secret.next(self.repeats)
        return rounds

    def tensors(self) -> dict[str, Tensor]:
        """The key and the number of repeats, for the checkpoint; the key is nowhere else."""
        found = {}
        if self.settings.noise_seed is None or self.repeats:
            key = np.frombuffer(self.secret.key, np.uint8)
            found["privacy.key"] = torch.from_numpy(key.copy())
        if self.repeats:
            found["privacy.repeats"] = torch.tensor(self.repeats)
        return found

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        self.repeats = int(tensors.get("privacy.repeats", torch.tensor(0)))
        if "privacy.key" in tensors or self.settings.noise_seed is None:
            self.secret = SecretStream(tensors["privacy.key"].numpy().tobytes())


def privacy_record(
    config: RunConfig, rounds: int | None = None, repeats: int = 0
) -> dict[str, Any]:
    """Epsilon and delta after ``rounds`` rounds (default: all), and their parameters.

    ``repeats``: rounds that were released twice, which count twice.
    """
    assert config.privacy is not None
    settings, probability = config.privacy, probability_of(config)
    number = config.rounds if rounds is None else rounds
    epsilon = epsilon_after(
        number + repeats, noise_multiplier=settings.noise_multiplier, probability=probability,
        delta=settings.delta,
    )  # fmt: skip
    return {
        "epsilon": float(f"{epsilon:.6g}"),
        "delta": settings.delta,
        "rounds": number,
        **({"repeats": repeats} if repeats else {}),
        "clip": settings.clip,
        "noise_multiplier": settings.noise_multiplier,
        "probability": probability,
        "secret": settings.noise_seed is None,
    }


def probability_of(config: RunConfig) -> float:
    """The probability of each client to take part in a round."""
    chance = config.sampling.probability
    return 1.0 if chance is None else chance


def privacy_text(record: Mapping[str, Any]) -> str:
    """What a run's privacy record says, in one sentence."""
    repeats = record.get("repeats", 0)
    again = f" (with {repeats} run again after damage, counted twice)" if repeats else ""
    text = (
        f"({record['epsilon']:.3g}, {record['delta']:g})-differential privacy after "
        f"{counted(record['rounds'], 'round')}{again}, for each client with all of its data, "
        "towards everybody who sees the models but not the server's records and checkpoints"
    )
    if not record["secret"]:
        text += "; but the noise comes from privacy.noise_seed: whoever knows it can remove it"
    return f"{text}."


def epsilon_after(
    rounds: int, *, noise_multiplier: float, probability: float, delta: float
) -> float:
    """Epsilon after some rounds; two neighbors differ in one client, with all of its data."""
    accountant = _accountant(rounds, noise_multiplier)
    accountant.compose(_round(noise_multiplier, probability), rounds)
    return float(accountant.get_epsilon(delta))


def noise_for(epsilon: float, rounds: int, *, probability: float, delta: float) -> float:
    """The smallest noise multiplier with at most this epsilon after all rounds."""
    accounting = _accounting()
    calibration = accounting.mechanism_calibration
    bracket = calibration.ExplicitBracketInterval(LEAST_NOISE, MOST_NOISE)
    try:
        found = accounting.calibrate_dp_mechanism(
            lambda: _accountant(rounds, LEAST_NOISE),
            lambda noise: accounting.SelfComposedDpEvent(_round(noise, probability), rounds),
            epsilon, delta, bracket, tol=1e-3,
        )  # fmt: skip
    except (ValueError, calibration.NoBracketIntervalFoundError) as error:
        raise ConfigError(
            f"no noise multiplier from {LEAST_NOISE} to {MOST_NOISE:g} gives epsilon "
            f"{epsilon:g} in {counted(rounds, 'round')}.",
            key="privacy",
        ) from error
    return float(found)


def _accounting(name: str = "dp_accounting") -> Any:
    return optional_module(name, "[privacy]", "'fedplt[privacy]'")


def _accountant(rounds: int, noise_multiplier: float) -> Any:
    """Wider steps where there is little noise, so that there are never too many."""
    sensitivity = 1 / noise_multiplier
    largest = rounds * sensitivity**2 / 2 + 20 * math.sqrt(rounds) * sensitivity
    step = max(STEP, largest / MOST_STEPS)
    relation = _accounting().NeighboringRelation.ADD_OR_REMOVE_ONE
    return _accounting("dp_accounting.pld").PLDAccountant(relation, step)


def _round(noise_multiplier: float, probability: float) -> Any:
    event = _accounting().GaussianDpEvent(noise_multiplier)
    if probability == 1:
        return event
    return _accounting().PoissonSampledDpEvent(probability, event)


def _refuse_leaks(job: Job) -> None:
    """Refuse settings that send client data without noise, or that do not work with noise."""
    for key in ("static_norm", "local_norms"):
        if getattr(job.recipe, key):
            problem = "statistics of the clients' data would be gathered or evaluated without noise"
            raise ConfigError(f"{problem}; leave it out with [privacy].", key=f"method.{key}")
    buffers = [tensor.name for tensor in job.layers.tensors if tensor.is_buffer]
    if buffers:
        raise ConfigError(
            f"{buffers[0]} is a running statistic, and with noise a variance may become negative. "
            "With [privacy] use layers without running statistics (GroupNorm, LayerNorm).",
            key="model",
        )
