"""The ``sampling`` part of a round's record, of bounded size for any fleet."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedplt.sampling import sampling_variance

MAX_LISTED = 200
"""Up to this many clients are listed one by one; more are summarized."""


def sampling_record(
    chosen: list[int],
    probabilities: NDArray[np.float64],
    norms: NDArray[np.float64],
    num_examples: NDArray[np.int64],
    costs: NDArray[np.float64],
    budget: float,
    *,
    uniform: float,
    num_trained: int,
    num_away: int = 0,
) -> dict[str, Any]:
    """Probabilities, chosen clients, and the variance compared with uniform sampling.

    Costs and the budget are in the sampler's unit (clients, or whole models); the variance uses
    the same norms as the probabilities. A client that is away has probability and norm 0.
    ``uniform`` is each client's probability under uniform sampling.
    """
    variance = sampling_variance(probabilities, norms, num_examples)
    equal = np.full(len(costs), uniform)
    uniform_variance = sampling_variance(equal, norms, num_examples)
    record: dict[str, Any] = {
        "budget": budget,
        "expected_cost": float(costs @ probabilities),
        "cost": float(costs[chosen].sum()),
        "num_trained": num_trained,
        **chosen_record(chosen, num_away),
        "probabilities": _compact(probabilities),
        "variance": variance,
        "uniform_variance": uniform_variance,
        "variance_ratio": variance / uniform_variance if uniform_variance > 0 else None,
    }
    return {key: value for key, value in record.items() if _is_recorded(value)}


def chosen_record(chosen: list[int], num_away: int = 0) -> dict[str, Any]:
    """The number of clients that were chosen and present, and their list unless it is long.

    ``num_away`` further clients were chosen but away.
    """
    record: dict[str, Any] = {"num_chosen": len(chosen)}
    if len(chosen) <= MAX_LISTED:
        record["chosen"] = chosen
    if not chosen:
        why = "all who were to take part were away" if num_away else "nobody was chosen"
        record["note"] = f"{why}: the model stays as it was"
    return record


def _compact(probabilities: NDArray[np.float64]) -> list[float] | dict[str, float]:
    if len(probabilities) <= MAX_LISTED:
        return [float(f"{p:.4g}") for p in probabilities]
    low, middle, high = np.quantile(probabilities, [0, 0.5, 1])
    return {
        "min": float(low),
        "median": float(middle),
        "mean": float(probabilities.mean()),
        "max": float(high),
        "num_certain": int(np.count_nonzero(probabilities == 1)),
    }


def _is_recorded(value: Any) -> bool:
    """Whether a value is recorded: an infinite variance is left out (JSON has no infinity)."""
    return value is not None and not (isinstance(value, float) and not math.isfinite(value))
