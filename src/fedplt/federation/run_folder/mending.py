"""What a resume mends, and what it refuses."""

from __future__ import annotations

import warnings

from fedplt.errors import ConfigError, RunError
from fedplt.federation.job import Job
from fedplt.federation.run_folder.folder import RunFolder
from fedplt.federation.run_folder.metric_file import METRIC_FILE, read_metric
from fedplt.federation.run_folder.sealed import open_json, read_sealed


def restore_plan_and_metric(folder: RunFolder, job: Job) -> None:
    """Write them again where they are damaged; the checkpoint says that the plan is the same."""
    for name, kind in (("plan.json", "plan"), (METRIC_FILE, "metric")):
        path = folder.path / name
        try:
            open_json(read_sealed(path), kind, path, folder.run)
        except RunError as error:
            folder.write_plan(job.plan) if kind == "plan" else folder.write_metric(job.metric.info)
            warnings.warn(f"{error} It was written again.", stacklevel=2)
    known, metric = read_metric(folder.path, folder.run), job.metric.info
    if known != metric:
        raise ConfigError(
            f"the scores of {folder.path} are {known.label}, {known.direction} is better, not "
            f"{metric.label}, {metric.direction} is better: they do not go into one run. Give the "
            "same metric, or another folder."
        )
