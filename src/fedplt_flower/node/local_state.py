"""Client state that never leaves its node: named tensors after each round that it trained in.

``kept``: normalization layers; ``reference``: the model that the next difference is added to;
``residual``: the accumulated rounding error of the client's encoded uploads.

Files survive a restart of the node. A user's Flower app stores its normalization layers, by name,
in the node's memory instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from flwr.app import Array, ArrayRecord, Context
from torch import Tensor

from fedplt.errors import RunError
from fedplt.federation import load_tensors, save_tensors
from fedplt_flower.messages import TrainHeader

KIND = "kept"
RECORD = "fedplt-kept-"
"""Prefix of the names of records in the node's memory."""


def not_needed(rounds: Iterable[int], order: TrainHeader) -> list[int]:
    """The rounds of stored states that the run never reads again, even if it is resumed.

    Rounds after the last committed one were rejected. A run that resumes after round
    ``order.oldest_state_round`` needs the newest state up to that round, and all later ones.
    """
    rounds, last, oldest = list(rounds), order.local_state_round, order.oldest_state_round
    rejected = {number for number in rounds if last < number < order.round}
    committed = [number for number in rounds if number <= oldest and number not in rejected]
    newest = max(committed, default=-1)
    return [number for number in rounds if number in rejected or number < newest]


class StateFiles:
    """A folder with one client's states."""

    def __init__(self, folder: Path, client: int) -> None:
        self.folder, self._client = folder / f"client-{client}", client

    def save(
        self, round: int, tensors: Mapping[str, Tensor], order: TrainHeader | None = None
    ) -> None:
        """Store the state after a round; delete those that are not needed after this order."""
        for number in [] if order is None else not_needed(self._rounds(), order):
            self._path(number).unlink(missing_ok=True)
        whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
        save_tensors(self._path(round), whole, {}, self._seal(round), KIND)

    def load(self, round: int, sizes: Mapping[str, int]) -> dict[str, Tensor]:
        """Load the tensors with these names and sizes after a round."""
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

    def _rounds(self) -> list[int]:
        return [int(path.stem) for path in self.folder.glob("*.safetensors")]

    def _seal(self, round: int) -> str:
        """The id in the file's seal: another client's or another round's file is refused."""
        return f"{self._client:08x}{round & 0xFFFFFFFF:08x}"

    def _path(self, round: int) -> Path:
        return self.folder / f"{round}.safetensors"


def save_in_memory(context: Context, tensors: Mapping[str, Tensor], order: TrainHeader) -> None:
    """Like :meth:`StateFiles.save`, for a user's app."""
    state = context.state
    rounds = [int(name[len(RECORD) :]) for name in state.array_records if name.startswith(RECORD)]
    for number in not_needed(rounds, order):
        del state[f"{RECORD}{number}"]
    state[f"{RECORD}{order.round}"] = ArrayRecord(
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
