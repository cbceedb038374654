"""The privacy that rounds spend, by Google's dp-accounting.

Privacy loss distributions, rounded up: epsilon is never too small. Imported when it is used.
"""

from __future__ import annotations

from dp_accounting import (
    DpEvent,
    GaussianDpEvent,
    NeighboringRelation,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
    calibrate_dp_mechanism,
)
from dp_accounting.mechanism_calibration import ExplicitBracketInterval
from dp_accounting.pld import PLDAccountant

INTERVAL = 1e-3
"""Width of the steps of the privacy loss; a tenth of it changes epsilon by less than 0.001."""
MOST_NOISE = 1e4


def epsilon_after(
    rounds: int, *, noise_multiplier: float, probability: float, delta: float
) -> float:
    """Epsilon after some rounds; two neighbours differ in one client, with all of its data."""
    accountant = _accountant()
    accountant.compose(_round(noise_multiplier, probability), rounds)
    return float(accountant.get_epsilon(delta))


def noise_for(epsilon: float, rounds: int, *, probability: float, delta: float) -> float:
    """The smallest noise multiplier with at most this epsilon after all rounds."""

    def event(noise: float) -> DpEvent:
        return SelfComposedDpEvent(_round(noise, probability), rounds)

    return float(
        calibrate_dp_mechanism(
            _accountant, event, epsilon, delta, ExplicitBracketInterval(0.1, MOST_NOISE), tol=1e-3
        )
    )


def _accountant() -> PLDAccountant:
    return PLDAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE, INTERVAL)


def _round(noise_multiplier: float, probability: float) -> DpEvent:
    event = GaussianDpEvent(noise_multiplier)
    return event if probability == 1 else PoissonSampledDpEvent(probability, event)
