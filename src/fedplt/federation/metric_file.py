"""``metric.json`` of a run folder: what its scores are, for readers without the user's code."""

from __future__ import annotations

import json
from pathlib import Path

from fedplt.client import MetricInfo, accuracy
from fedplt.errors import FedpltError, RunError
from fedplt.files import write_text

METRIC_FILE = "metric.json"


def write_metric(folder: Path, metric: MetricInfo) -> None:
    write_text(folder / METRIC_FILE, json.dumps(metric.to_json(), indent=1))


def read_metric(folder: Path) -> MetricInfo:
    """Runs of earlier versions have no such file: they measured accuracy."""
    path = folder / METRIC_FILE
    if not path.exists():
        return accuracy.info
    try:
        return MetricInfo.from_json(json.loads(path.read_text(encoding="utf-8")))
    except FedpltError as error:
        raise RunError(f"{path} is damaged: {error}") from error
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise RunError(f"{path} is damaged: {error!r}") from error
