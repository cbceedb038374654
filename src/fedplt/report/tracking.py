"""Log rounds for TensorBoard."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

from fedplt.federation import OnRound, RoundRecord
from fedplt.report.page.runs import scalars


@contextmanager
def tensorboard_rounds(folder: Path, rounds_done: int = 0) -> Iterator[OnRound]:
    """Gives a callback that logs rounds into a folder; a resumed run replaces later rounds."""
    writers: list[SummaryWriter] = []

    def log(record: RoundRecord) -> None:
        if not writers:  # only now: a run makes its folder itself
            purge = rounds_done + 1 if rounds_done else None
            writers.append(SummaryWriter(str(folder), purge_step=purge))
        for tag, value in scalars(record).items():
            writers[0].add_scalar(tag, value, record.round)

    try:
        yield log
    finally:
        for writer in writers:
            writer.close()
