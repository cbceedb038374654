"""The privacy that rounds spend, by Google's dp-accounting.

Privacy loss distributions, rounded up: epsilon is never too small. Imported when it is used.
"""

from __future__ import annotations

import math

from dp_accounting import (
    DpEvent,
    GaussianDpEvent,
    NeighboringRelation,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
    calibrate_dp_mechanism,
)
from dp_accounting.mechanism_calibration import (
    ExplicitBracketInterval,
    NoBracketIntervalFoundError,
)
from dp_accounting.pld import PLDAccountant

from fedplt.errors import ConfigError
from fedplt.text import counted

STEP = 1e-3
"""Width of the steps of the privacy loss; a tenth of it changes epsilon by less than 0.001."""
MOST_STEPS = 1e6
LEAST_NOISE, MOST_NOISE = 0.3, 1e4


def epsilon_after(
    rounds: int, *, noise_multiplier: float, probability: float, delta: float
) -> float:
    """Epsilon after some rounds; two neighbors differ in one client, with all of its data."""
    accountant = _accountant(rounds, noise_multiplier)
    accountant.compose(_round(noise_multiplier, probability), rounds)
    return float(accountant.get_epsilon(delta))


def noise_for(epsilon: float, rounds: int, *, probability: float, delta: float) -> float:
    """The smallest noise multiplier with at most this epsilon after all rounds."""

    def event(noise: float) -> DpEvent:
        return SelfComposedDpEvent(_round(noise, probability), rounds)

    bracket = ExplicitBracketInterval(LEAST_NOISE, MOST_NOISE)
    try:
        found = calibrate_dp_mechanism(
            lambda: _accountant(rounds, LEAST_NOISE), event, epsilon, delta, bracket, tol=1e-3
        )
    except (ValueError, NoBracketIntervalFoundError) as error:
        raise ConfigError(
            f"no noise multiplier from {LEAST_NOISE} to {MOST_NOISE:g} gives epsilon "
            f"{epsilon:g} in {counted(rounds, 'round')}.",
            key="privacy",
        ) from error
    return float(found)


def _accountant(rounds: int, noise_multiplier: float) -> PLDAccountant:
    """Wider steps where there is little noise, so that there are never too many."""
    sensitivity = 1 / noise_multiplier
    largest = rounds * sensitivity**2 / 2 + 20 * math.sqrt(rounds) * sensitivity
    step = max(STEP, largest / MOST_STEPS)
    return PLDAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE, step)


def _round(noise_multiplier: float, probability: float) -> DpEvent:
    event = GaussianDpEvent(noise_multiplier)
    return event if probability == 1 else PoissonSampledDpEvent(probability, event)
