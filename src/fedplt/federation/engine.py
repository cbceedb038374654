"""What the round loop needs from whatever runs the clients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from torch import Tensor

from fedplt.client import ClientResult, ClientUpdate, Evaluation
from fedplt.planning import Assignment


class Interrupted(Exception):
    """The user asked to stop; nothing of the current round counts."""


class Engine(Protocol):
    """Runs clients: worker processes on this machine, or real machines.

    Training and uploading are two calls, so that the server can choose who uploads.
    """

    def train(
        self,
        round: int,
        state: Tensor,
        assignments: Mapping[int, Assignment],
        block_weights: Tensor | None = None,
    ) -> list[ClientResult]:
        """Let these clients train from the given global state; results in client order.

        ``block_weights``: what each number of the flat state will be divided by, where clients
        must know it to tell the norm of their update.
        """

    def collect(self, clients: Sequence[int]) -> Iterator[tuple[int, ClientUpdate]]:
        """The updates of clients that were trained last, in the order asked for."""

    def evaluate(self, part: str, state: Tensor) -> Evaluation:
        """Evaluate a state on the ``"validation"`` or the ``"test"`` data."""

    def evaluate_clients(
        self, part: str, state: Tensor, clients: Sequence[int]
    ) -> list[Evaluation]:
        """The same for each of these clients, with what never leaves it."""

    def statistics(self, state: Tensor) -> Tensor:
        """Running statistics over the training data, in the order of the flat state."""

    def keep_local(self, clients: Sequence[int]) -> None:
        """These clients' training counts: what never leaves them becomes theirs."""

    def local_tensors(self) -> dict[str, Tensor]:
        """What never leaves the clients, for a checkpoint; empty where the clients store it."""

    def restore_local(self, tensors: Mapping[str, Tensor]) -> None:
        """Set it back to what a checkpoint has."""

    def close(self) -> None:
        """Let go of all resources; safe to call twice."""
