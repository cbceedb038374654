"""The interface between the round loop and the engine that runs the clients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol, runtime_checkable

from torch import Tensor

from fedplt.client import ClientResult, ClientUpdate, Evaluation
from fedplt.federation.job import Job
from fedplt.fleet import DeviceProfile
from fedplt.planning import Assignment
from fedplt.server import Broadcast


class Interrupted(KeyboardInterrupt):
    """The user asked to stop. The current round is discarded, all earlier ones are saved."""


class Engine(Protocol):
    """Runs the clients: as worker processes on this machine, or on real machines.

    Training and uploading are separate calls, so that the server can choose who uploads.
    """

    def train(
        self,
        round: int,
        sent: Broadcast,
        assignments: Mapping[int, Assignment],
        block_weights: Tensor | None = None,
        *,
        upload: bool = True,
    ) -> list[ClientResult]:
        """Train these clients from the model that they receive; results are in client order.

        A client that fails has no result; :attr:`failures` says why. ``upload``: all updates will
        be collected. If False, the sampler first chooses by the results which are.

        ``block_weights``: the server's divisor of each value of the flat state. The round loop
        passes it if the sampler needs the norms of the updates as they will be aggregated.
        """

    @property
    def failures(self) -> Mapping[int, str]:
        """Clients that returned nothing, and why: in the last :meth:`train` and :meth:`collect`,
        or in :meth:`evaluate_clients` if it was called since."""

    def collect(self, clients: Sequence[int]) -> Iterator[tuple[int, ClientUpdate]]:
        """The updates of clients from the last :meth:`train`, in the given order.

        A client that fails is left out; :attr:`failures` says why.
        """

    def evaluate(self, part: str, state: Tensor) -> Evaluation:
        """Evaluate a state on the ``"validation"`` or the ``"test"`` data."""

    def evaluate_clients(
        self, part: str, state: Tensor, clients: Sequence[int]
    ) -> Mapping[int, Evaluation]:
        """Evaluate a state for each of these clients, with the client's local state.

        Real nodes use their own data. A node without a valid answer is left out, and
        :attr:`failures` says why.
        """

    def statistics(self, state: Tensor) -> Tensor:
        """Running statistics over the training data, in the order of the flat state."""

    def keep_local(self, clients: Sequence[int]) -> None:
        """Keep these clients' local state of the last :meth:`train`: the server has their updates.

        The round loop calls this before it evaluates, and commits :meth:`local_tensors` afterwards.
        """

    def local_tensors(self) -> dict[str, Tensor]:
        """The clients' local state, for a checkpoint; empty if the clients store it themselves."""

    def restore_local(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the clients' local state from a checkpoint."""

    def close(self) -> None:
        """Release all resources; safe to call twice."""


@runtime_checkable
class NodesEngine(Engine, Protocol):
    """An engine whose clients come and go, each with its device (``fleet.replan``)."""

    def roster(self) -> Mapping[int, DeviceProfile]:
        """The clients that can be reached now, and their devices."""

    def resume_after(self, rounds_done: int) -> None:
        """Continue after this many rounds; an evaluation before the next one is of the last one."""

    def use(self, job: Job) -> None:
        """Continue with another plan for the same model, data and clients."""
