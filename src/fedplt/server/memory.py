r"""Remember every client's last update of every block (:math:`U_{k,b}`) and go on using it.

.. math:: W_b \leftarrow W_b +
    \frac{\sum_k n_k \lambda^{a_{k,b}}\, U_{k,b}}{\sum_k n_k \lambda^{a_{k,b}}}

:math:`a_{k,b}` is the number of rounds since client :math:`k` trained block :math:`b`, and
:math:`\lambda` the decay; :math:`\lambda = 0` is the mean over the clients of the round. With
rotating slices a block is trained by few clients in a round and by all of them over time: rotation
removes the bias of a fixed few, the memory removes the noise that rotation adds. Clients compute
and send nothing more; the server holds up to one model per client.

MIFA (Gu et al., 2021) and FedVARP (Jhunjhunwala et al., 2022) remember clients that did not take
part; FedStale (Rodio and Neglia, 2024) has a factor below 1. Here the memory is by block, and the
factor falls with age. Running statistics are averages, not steps: they use this round's updates.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from fedplt.client import ClientUpdate
from fedplt.errors import UpdateError
from fedplt.kernels import put
from fedplt.planning import (
    Assignment,
    Encoding,
    Layers,
    PlacedTensor,
    Ranges,
    decode,
    encode,
    encoded_size,
)
from fedplt.schema import Section
from fedplt.server.aggregation import Aggregator, BlockSums

NEVER = -1
"""The last round of a block that a client has not trained."""


class MemorySettings(Section):
    """How long and how exactly the server remembers updates."""

    decay: Annotated[float, Field(ge=0, le=1)] = 0.9
    """Factor of an update's weight per round."""
    horizon: Annotated[int, Field(ge=0)] | None = None
    """Updates older than this many rounds are forgotten; None: when their factor is below 1e-6."""
    precision: Encoding = "float32"
    """How remembered updates are stored. Those of the current round are exact."""

    @property
    def longest(self) -> float:
        """Rounds that an update is remembered."""
        longest = math.inf if self.horizon is None else float(self.horizon)
        if self.decay < 1:
            longest = min(longest, math.log(1e-6, self.decay) if self.decay > 0 else 0.0)
        return longest

    def num_bytes(self, layers: Layers, num_clients: int) -> int:
        """What the server stores at most."""
        rounds = 4 * sum(layers.num_sublayers)
        return num_clients * (encoded_size(layers.state_size, self.precision) + rounds)


@dataclass(frozen=True, eq=False)
class Remembered:
    """One client's last update of every block."""

    values: NDArray[np.uint8]
    """The flat state of its updates, encoded."""
    last_rounds: NDArray[np.int32]
    """Per sub-layer, layer after layer, then (sub-models only) per value."""
    weight: float


class UpdateMemory:
    """The remembered updates of all clients; :meth:`start` begins a round."""

    def __init__(self, layers: Layers, settings: MemorySettings) -> None:
        self.layers, self.settings = layers, settings
        self.clients: dict[int, Remembered] = {}

    def start(self, round: int, min_contributors: int = 1) -> MemoryAggregator:
        return MemoryAggregator(self, round, min_contributors)

    def decoded(self, remembered: Remembered) -> Tensor:
        size = self.layers.state_size
        return torch.from_numpy(decode(remembered.values.data, size, self.settings.precision))

    def encoded(self, values: Tensor) -> NDArray[np.uint8]:
        data = bytearray(encode(values.numpy(), self.settings.precision))  # torch wants it writable
        return np.frombuffer(data, np.uint8)

    def factors(self, round: int) -> NDArray[np.float64]:
        """The weight of a block by the round it was last trained in; at the end that of NEVER."""
        ages = round - np.arange(round + 1)
        factors = np.float64(self.settings.decay) ** ages
        factors[ages > self.settings.longest] = 0.0
        return np.append(factors, 0.0)

    def tensors(self) -> dict[str, Tensor]:
        """For a checkpoint; :meth:`restore` reads it."""
        clients = sorted(self.clients)
        weights = [self.clients[client].weight for client in clients]
        found = {
            "memory.clients": torch.tensor(clients, dtype=torch.int64),
            "memory.weights": torch.tensor(weights, dtype=torch.float64),
        }
        for client, remembered in self.clients.items():
            found[f"memory.{client}.values"] = torch.from_numpy(remembered.values)
            found[f"memory.{client}.rounds"] = torch.from_numpy(remembered.last_rounds)
        return found

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        clients, weights = tensors["memory.clients"].tolist(), tensors["memory.weights"].tolist()
        self.clients = {
            client: Remembered(
                tensors[f"memory.{client}.values"].numpy(),
                tensors[f"memory.{client}.rounds"].numpy(),
                weight,
            )
            for client, weight in zip(clients, weights, strict=True)
        }


