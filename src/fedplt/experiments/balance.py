"""Does accuracy fall with the imbalance of an allocation? (experiment 1)"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

from fedplt.experiments.block import Block
from fedplt.experiments.paper_numbers import LAYER_SIZES
from fedplt.experiments.selection import Selection, may_be_paired
from fedplt.experiments.statistics import Trend, spearman, trend
from fedplt.planning import allocation_of


def imbalance(block: Block) -> dict[str, float]:
    """E by contestant with one allocation for all clients, at the paper's layer sizes."""
    sizes = LAYER_SIZES[block.pair]
    found = {
        contestant.name: allocation_of(sizes, contestant.layer_ratios).relative_imbalance
        for contestant in block.contestants
        if contestant.layer_ratios
    }
    return {"balanced": 0.0, **found}


@dataclass(frozen=True)
class Balance:
    """Rank correlation of imbalance and final accuracy: within each seed, and of the means."""

    within: Trend
    of_means: float

    @property
    def p(self) -> float:
        """One-sided p value, in the direction of the observed correlation."""
        return min(self.within.p_falling, self.within.p_rising)

    @property
    def p_text(self) -> str:
        return f"p = {self.p:.3f}" if self.p >= 0.001 else "p < 0.001"

    @property
    def note(self) -> str:
        """The table note: the correlation, and how little so few allocations can show."""
        number = self.within.num_values
        perfect = 2 / math.factorial(number)
        return (
            f"Rank correlation of E and accuracy: {self.within.correlation:+.2f}, mean over "
            f"{self.within.num_seeds} seed{'s' * (self.within.num_seeds > 1)} (exact one-sided "
            f"{self.p_text}, Page's test); of the means {self.of_means:+.2f}, where even a perfect "
            f"order of {number} allocations has a two-sided p of {perfect:.2f}."
        )


def balance(values: Mapping[str, float], selection: Selection) -> Balance | None:
    """``values``: E by contestant. None if they have no seed and processor in common."""
    if not set(values) <= set(selection.entries):
        return None
    entries = [selection.entries[name] for name in values]
    first = entries[0].runs
    seeds = [
        seed
        for seed in sorted(first)
        if all(seed in e.runs and may_be_paired(first[seed], e.runs[seed]) for e in entries)
    ]
    if not seeds:
        return None
    finals = [entry.finals(selection.last) for entry in entries]
    order = [*values.values()]
    return Balance(
        trend(order, [[final[seed] for final in finals] for seed in seeds]),
        spearman(order, [fmean(final[seed] for seed in seeds) for final in finals]),
    )
