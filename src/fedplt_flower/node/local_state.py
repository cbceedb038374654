"""Client state that never leaves its node: one entry per round.

``kept``: normalization layers; ``reference``: the model that the next difference is added to;
``residual``: what the encoding of the client's uploads has lost so far.

Files survive a restart of the node; a user's Flower app stores entries in the node's memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from flwr.app import Array, ArrayRecord, Context
from torch import Tensor

from fedplt.errors import RunError
from fedplt.federation import load_tensors, save_tensors

KIND = "kept"
RECORD = "fedplt-kept-"
"""Names of records in the node's memory start with this."""


def not_needed(rounds: Iterable[int], oldest: int) -> list[int]:
    """The rounds whose states a run that resumes after round ``oldest`` or later never reads.

    >>> not_needed([1, 3, 4, 7], oldest=5)
    [1, 3]
    """
    rounds = list(rounds)
    newest = max((number for number in rounds if number <= oldest), default=-1)
    return [number for number in rounds if number < newest]


class StateFiles:
    """A folder with one client's states."""

    def __init__(self, folder: Path, client: int) -> None:
        self.folder, self._client = folder / f"client-{client}", client

    def save(self, round: int, tensors: Mapping[str, Tensor]) -> None:
        whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
        save_tensors(self._path(round), whole, {}, self._seal(round), KIND)

    def load(self, round: int, sizes: Mapping[str, int]) -> dict[str, Tensor]:
        """The tensors of these names and sizes after a round."""
        path = self._path(round)
        try:
            found = load_tensors(path, KIND, self._seal(round))[0]
            tensors = {name: found[name] for name in sizes}
        except (RunError, KeyError) as error:
            raise RunError(
                f"the local state of this client after round {round + 1} cannot be used: {error} "
                f"There are states of rounds {[number + 1 for number in sorted(self._rounds())]}."
            ) from error
        for name, values in tensors.items():
            if values.shape != (sizes[name],) or values.dtype != torch.float32:
                raise RunError(f"{path} holds the state of another model.")
        return tensors

    def forget_before(self, oldest: int) -> None:
        for number in not_needed(self._rounds(), oldest):
            self._path(number).unlink(missing_ok=True)

    def _rounds(self) -> list[int]:
        return [int(path.stem) for path in self.folder.glob("*.safetensors")]

    def _seal(self, round: int) -> str:
        """The id in the file's seal: another client's or another round's file is refused."""
        return f"{self._client:08x}{round & 0xFFFFFFFF:08x}"

    def _path(self, round: int) -> Path:
        return self.folder / f"{round}.safetensors"


def save_in_memory(
    context: Context, round: int, oldest: int, tensors: Mapping[str, Tensor]
) -> None:
    """Store the state after a round, and delete those before ``oldest``."""
    state = context.state
    rounds = [int(name[len(RECORD) :]) for name in state.array_records if name.startswith(RECORD)]
    for number in not_needed(rounds, oldest):
        del state[f"{RECORD}{number}"]
    state[f"{RECORD}{round}"] = ArrayRecord(
        {name: Array(tensor.numpy(force=True).copy()) for name, tensor in tensors.items()}
    )


def load_from_memory(context: Context, round: int) -> ArrayRecord:
    found = context.state.array_records.get(f"{RECORD}{round}")
    if found is None:
        raise RunError(
            f"the local state of this client after round {round + 1} is gone: its node was "
            "restarted."
        )
    return found
