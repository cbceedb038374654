"""Why our low fleet uploads less of its budget under original OCS than the paper's (errata, 12)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from fedplt.sampling import sampling_probabilities

UPLOADS = Path(__file__).parents[2] / "results" / "exp3" / "uploads.json"


def shares(ratio: float, exponent: float, splits: int = 2000) -> np.ndarray:
    """Share of the budget that is uploaded, over random splits of exp3.

    Update norms grow with the examples and the ratio, n^0.73 r^exponent.
    """
    rng = np.random.default_rng(0)
    found = []
    for _ in range(splits):
        examples = np.maximum(5000 * rng.dirichlet([0.1] * 100, 10).sum(axis=0), 10)
        ratios = np.full(100, ratio)
        ratios[rng.choice(100, 10, replace=False)] = 1.0
        norms = examples**0.73 * ratios**exponent
        found.append(sampling_probabilities(norms, examples, 1.0, 5.0) @ ratios / 5)
    return np.array(found)


def test_the_range_over_splits_that_the_errata_quote():
    low, high = np.quantile(shares(0.2, 0.75), [0.05, 0.95])
    assert (round(low, 2), round(high, 2)) == (0.29, 0.54)
    low, high = np.quantile(shares(0.2, 0.2), [0.05, 0.95])
    assert (round(low, 2), round(high, 2)) == (0.24, 0.4)


def test_the_allocation_decides_the_share():
    by_allocation = json.loads(UPLOADS.read_text())["share_of_budget_by_round"]
    balanced, every = by_allocation["balanced allocation"], by_allocation["20 % of every layer"]
    assert max(balanced) < 0.33
    assert min(every) > 0.43
