"""What a round's record tells about client sampling: compact, however large the fleet."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedplt.sampling import sampling_variance

MAX_LISTED = 200
"""So many clients are listed one by one; more are summarised."""


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
    """Probabilities, who was chosen, and the variance beside that of uniform sampling.

    Costs and the budget are in the sampler's own unit (clients, or whole models); the variance is
    by the norms that the probabilities were made of. Who is away has probability and norm 0.
    ``uniform`` is the probability that uniform sampling would give everybody.
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
    return {key: value for key, value in record.items() if _says_something(value)}


def chosen_record(chosen: list[int], num_away: int = 0) -> dict[str, Any]:
    """How many were chosen and there, and who, unless they are very many.

    ``num_away`` more would have taken part had they been there.
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


def _says_something(value: Any) -> bool:
    """JSON has no infinity: a variance that is one is left out."""
    return value is not None and not (isinstance(value, float) and not math.isfinite(value))
