"""What the round loop needs from whatever runs the clients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from fedplt.client.evaluation import Evaluation
from fedplt.client.update import ClientUpdate


class Interrupted(Exception):
    """The user asked to stop; nothing of the current round counts."""


@dataclass(frozen=True)
class LocalResult:
    """What a client tells about its local training before it uploads anything."""

    client: int
    num_examples: int
    norm: float
    metrics: dict[str, float] = field(default_factory=dict)


class Engine(Protocol):
    """Runs clients: worker processes on this machine, or real machines.

    Training and uploading are two calls, so that the server can choose who uploads.
    """

    local_state: Tensor | None
    """What never leaves the clients, (clients, numbers), where the plan has such tensors."""

    def train(self, clients: Sequence[int], round: int, state: Tensor) -> list[LocalResult]:
        """Let these clients train from the given global state; results in client order."""

    def collect(self, clients: Sequence[int]) -> Iterator[tuple[int, ClientUpdate]]:
        """The updates of clients that were trained last, in the order asked for."""

    def evaluate(self, part: str, state: Tensor) -> Evaluation:
        """Evaluate a state on the ``"validation"`` or the ``"test"`` data."""

    def evaluate_clients(
        self, part: str, state: Tensor, clients: Sequence[int]
    ) -> list[Evaluation]:
        """The same for each of these clients, with what it keeps to itself."""

    def keep_local(self, clients: Sequence[int]) -> None:
        """These clients' training counts: what never leaves them becomes theirs."""

    def statistics(self, state: Tensor) -> Tensor:
        """Running statistics over the training data, in the order of the flat state."""

    def close(self) -> None:
        """Let go of all resources; safe to call twice."""
