r"""Remember every client's last update of every block, :math:`U_{k,b}`, for later rounds.

.. math:: W_b \leftarrow W_b +
    \frac{\sum_k n_k \lambda^{a_{k,b}}\, U_{k,b}}{\sum_k n_k \lambda^{a_{k,b}}}

:math:`a_{k,b}` is the number of rounds since client :math:`k` trained block :math:`b`, and
:math:`\lambda` the decay; :math:`\lambda = 0` is the mean over the clients of the round. With
rotating slices, few clients train a block in one round, but all of them over time. Rotation removes
the bias of fixed slices; the memory removes the noise that rotation adds. Clients compute and send
nothing extra; the server holds up to one model per client.

MIFA (Gu et al., 2021) and FedVARP (Jhunjhunwala et al., 2022) remember the updates of absent
clients; FedStale (Rodio and Neglia, 2024) has a factor below 1. Here the memory is per block, and
the factor falls with age. Running statistics are averages: they use only this round's updates.
"""

from __future__ import annotations

import hashlib
import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from fedplt.client import ClientUpdate
from fedplt.errors import DamagedError, RunError, UpdateError
from fedplt.files import make_folder, read_file, sync, sync_folder
from fedplt.kernels import put
from fedplt.planning import (
    Assignment,
    Encoding,
    Layers,
    PlacedTensor,
    Plan,
    decode,
    encode,
    encoded_size,
)
from fedplt.schema import Section
from fedplt.server.aggregation import Aggregator, BlockSums
from fedplt.server.robust import Sent, clip_updates

ROUND_BYTES = 4
NEVER = -1
"""Stands for the last round of a block that a client has never trained."""
CHECKPOINTS = 3
"""Keep the files of this many checkpoints: two in the folder, and one that is being written."""


class MemorySettings(Section):
    """How long and how exactly the server remembers updates."""

    decay: Annotated[float, Field(ge=0, le=1)] = 0.9
    """Factor of an update's weight per round."""
    horizon: Annotated[int, Field(ge=0)] | None = None
    """Updates older than this many rounds are forgotten; None: when their factor is below 1e-6."""
    precision: Encoding = "float32"
    """Encoding of remembered updates. Updates of the current round are exact."""
    store: Literal["ram", "disk"] = "ram"
    """Where updates are stored; ``disk``: in the run's folder, one file per client."""

    @property
    def longest(self) -> float:
        """Number of rounds for which an update is remembered."""
        longest = math.inf if self.horizon is None else float(self.horizon)
        if self.decay < 1:
            longest = min(longest, math.log(1e-6, self.decay) if self.decay > 0 else 0.0)
        return longest

    def num_bytes(self, plan: Plan) -> int:
        """Upper bound of the stored bytes: values, and the round of every block."""
        layers, number = plan.layers, sum(plan.layers.num_sublayers)
        if not plan.clients_hold_everything:  # sub-models: the round of every value
            number += layers.state_size
        size = encoded_size(layers.state_size, self.precision)
        return plan.num_clients * (size + ROUND_BYTES * number)


@dataclass(frozen=True, eq=False)
class Remembered:
    """One client's last update of every block."""

    values: NDArray[np.uint8]
    """Its updates as an encoded flat state."""
    last_rounds: NDArray[np.int32]
    """The last round per sub-layer, layer after layer, then (sub-models only) per value."""
    weight: float
    round: int
    """The last round in which the client took part."""

    def read(self) -> Remembered:
        return self


@dataclass(frozen=True, eq=False)
class OnDisk:
    """The same in a file. It never changes: the client's next update gets a new file."""

    path: Path
    num_values: int
    """Bytes of the values; the last rounds follow."""
    weight: float
    round: int
    digest: bytes

    @classmethod
    def write(cls, folder: Path, client: int, found: Remembered) -> OnDisk:
        path = folder / f"{client}-{found.round}"
        data = found.values.tobytes() + found.last_rounds.tobytes()
        try:
            make_folder(folder)
            path.write_bytes(data)
        except OSError as error:
            raise RunError(f"{path} cannot be written: {error.strerror or error}.") from error
        digest = hashlib.sha256(data).digest()
        return cls(path, len(found.values), found.weight, found.round, digest)

    def read(self) -> Remembered:
        try:
            data = np.frombuffer(read_file(self.path), np.uint8)
        except OSError as error:
            raise RunError(f"{self.path} cannot be read: {error.strerror or error}.") from error
        rounds = data[self.num_values :].copy().view(np.int32)
        return Remembered(data[: self.num_values], rounds, self.weight, self.round)

    def check(self) -> None:
        if not self.path.exists() or hashlib.sha256(read_file(self.path)).digest() != self.digest:
            raise DamagedError(f"{self.path} is missing or damaged: start a new run.")


