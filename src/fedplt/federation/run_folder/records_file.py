"""``rounds.jsonl``: one record per round; a half-written last line is ignored."""

from __future__ import annotations

import warnings
from itertools import groupby
from pathlib import Path

from fedplt.errors import DamagedError, RunError
from fedplt.federation.run_folder.records import RoundRecord
from fedplt.federation.run_folder.sealed import open_json, seal_json
from fedplt.files import append_text, read_file, sync, write_text


class RecordsFile:
    """``rounds.jsonl``: one sealed line per round; ``run`` is the run's id."""

    def __init__(self, path: Path, run: str) -> None:
        self.path, self.run = path, run

    def append(self, record: RoundRecord) -> None:
        append_text(self.path, self._line(record))

    def sync(self) -> None:
        """Sync all lines to disk; called before a checkpoint that counts them."""
        if self.path.exists():
            sync(self.path)

    def read(self) -> list[RoundRecord]:
        """All complete records; an incomplete last line, left by a crash, is ignored."""
        records, damage = self._read()
        if damage:
            raise DamagedError(
                f"{damage[0]} 'fedplt resume {self.path.parent}' leaves such lines out, and lists "
                "the rounds without a record."
            ) from damage[0]
        return records

    def last_round(self) -> int:
        """The last round with a complete record; 0 if there is none."""
        return max((record.round for record in self._read()[0]), default=0)

    def keep(self, number: int, pending: int | None = None) -> list[RoundRecord]:
        """Drop damaged lines, and the records of rounds after ``number``, which are run again.

        A warning names the rounds without a record, except ``pending``: the checkpoint has the
        last round's record.
        """
        records, damage = self._read()
        records = [record for record in records if record.round <= number]
        there = {pending, *(record.round for record in records)}
        missing = [round for round in range(1, number + 1) if round not in there]
        if missing:
            why = f" ({damage[0]})" if damage else ""
            warnings.warn(
                f"{self.path} has no record of {rounds_text(missing)}{why}. The run continues; its "
                "report and curves leave these out.",
                stacklevel=2,
            )
        write_text(self.path, "".join(map(self._line, records)))
        return records

    def _read(self) -> tuple[list[RoundRecord], list[DamagedError]]:
        """Complete records, and what is wrong with the other lines."""
        try:  # bytes that are not text show as a damaged line
            lines = read_file(self.path).decode("utf-8", "replace").split("\n")[:-1]
        except FileNotFoundError:
            lines = []
        except OSError as error:
            raise RunError(f"{self.path} cannot be read: {error.strerror or error}") from error
        records: list[RoundRecord] = []
        damage: list[DamagedError] = []
        for number, line in enumerate(lines, start=1):
            place = f"{self.path}, line {number}"
            try:
                record = RoundRecord.from_json(open_json(line, "record", place, self.run), place)
                if records and record.round <= records[-1].round:
                    raise DamagedError(f"{place}: duplicate round {record.round}.")
                records.append(record)
            except DamagedError as error:
                damage.append(error)
        return records, damage

    def _line(self, record: RoundRecord) -> str:
        return seal_json(record.to_json(), self.run, "record") + "\n"


def rounds_text(rounds: list[int]) -> str:
    """``rounds 3 to 5, 9``."""
    parts = []
    for _, group in groupby(enumerate(rounds), lambda pair: pair[1] - pair[0]):
        run = [round for _, round in group]
        parts.append(f"{run[0]} to {run[-1]}" if len(run) > 1 else str(run[0]))
    shown = ", ".join(parts[:10]) + (", ..." if len(parts) > 10 else "")
    return f"round {shown}" if len(rounds) == 1 else f"rounds {shown}"
