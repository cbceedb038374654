"""The paper's experiments, runnable by name."""

from __future__ import annotations

from fedplt.experiments.configurations import STUDIES, Configuration, Study, find_study
from fedplt.experiments.series import Series, series_of
from fedplt.experiments.study import run_study, study_results

__all__ = [
    "STUDIES", "Configuration", "Series", "Study", "find_study", "run_study", "series_of",
    "study_results",
]  # fmt: skip
