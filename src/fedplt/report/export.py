"""Records of runs for other programs: tidy tables (CSV, Parquet), TensorBoard and trackers.

A tidy table has one row per observation and one column per variable.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedplt.errors import RunError
from fedplt.federation import OnRound, RoundRecord
from fedplt.files import write_atomically, write_text
from fedplt.imports import optional_module
from fedplt.report.page import Groups, ShownRun, client_summary, comparison_table, scores_by_client
from fedplt.text import csv_cell, csv_text, latex, markdown

Row = dict[str, Any]


def layer_rows(run: ShownRun) -> Iterator[Row]:
    """One row per round and layer; none if diagnostics were not recorded."""
    keys = ("update_magnitude", "effective_perturbation", "mean_age", "max_age", "never_trained")
    for record in run.history.rounds:
        for name, values in ((record.diagnostics or {}).get("layers") or {}).items():
            columns = {key: values.get(key) for key in keys}
            yield {"round": record.round, "layer": name, **columns}


def client_rows(run: ShownRun) -> Iterator[Row]:
    """One row per round and client, for clients in the round's record."""
    for record in run.history.rounds:
        sampling: Any = record.sampling or {}
        listed = sampling.get("probabilities")
        probabilities = dict(enumerate(listed)) if isinstance(listed, list) else {}
        chosen, scores = set(sampling.get("chosen", ())), scores_by_client(record)
        refused = {int(client): why for client, why in record.rejected.items()}
        known = {*probabilities, *chosen, *scores, *refused, *record.dropped, *record.late}
        for client in sorted(known):
            yield {
                "round": record.round,
                "client": client,
                "device": run.device_names.get(client),
                "score": scores.get(client),
                "probability": probabilities.get(client),
                "chosen": client in chosen if chosen else None,
                "dropped": client in record.dropped,
                "late": client in record.late,
                "refused": refused.get(client),
            }


TABLES: dict[str, Callable[[ShownRun], Iterable[Row]]] = {
    "rounds": lambda run: run.history.rows(),
    "layers": layer_rows,
    "clients": client_rows,
}
"""Tables by name: functions that give the rows of a run."""


def export_comparison(groups: Groups, path: Path) -> int:
    """Write the table that compares groups of runs as .csv, .tex or .md; return its rows."""
    formats = {".csv": csv_text, ".tex": latex, ".md": markdown}
    if path.suffix not in formats:
        raise RunError(f"{path}: this table is written as .csv, .tex or .md; choose one of these.")
    table = comparison_table(groups)
    write_text(path, formats[path.suffix](table))
    return len(table.rows)


def export(runs: Sequence[ShownRun], table: str, path: Path) -> int:
    """Write a table of all runs as .csv or .parquet; return the number of rows."""
    rows = []
    for run in runs:
        method = str(run.config.method["name"]) if run.config else ""
        named = {"run": run.name, "method": method, "seed": run.seed}
        rows += [{**named, **row} for row in TABLES[table](run)]
    columns: Row = dict.fromkeys(key for row in rows for key in row)
    rows = [{**columns, **row} for row in rows]  # not all runs have averages of models
    if not rows:
        what = {"layers": "diagnostics.enabled", "clients": "sampling or evaluation.per_client"}
        raise RunError(f"these runs have nothing for the table {table!r} (see {what.get(table)}).")
    writers = {".csv": _write_csv, ".parquet": _write_parquet}
    if path.suffix not in writers:
        raise RunError(f"{path}: a table is written as .csv or .parquet; choose one of these.")
    write_atomically(path, lambda scratch: writers[path.suffix](rows, scratch))
    return len(rows)


def _write_csv(rows: Sequence[Row], path: Path) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({key: csv_cell(value) for key, value in row.items()} for row in rows)


def _write_parquet(rows: Sequence[Row], path: Path) -> None:
    arrow, parquet = (
        optional_module(name, "Parquet", "'fedplt[parquet]'")
        for name in ("pyarrow", "pyarrow.parquet")
    )
    parquet.write_table(arrow.Table.from_pylist(list(rows)), path)


def scalars(record: RoundRecord, metric: str = "score") -> dict[str, float]:
    """The numbers of a round by name, for a tracker such as TensorBoard, W&B or MLflow.

    Names are ``group/name``: ``validation/score``, ``training/loss``, ``total/bytes_up``. A number
    that this round lacks, such as the score between evaluations, is left out.
    """
    values: dict[str, float | None] = {
        f"validation/{metric}": record.score,
        "validation/loss": record.loss,
        f"validation/average_{metric}": record.average_score,
        "validation/average_loss": record.average_loss,
        "training/loss": record.train_loss,
        "training/clients": record.num_clients,
        "training/seconds": record.seconds,
        **{f"total/{name}": float(value) for name, value in vars(record.total).items()},
        **{f"clients/{name}": value for name, value in client_summary(record).items()},
    }
    diagnostics = record.diagnostics or {}
    for key in ("update_magnitude", "effective_perturbation"):
        values[f"model/{key}"] = diagnostics.get(key)
        for name, layer in (diagnostics.get("layers") or {}).items():
            values[f"{key}/{name}"] = layer.get(key)
    return {tag: v for tag, v in values.items() if v is not None and math.isfinite(v)}


@contextmanager
def tensorboard_rounds(folder: Path, rounds_done: int = 0) -> Iterator[OnRound]:
    """A callback that logs rounds into a folder; a resumed run replaces later rounds."""
    _, module = (
        optional_module(name, "--tensorboard", "'fedplt[tracking]'")
        for name in ("tensorboard", "torch.utils.tensorboard")
    )
    writers: list[Any] = []

    def log(record: RoundRecord) -> None:
        if not writers:  # not earlier, because the run must create its folder itself
            purge = rounds_done + 1 if rounds_done else None
            writers.append(module.SummaryWriter(str(folder), purge_step=purge))
        for tag, value in scalars(record).items():
            writers[0].add_scalar(tag, value, record.round)

    try:
        yield log
    finally:
        for writer in writers:
            writer.close()
