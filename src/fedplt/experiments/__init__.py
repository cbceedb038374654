"""The paper's experiments, runnable by name."""

from __future__ import annotations

from fedplt.experiments.catalog import EXPERIMENTS, Block, Contestant, Experiment, find_blocks
from fedplt.experiments.recorded import Recorded, RecordedRun
from fedplt.experiments.runner import (
    Place,
    counts,
    missing_runs,
    record,
    reproduce,
    seconds_left,
)
from fedplt.experiments.series import Series, series_of

__all__ = [
    "EXPERIMENTS", "Block", "Contestant", "Experiment", "Place", "Recorded", "RecordedRun",
    "Series", "counts", "find_blocks", "missing_runs", "record", "reproduce", "seconds_left",
    "series_of",
]  # fmt: skip
