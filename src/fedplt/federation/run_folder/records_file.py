"""``rounds.jsonl``: one sealed line per round."""

from __future__ import annotations

import warnings
from pathlib import Path

from fedplt.errors import DamagedError, RunError
from fedplt.federation.run_folder.records import RoundRecord
from fedplt.federation.run_folder.sealed import open_json, seal_json
from fedplt.files import append_text, read_file, sync, write_text

KIND = "record"


class RecordsFile:
    """The records of a run; ``run`` is its id."""

    def __init__(self, path: Path, run: str) -> None:
        self.path, self.run = path, run

    def append(self, record: RoundRecord) -> None:
        append_text(self.path, self._line(record))

    def sync(self) -> None:
        """Wait until the disk has all lines; called before a checkpoint that counts them."""
        if self.path.exists():
            sync(self.path)

    def read(self) -> list[RoundRecord]:
        """All complete records; an incomplete last line, left by a crash, is ignored."""
        records, damage = self._read()
        if damage:
            raise DamagedError(
                f"{damage[0]} 'fedplt resume {self.path.parent}' leaves such lines out, and says "
                "which rounds have no record."
            ) from damage[0]
        return records

    def last_round(self) -> int:
        return max((record.round for record in self._read()[0]), default=0)

    def keep(self, number: int, pending: int | None = None) -> list[RoundRecord]:
        """Drop the records of rounds after the checkpoint, which are run again.

        Damaged lines are dropped too. A warning names the rounds that have no record, except
        ``pending``, the last round, whose record the checkpoint has.
        """
        records, damage = self._read()
        records = [record for record in records if record.round <= number]
        there = {pending, *(record.round for record in records)}
        missing = [round for round in range(1, number + 1) if round not in there]
        if missing:
            why = f" ({damage[0]})" if damage else ""
            warnings.warn(
                f"{self.path} has no record of {rounds_text(missing)}{why}. The run goes on; its "
                "report and curves leave these out.",
                stacklevel=2,
            )
        write_text(self.path, "".join(map(self._line, records)))
        return records

    def _read(self) -> tuple[list[RoundRecord], list[DamagedError]]:
        """Whole records, and what is wrong with the other lines."""
        records: list[RoundRecord] = []
        damage: list[DamagedError] = []
        for number, line in enumerate(self._lines(), start=1):
            place = f"{self.path}, line {number}"
            try:
                record = RoundRecord.from_json(open_json(line, KIND, place, self.run))
                if records and record.round <= records[-1].round:
                    raise DamagedError(f"{place}: round {record.round} stands there once more.")
                records.append(record)
            except DamagedError as error:
                text = str(error) if str(error).startswith(place) else f"{place}: {error}"
                damage.append(DamagedError(text))
        return records, damage

    def _lines(self) -> list[str]:
        """Complete lines; bytes that are no text show as a damaged line."""
        try:
            return read_file(self.path).decode("utf-8", "replace").split("\n")[:-1]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise RunError(f"{self.path} cannot be read: {error.strerror or error}") from error

    def _line(self, record: RoundRecord) -> str:
        return seal_json(record.to_json(), self.run, KIND) + "\n"


def rounds_text(rounds: list[int]) -> str:
    """``rounds 3 to 5, 9``."""
    runs: list[list[int]] = []
    for round in rounds:
        if runs and runs[-1][-1] == round - 1:
            runs[-1].append(round)
        else:
            runs.append([round])
    parts = [f"{run[0]} to {run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
    shown = ", ".join(parts[:10]) + (", ..." if len(parts) > 10 else "")
    return f"round {shown}" if len(rounds) == 1 else f"rounds {shown}"
