# mypy: implicit-reexport
"""Compare methods on the same data, initial weights, fleet and rounds."""

from __future__ import annotations

from fedplt.comparison.processes import STOPPED, beside
from fedplt.comparison.results import (
    MEASURES,
    Comparison,
    by_seed,
    cost_text,
    cost_to_reach,
    default_target,
    mean_cost_text,
    measures_of,
    score_within,
    spread_text,
)
from fedplt.comparison.run_comparison import (
    Run,
    Watch,
    check_folders,
    check_runs,
    compare,
    evaluated_histories,
    make_folder,
    run_all,
    run_folder,
    variant,
)
from fedplt.comparison.statistics import (
    CONFIDENCE,
    Interval,
    beta_quantile,
    mean_interval,
    spread,
    t_quantile,
)
