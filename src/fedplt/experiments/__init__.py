"""The paper's experiments, runnable by name."""

from __future__ import annotations

from fedplt.experiments.block import Block, Contestant, Experiment
from fedplt.experiments.catalog import EXPERIMENTS, find_blocks
from fedplt.experiments.claims_table import claims_tables
from fedplt.experiments.overview import overview_table
from fedplt.experiments.pages import DYNAMICS, Page, page_of
from fedplt.experiments.recorded import Recorded, RecordedRun
from fedplt.experiments.runner import Place, counts, missing_runs, record, reproduce, seconds_left
from fedplt.experiments.selection import Entry, Selection
from fedplt.experiments.series import Series, series_of
from fedplt.experiments.statistics import Interval, mean_interval, spread
from fedplt.experiments.tables import Results, Table, load_results

__all__ = [
    "DYNAMICS",
    "EXPERIMENTS",
    "Block",
    "Contestant",
    "Entry",
    "Experiment",
    "Interval",
    "Page",
    "Place",
    "Recorded",
    "RecordedRun",
    "Results",
    "Selection",
    "Series",
    "Table",
    "claims_tables",
    "counts",
    "find_blocks",
    "load_results",
    "mean_interval",
    "missing_runs",
    "overview_table",
    "page_of",
    "record",
    "reproduce",
    "seconds_left",
    "series_of",
    "spread",
]
