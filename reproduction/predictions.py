"""How often a model predicts each class; a ReLU behind the logits can silence some.

``python -m reproduction.predictions FOLDER ...`` adds finished runs of ``relu-logits`` to
``predictions.json`` beside their ``runs.json``. Their table is written with that experiment's.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fedplt
from fedplt.data import load_data_set
from fedplt.files import write_text
from fedplt.text import Table
from reproduction.catalog import EXPERIMENTS

FILE = Path(__file__).parents[1] / "results" / "relu-logits" / "fashion-fcn" / "predictions.json"


def predictions_of(run: Path) -> dict[str, Any]:
    """Predictions by class on the images that validate, and images without a positive logit.

    The latter are counted among the classes that are never predicted.
    """
    validation = load_data_set("fashion-mnist").validation
    inputs, _ = validation.batch(torch.arange(len(validation)))
    with torch.no_grad():
        logits = fedplt.load(run)(inputs).numpy()
    labels = validation.labels()
    counts = np.bincount(logits.argmax(axis=1), minlength=10)
    lost = np.isin(labels, np.flatnonzero(counts == 0))
    return {
        "accuracy": round(float((logits.argmax(axis=1) == labels).mean()), 4),
        "counts": counts.tolist(),
        "without_logit": int((logits[lost].max(axis=1, initial=0) <= 0).sum()),
    }


def record(runs: Iterable[Path], file: Path = FILE) -> None:
    known = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    for run in runs:
        known[run.name] = predictions_of(run)
    lines = [f" {json.dumps(name)}: {json.dumps(known[name])}" for name in sorted(known)]
    write_text(file, "{\n" + ",\n".join(lines) + "\n}\n")


def predictions_table(file: Path) -> Table:
    """The table of a ``predictions.json``."""
    labels = {c.name: c.label for c in EXPERIMENTS["relu-logits"].blocks["fashion-fcn"].contestants}
    found = json.loads(file.read_text(encoding="utf-8"))
    rows = []
    for contestant, label in labels.items():
        for name, run in found.items():
            before, _, seed = name.rpartition("-seed")
            if before == contestant:
                counts = [f"{count:,}" for count in run["counts"]]
                accuracy = f"{100 * run['accuracy']:.1f}"
                rows.append((label, seed, accuracy, *counts, f"{run['without_logit']:,}"))
    return Table(
        "relu-logits-predictions",
        "Predictions by class after the last round, on the 10,000 images that validate",
        ("contestant", "seed", "accuracy, %", *(f"class {i}" for i in range(10)), "no logit"),
        tuple(rows),
        (
            "Every class has 1,000 images. No logit: images of classes that are never predicted, "
            "with no positive logit at all; they get class 0, the first of equal ones.",
        ),
    )


if __name__ == "__main__":
    record(map(Path, sys.argv[1:]))