class MemoryAggregator(Aggregator):
    """Adds up this round's updates and the remembered ones; :meth:`commit` remembers the new."""

    def __init__(self, memory: UpdateMemory, round: int, min_contributors: int = 1) -> None:
        super().__init__(memory.layers, min_contributors=min_contributors)
        self.memory, self.round = memory, round
        self._updated: dict[int, tuple[Tensor, Remembered]] = {}
        self._this_round = BlockSums(memory.layers)
        self._is_summed = False

    def add(
        self, update: ClientUpdate, assignment: Assignment, weight: float | None = None
    ) -> None:
        """Add an update; its ``origin`` names the client. The order of clients does not matter."""
        if update.origin is None:
            raise UpdateError("the memory of updates needs an update's origin: its client.")
        client = update.origin.client
        weight = update.num_examples if weight is None else weight
        self._local |= assignment.local
        self._this_round.count(assignment, weight)
        old = self.memory.clients.get(client)
        size = self.layers.state_size
        values = torch.zeros(size) if old is None else self.memory.decoded(old)
        put(values, assignment.uploaded, torch.from_numpy(update.values))
        trained = _Marks(self.layers, None if old is None else old.last_rounds, self.round)
        assignment.weigh(trained, 1.0)
        empty = np.empty(0, np.uint8)
        self._updated[client] = (values, Remembered(empty, trained.rounds, weight))

    def apply(self, state: Tensor) -> None:
        self._sum()
        super().apply(state)

    def touched(self) -> Tensor:
        self._sum()
        return super().touched()

    def divisors(self) -> Tensor:
        self._sum()
        return super().divisors()

    def commit(self) -> None:
        """Remember this round's updates, and forget what is older than the horizon."""
        memory = self.memory
        for client, (values, remembered) in self._updated.items():
            memory.clients[client] = replace(remembered, values=memory.encoded(values))
        memory.clients = {
            client: remembered
            for client, remembered in memory.clients.items()
            if self.round - remembered.last_rounds.max() <= memory.settings.longest
        }

    def _sum(self) -> None:
        """Sum up all updates in client order: float addition is not associative."""
        if self._is_summed:
            return
        self._is_summed = True
        factors = self.memory.factors(self.round)
        for client in sorted(self.memory.clients.keys() | self._updated.keys()):
            if client in self._updated:
                values, remembered = self._updated[client]
            else:
                remembered = self.memory.clients[client]
                values = self.memory.decoded(remembered)
            each = factors[remembered.last_rounds]
            weights = BlockSums(self.layers, each * remembered.weight)
            self._added.plus(weights)
            if self._contributors is not None:
                self._contributors.plus(BlockSums(self.layers, (each > 0).astype(np.float64)))
            is_new = client in self._updated
            for placed in self.layers.placed:
                if placed.tensor.is_buffer and not is_new:
                    continue
                used = weights
                if placed.tensor.is_buffer:
                    this_round = remembered.last_rounds == self.round
                    used = BlockSums(self.layers, this_round * remembered.weight)
                rows = used.of(placed).float()
                place = slice(placed.offset, placed.stop)
                total = self._total[place].view(len(rows), -1)
                total.addcmul_(values[place].view(len(rows), -1), rows)

    def _sums(self, placed: PlacedTensor) -> BlockSums:
        return self._this_round if placed.tensor.is_buffer else self._added


class _Marks:
    """Sets the round of every block that an assignment trains."""

    def __init__(self, layers: Layers, rounds: NDArray[np.int32] | None, round: int) -> None:
        self._layers, self._round = layers, round
        self._number = sum(layers.num_sublayers)
        self.rounds = np.full(self._number, NEVER, np.int32) if rounds is None else rounds.copy()

    def count_sublayers(self, slices: tuple[Ranges, ...], weight: float) -> None:
        start = 0
        for number, ranges in zip(self._layers.num_sublayers, slices, strict=True):
            for part in ranges:
                self.rounds[start + part.start : start + part.stop] = self._round
            start += number

    def count_positions(self, positions: NDArray[np.int64], weight: float) -> None:
        if len(self.rounds) == self._number:
            values = np.full(self._layers.state_size, NEVER, np.int32)
            self.rounds = np.concatenate([self.rounds, values])
        self.rounds[self._number + positions] = self._round
