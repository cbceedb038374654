# mypy: implicit-reexport
"""Compare finished runs: scores at equal cost, the cost to reach a score, intervals over seeds."""

from __future__ import annotations

from fedplt.comparison.measures import (
    MEASURES,
    cost_text,
    cost_to_reach,
    default_target,
    mean_cost_text,
    measures_of,
    score_within,
    spread_text,
)
from fedplt.comparison.statistics import (
    CONFIDENCE,
    Interval,
    beta_quantile,
    mean_interval,
    spread,
    t_quantile,
)
