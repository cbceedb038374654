"""What a client keeps and never sends, in files on its node: one for each round that may count."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from fedplt.errors import RunError
from fedplt.federation import load_tensors, save_tensors

KIND = "kept"


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
        self.folder, self._client = folder / f"client-{client}", client

    def save(self, round: int, values: Tensor) -> None:
        save_tensors(self._path(round), {"kept": values.contiguous()}, {}, self._seal(round), KIND)

    def load(self, round: int, size: int) -> Tensor:
        """The state after a round, for a run that goes on from there."""
        path = self._path(round)
        try:
            values = load_tensors(path, KIND, self._seal(round))[0]["kept"]
        except (RunError, KeyError) as error:
            there = sorted(self.rounds())
            raise RunError(
                f"the state that this client kept after round {round + 1} cannot be used: {error} "
                f"There are states of rounds {[number + 1 for number in there]}."
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

    def _seal(self, round: int) -> str:
        """The id in the seal: another client's or another round's file is noticed."""
        return f"{self._client:08x}{round & 0xFFFFFFFF:08x}"

    def _path(self, round: int) -> Path:
        return self.folder / f"{round}.safetensors"
