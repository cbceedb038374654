"""``metric.json`` of a run folder: what its scores are, for readers without the user's code."""

from __future__ import annotations

from pathlib import Path

from fedplt.client import MetricInfo
from fedplt.errors import DamagedError, FedpltError
from fedplt.federation.run_folder.sealed import open_json, read_sealed, seal_json
from fedplt.files import write_text

METRIC_FILE = "metric.json"
KIND = "metric"


def write_metric(folder: Path, metric: MetricInfo, run: str) -> None:
    write_text(folder / METRIC_FILE, seal_json(metric.to_json(), run, KIND, indent=1))


def read_metric(folder: Path, run: str) -> MetricInfo:
    """What the scores of a run are; ``run`` is its id."""
    path = folder / METRIC_FILE
    try:
        values = open_json(read_sealed(path), KIND, path, run)
    except DamagedError as error:
        raise DamagedError(f"{error} 'fedplt resume {folder}' writes it again.") from error
    try:
        return MetricInfo.from_json(values)
    except FedpltError as error:
        raise DamagedError(f"{path} is damaged: {error}") from error
    except (ValueError, TypeError, AttributeError) as error:
        raise DamagedError(f"{path} is damaged: {error!r}") from error