class UpdateMemory:
    """The remembered updates of all clients; each round has a :class:`MemoryAggregator`."""

    def __init__(
        self, layers: Layers, settings: MemorySettings, folder: Path | None = None
    ) -> None:
        """``folder``: where the files are; None: keep updates in RAM."""
        self.layers, self.settings, self.folder = layers, settings, folder
        self.clients: dict[int, Remembered | OnDisk] = {}
        self._saved: deque[set[Path]] = deque(maxlen=CHECKPOINTS)
        """The files that the last checkpoints need."""

    def factors(self, round: int) -> NDArray[np.float64]:
        """The factor of a block by the round it was last trained in; the last one is for NEVER."""
        ages = round - np.arange(round + 1)
        factors = np.float64(self.settings.decay) ** ages
        factors[ages > self.settings.longest] = 0.0
        return np.append(factors, 0.0)

    def tensors(self) -> dict[str, Tensor]:
        """For a checkpoint; :meth:`restore` reads it. It has the digests of files."""
        clients = sorted(self.clients)
        weights = [self.clients[client].weight for client in clients]
        found = {
            "memory.clients": torch.tensor(clients, dtype=torch.int64),
            "memory.weights": torch.tensor(weights, dtype=torch.float64),
        }
        for client, each in self.clients.items():
            if isinstance(each, OnDisk):
                digest = np.frombuffer(bytearray(each.digest), np.uint8)
                found[f"memory.{client}.digest"] = torch.from_numpy(digest)
                found[f"memory.{client}.round"] = torch.tensor([each.round])
            else:
                found[f"memory.{client}.values"] = torch.from_numpy(each.values)
                found[f"memory.{client}.rounds"] = torch.from_numpy(each.last_rounds)
        if self.folder is not None:
            self._keep_files(self.folder)
        return found

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        clients, weights = tensors["memory.clients"].tolist(), tensors["memory.weights"].tolist()
        size = encoded_size(self.layers.state_size, self.settings.precision)
        for client, weight in zip(clients, weights, strict=True):
            of = f"memory.{client}."
            if self.folder is None:
                values, rounds = tensors[of + "values"].numpy(), tensors[of + "rounds"].numpy()
                self.clients[client] = Remembered(values, rounds, weight, int(rounds.max()))
            else:
                round, digest = int(tensors[of + "round"]), tensors[of + "digest"].numpy().tobytes()
                path = self.folder / f"{client}-{round}"
                self.clients[client] = file = OnDisk(path, size, weight, round, digest)
                file.check()
        self._saved.append(self._files())

    def _files(self) -> set[Path]:
        return {each.path for each in self.clients.values() if isinstance(each, OnDisk)}

    def _keep_files(self, folder: Path) -> None:
        """Sync the files of a new checkpoint, and remove those that no checkpoint needs."""
        make_folder(folder)
        for path in self._files().difference(*self._saved):
            sync(path)
        sync_folder(folder)
        self._saved.append(self._files())
        if len(self._saved) == CHECKPOINTS:
            for path in set(folder.iterdir()).difference(*self._saved):
                path.unlink()


class MemoryAggregator(Aggregator):
    """Adds up this round's updates and remembered ones; :meth:`commit` remembers the new ones."""

    def __init__(
        self, memory: UpdateMemory, round: int, min_contributors: int = 1, clip: float | None = None
    ) -> None:
        super().__init__(memory.layers, min_contributors=min_contributors)
        self.memory, self.round, self.clip = memory, round, clip
        self._sent: dict[int, Sent] = {}
        self._stored: dict[int, Remembered | OnDisk] = {}
        self._this_round = BlockSums(memory.layers)

    def _add(self, update: ClientUpdate, assignment: Assignment, weight: float) -> None:
        """Add an update; its ``origin`` names the client. The order of clients does not matter."""
        if update.origin is None:
            raise UpdateError("the memory of updates needs an update's origin: its client.")
        self._local |= assignment.local
        self._this_round.count(assignment, weight)
        values = torch.from_numpy(update.values)
        self._sent[update.origin.client] = Sent(values, assignment, weight)

    def apply(self, state: Tensor) -> None:
        """Sum up all updates in client order: float addition is not associative."""
        memory, factors = self.memory, self.memory.factors(self.round)
        if self.clip is not None:
            self.factors = clip_updates(list(self._sent.values()), self.clip)
        for client in sorted(memory.clients.keys() | self._sent.keys()):
            values, remembered = self._latest(client)
            each = factors[remembered.last_rounds]
            weights = BlockSums(self.layers, each * remembered.weight)
            self._added.plus(weights)
            if self._contributors is not None:
                self._contributors.plus(BlockSums(self.layers, (each > 0).astype(np.float64)))
            for placed in self.layers.placed:
                used = weights
                if placed.tensor.is_buffer:
                    if client not in self._sent:
                        continue  # a remembered value may be infinite (float16): 0 * inf is NaN
                    is_new = remembered.last_rounds == self.round
                    used = BlockSums(self.layers, is_new * remembered.weight)
                rows = used.of(placed).float()
                place = slice(placed.offset, placed.stop)
                total = self._total[place].view(len(rows), -1)
                total.addcmul_(values[place].view(len(rows), -1), rows)
        super().apply(state)

    def commit(self) -> None:
        """Remember this round's updates, and forget those that are too old."""
        memory = self.memory
        memory.clients = {
            client: each
            for client, each in (memory.clients | self._stored).items()
            if self.round - each.round <= memory.settings.longest
        }

    def _latest(self, client: int) -> tuple[Tensor, Remembered]:
        """A client's last update of every block; an update of this round is stored, too."""
        memory, sent = self.memory, self._sent.get(client)
        size, precision = self.layers.state_size, memory.settings.precision
        known, values = memory.clients.get(client), torch.zeros(size)
        old = None if known is None else known.read()
        if old is not None:
            values = torch.from_numpy(decode(old.values.data, size, precision))
        if sent is None:
            assert old is not None
            return values, old
        put(values, sent.assignment.uploaded, sent.values)
        trained = BlockSums(self.layers)
        trained.count(sent.assignment, 1.0)
        is_new = trained.numbers > 0
        rounds = np.full(len(is_new), NEVER, np.int32)
        if old is not None:
            rounds[: len(old.last_rounds)] = old.last_rounds
        rounds[is_new] = self.round
        data = bytearray(encode(values.numpy(), precision))  # torch wants it writable
        new = Remembered(np.frombuffer(data, np.uint8), rounds, sent.weight, self.round)
        folder = memory.folder
        self._stored[client] = new if folder is None else OnDisk.write(folder, client, new)
        return values, new

    def _sums(self, placed: PlacedTensor) -> BlockSums:
        return self._this_round if placed.tensor.is_buffer else self._added
