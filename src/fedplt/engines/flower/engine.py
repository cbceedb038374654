"""The engine whose clients are Flower nodes, simulated or real."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedplt.client import (
    ClientResult,
    ClientUpdate,
    Evaluation,
    TrainOrder,
    update_norm,
)
from fedplt.configuration import ON_NODES
from fedplt.engines.flower.evaluation import ServerModel, evaluation_of
from fedplt.engines.flower.exchange import exchange
from fedplt.engines.flower.members import Members
from fedplt.engines.flower.orders import (
    EvaluateAnswer,
    EvaluateHeader,
    TrainAnswer,
    UploadHeader,
    read,
    train_header,
)
from fedplt.engines.flower.wire import EVALUATE, TRAIN, UPLOAD, Answer, Arrays, Order, Wire
from fedplt.errors import UpdateError
from fedplt.federation import Job
from fedplt.fleet import DeviceProfile
from fedplt.kernels import take
from fedplt.planning import Assignment

Found = TypeVar("Found")


class FlowerEngine:
    """Asks nodes to train, and takes from them what can be checked.

    A client that fails, is late or answers nonsense is left out of the round; ``failures`` says
    why. States that clients keep stay in files on their nodes; the server knows only of which
    round.
    """

    train_action = TRAIN
    members_kind = Members
    answer_kind: type[TrainAnswer] = TrainAnswer

    def __init__(
        self, job: Job, wire: Wire, stop: Callable[[], bool] = lambda: False, *, pin: bool = False
    ) -> None:
        self.job, self.wire, self.stop = job, wire, stop
        self.failures: dict[int, str] = {}
        self.members = self.members_kind(wire, job, stop, pin=pin)
        self.kept_round = np.full(job.plan.num_clients, -1, dtype=np.int64)
        """The last round that counts and after which a client kept state; -1: none."""
        self._server: ServerModel | None = None
        self.round = 0
        self._assignments: Mapping[int, Assignment] = {}
        self._results: dict[int, ClientResult] = {}
        self._updates: dict[int, NDArray[np.float32]] = {}

    @property
    def seconds(self) -> float:
        return self.job.config.engine.round_timeout_seconds

    def roster(self) -> dict[int, DeviceProfile]:
        self.members.gather(self.job.config.server.min_clients or 1, self.seconds)
        return {client: self.members.devices[client] for client in sorted(self.members.node_of)}

    def use(self, job: Job) -> None:
        self.job = job

    def train(
        self,
        round: int,
        state: Tensor,
        assignments: Mapping[int, Assignment],
        block_weights: Tensor | None = None,
        *,
        upload: bool = True,
    ) -> list[ClientResult]:
        self.members.gather(self.job.config.server.min_clients, self.seconds)
        self.round, self._assignments = round, assignments
        self.failures, self._results, self._updates = {}, {}, {}
        orders = {}
        for client, assignment in assignments.items():
            arrays = {"state": take(state, assignment.received).numpy()}
            if block_weights is not None:
                arrays["weights"] = take(block_weights, assignment.uploaded).numpy()
            header = self.train_header(client, assignment, upload)
            orders[client] = self.train_action, header, arrays
        for client, answer in self.ask(orders).items():
            try:
                self.take_result(client, answer, upload)
            except UpdateError as error:
                self.failures[client] = str(error)
        return [self._results[client] for client in assignments if client in self._results]

    def train_header(self, client: int, assignment: Assignment, upload: bool) -> dict[str, Any]:
        job = self.job
        order = TrainOrder(
            client=client, round=self.round, seed=job.config.seed, assignment=assignment,
            training=job.training_of(client), learning_rate=job.learning_rate(client, self.round),
        )  # fmt: skip
        header = train_header(
            order,
            plan=job.plan.fingerprint,
            kept=int(self.kept_round[client]),
            oldest=self.oldest,
            upload=upload,
            check=job.config.engine.check and job.config.data.name == ON_NODES,
        )
        return header.model_dump()

    @property
    def oldest(self) -> int:
        """A run that is resumed does not go back before this round, that of the checkpoint before
        the last one."""
        every = self.job.config.checkpoint_every
        return max(0, self.round // every - 1) * every - 1

    def take_result(self, client: int, answer: Answer, upload: bool) -> None:
        told = read(self.answer_kind, answer.header)
        self._refuse_other(client, told)
        self.check_answer(told)
        if upload:
            self._take_update(client, answer)
        self._results[client] = ClientResult(
            client, told.num_examples, told.norm, told.loss, told.seconds, told.weighted_norm
        )

    def check_answer(self, told: Any) -> None:
        """Refuse another number of examples than is known."""
        expected = int(self.job.num_examples[told.client])
        if told.num_examples != expected:
            raise UpdateError(
                f"it says it trained on {told.num_examples} examples; it has {expected}."
            )

    def _refuse_other(self, client: int, told: Any) -> None:
        """An answer belongs to this client, this round and this plan."""
        expected = {"client": client, "round": self.round, "plan": self.job.plan.fingerprint}
        for key, value in expected.items():
            if getattr(told, key, value) != value:
                raise UpdateError(f"its {key} is {getattr(told, key)}; {value} was asked.")

    def _take_update(self, client: int, answer: Answer) -> None:
        if set(answer.arrays) != {"update"}:
            raise UpdateError(f"it sent {sorted(answer.arrays) or 'no arrays'}; 'update' is sent.")
        self._updates[client] = answer.arrays["update"]

    def collect(self, clients: Sequence[int]) -> Iterator[tuple[int, ClientUpdate]]:
        round, plan = self.round, self.job.plan.fingerprint
        orders: dict[int, tuple[str, dict[str, Any], Any]] = {
            k: (UPLOAD, UploadHeader(client=k, round=round, plan=plan).model_dump(), {})
            for k in clients
            if k in self._results and k not in self._updates
        }
        for client, answer in self.ask(orders).items():
            try:
                self._refuse_other(client, read(UploadHeader, answer.header))
                self._take_update(client, answer)
            except UpdateError as error:
                self.failures[client] = str(error)
        for client in clients:
            if client in self._updates:
                yield from self._checked(client, self._updates.pop(client))

    def _checked(
        self, client: int, values: NDArray[np.float32]
    ) -> Iterator[tuple[int, ClientUpdate]]:
        """The norm that a client was chosen by must be that of what it sent."""
        assignment, result = self._assignments[client], self._results[client]
        if len(values) == assignment.update_size:  # else refused by the round loop
            norm = update_norm(torch.from_numpy(values), assignment)
            if math.isfinite(norm) and not math.isclose(norm, result.norm, rel_tol=1e-4):
                self.failures[client] = (
                    f"it said that the norm of its update is {result.norm:g}; it is {norm:g}."
                )
                return
        yield client, ClientUpdate(values, result.num_examples, result.norm, {"loss": result.loss})

    def ask(self, orders: Mapping[int, tuple[str, dict[str, Any], Any]]) -> dict[int, Answer]:
        """The clients' answers; those without one are failures."""
        if not orders:
            return {}
        self.members.refresh()
        nodes = self.members.node_of
        there = {
            client: Order(nodes[client], action, header, arrays)
            for client, (action, header, arrays) in orders.items()
            if client in nodes
        }
        answers = exchange(self.wire, there, self.seconds, self.stop)
        for client in orders:
            if client not in there:
                self.failures[client] = "its node is not connected."
            elif (error := answers[client].error) is not None:
                self.failures[client] = error
        return {client: answer for client, answer in answers.items() if answer.error is None}

    def evaluate(self, part: str, state: Tensor) -> Evaluation:
        return self._server_model().evaluate(part, state)

    def statistics(self, state: Tensor) -> Tensor:
        return self._server_model().statistics(state)

    def _server_model(self) -> ServerModel:
        self._server = self._server or ServerModel(self.job)
        return self._server

    def evaluate_clients(
        self, part: str, state: Tensor, clients: Sequence[int]
    ) -> dict[int, Evaluation]:
        """Each client evaluates with the state that it keeps; who does not is left out."""

        def take_evaluation(client: int, answer: Answer) -> Evaluation:
            told = read(EvaluateAnswer, answer.header)
            self._refuse_other(client, told)
            return evaluation_of(told, self.job.metric)

        numbers = {"state": state.numpy()}
        return self.ask_to_evaluate(EVALUATE, part, clients, numbers, take_evaluation)

    def ask_to_evaluate(
        self,
        action: str,
        part: str,
        clients: Sequence[int],
        arrays: Arrays,
        take_answer: Callable[[int, Answer], Found],
    ) -> dict[int, Found]:
        """What is taken from the clients' answers; who gives none is warned of, and left out."""
        orders: dict[int, tuple[str, dict[str, Any], Any]] = {}
        for client in clients:
            header = EvaluateHeader(
                client=client, round=self.round, part=part, local=sorted(self.job.plan.local),
                kept=int(self.kept_round[client]),
            )  # fmt: skip
            orders[client] = action, header.model_dump(), arrays
        failures, self.failures = self.failures, {}
        found = {}
        for client, answer in self.ask(orders).items():
            try:
                found[client] = take_answer(client, answer)
            except UpdateError as error:
                self.failures[client] = str(error)
        for client, why in self.failures.items():
            warnings.warn(f"client {client} was not evaluated: {why}", stacklevel=2)
        self.failures = failures
        return found

    def keep_local(self, clients: Sequence[int]) -> None:
        if self.job.plan.local:
            self.kept_round[list(clients)] = self.round

    def local_tensors(self) -> dict[str, Tensor]:
        """Of which round each client kept its state, and which node it is."""
        pinned = self.members.pinned
        nodes = [pinned.get(client, 0) for client in range(len(self.kept_round))]
        return {
            "flower.kept_rounds": torch.from_numpy(self.kept_round.copy()),
            "flower.nodes": torch.from_numpy(np.array(nodes, dtype=np.uint64).view(np.int64)),
        }

    def restore_local(self, tensors: Mapping[str, Tensor]) -> None:
        self.kept_round[:] = tensors["flower.kept_rounds"].numpy()
        nodes = tensors["flower.nodes"].numpy().view(np.uint64).tolist()
        self.members.pinned = {client: node for client, node in enumerate(nodes) if node}

    def close(self) -> None:
        self.wire.close()
