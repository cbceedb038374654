"""What a client keeps and never sends, in files on its node: one for each round that may count."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from fedplt.errors import RunError
from fedplt.files import write_atomically


def not_needed(rounds: Iterable[int], oldest: int) -> list[int]:
    """Of the rounds that states are kept of: those that a run never goes back to.

    >>> not_needed([1, 3, 4, 7], oldest=5)
    [1, 3]
    """
    rounds = list(rounds)
    newest = max((number for number in rounds if number <= oldest), default=-1)
    return [number for number in rounds if number < newest]


class KeptState:
    """A folder of one client's states."""

    def __init__(self, folder: Path, client: int) -> None:
        self.folder = folder / f"client-{client}"

    def save(self, round: int, values: Tensor) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        kept = {"kept": values.contiguous()}
        write_atomically(self._path(round), lambda path: save_file(kept, path))

    def load(self, round: int, size: int) -> Tensor:
        """The state after a round, for a run that goes on from there."""
        path = self._path(round)
        try:
            values = load_file(path)["kept"]
        except (OSError, SafetensorError, KeyError) as error:
            there = sorted(self.rounds())
            raise RunError(
                f"the state that this client kept after round {round + 1} cannot be read from "
                f"{path} ({type(error).__name__}); there are states of rounds "
                f"{[number + 1 for number in there]}."
            ) from error
        if values.shape != (size,) or values.dtype != torch.float32:
            raise RunError(f"{path} holds the state of another model.")
        return values

    def forget_before(self, oldest: int) -> None:
        """Delete what a run that resumes after round ``oldest`` or later does not need."""
        for number in not_needed(self.rounds(), oldest):
            self._path(number).unlink(missing_ok=True)

    def rounds(self) -> list[int]:
        return [int(path.stem) for path in self.folder.glob("*.safetensors")]

    def _path(self, round: int) -> Path:
        return self.folder / f"{round}.safetensors"
