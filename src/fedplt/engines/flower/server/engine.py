"""The engine whose clients are Flower nodes, simulated or real."""

from __future__ import annotations

import math
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
    weighted_norm,
)
from fedplt.configuration import ON_NODES
from fedplt.engines.flower.messages import (
    EvaluateAnswer,
    EvaluateHeader,
    TrainAnswer,
    UploadHeader,
    read,
    train_header,
)
from fedplt.engines.flower.server.connected_nodes import Members, Registered
from fedplt.engines.flower.server.evaluation import ServerModel, evaluation_of
from fedplt.engines.flower.server.exchange import exchange
from fedplt.engines.flower.wire import EVALUATE, TRAIN, UPLOAD, Answer, Arrays, Order, Wire
from fedplt.errors import UpdateError
from fedplt.federation import Job
from fedplt.fleet import DeviceProfile
from fedplt.kernels import take
from fedplt.planning import Assignment
from fedplt.server import read_each

Found = TypeVar("Found")


class FlowerEngine:
    """Asks nodes to train, and takes from them what can be checked.

    Answers of every kind are read by :func:`fedplt.server.read_each`: a client that fails, is late,
    or whose answer cannot be read is left out of the round; ``failures`` says why. States that
    clients keep stay in files on their nodes; the server knows only of which round.
    """

    train_action = TRAIN
    members_kind = Members
    answer_kind: type[TrainAnswer] = TrainAnswer

    def __init__(
        self,
        job: Job,
        wire: Wire,
        stop: Callable[[], bool] = lambda: False,
        *,
        pin: bool = False,
        registered: Registered | None = None,
    ) -> None:
        self.job, self.wire, self.stop = job, wire, stop
        self.failures: dict[int, str] = {}
        self.members = self.members_kind(wire, job, stop, pin=pin, registered=registered)
        self.kept_round = np.full(job.plan.num_clients, -1, dtype=np.int64)
        """The last round that counts and after which a client kept state; -1: none."""
        self._server: ServerModel | None = None
        self.round = 0
        self._assignments: Mapping[int, Assignment] = {}
        self._block_weights: Tensor | None = None
        self._results: dict[int, ClientResult] = {}
        self._updates: dict[int, NDArray[np.float32]] = {}

    @property
    def seconds(self) -> float:
        return self.job.config.engine.round_timeout_seconds

    def roster(self) -> dict[int, DeviceProfile]:
        self.members.gather(self.job.config.server.min_clients or 1, self.seconds)
        return {client: self.members.devices[client] for client in sorted(self.members.node_of)}

    def resume_after(self, rounds_done: int) -> None:
        self.round = max(0, rounds_done - 1)

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
        self.members.turn += 1
        self.members.gather(self.job.config.server.min_clients, self.seconds)
        self.round, self._assignments, self._block_weights = round, assignments, block_weights
        self.failures, self._results, self._updates = {}, {}, {}
        orders = {}
        for client, assignment in assignments.items():
            arrays = {"state": take(state, assignment.received).numpy()}
            if block_weights is not None:
                arrays["weights"] = take(block_weights, assignment.uploaded).numpy()
            header = self.train_header(client, assignment, upload)
            orders[client] = self.train_action, header, arrays
        self._results = self.ask(orders, lambda k, answer: self.take_result(k, answer, upload))
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

    def take_result(self, client: int, answer: Answer, upload: bool) -> ClientResult:
        told = read(self.answer_kind, answer.header)
        self._refuse_other(client, told)
        self.check_answer(told)
        update = _update_of(answer) if upload else None
        self.note_answer(told)
        if update is not None:
            self._updates[client] = update
        return ClientResult(
            client, told.num_examples, told.norm, told.loss, told.seconds, told.weighted_norm
        )

    def check_answer(self, told: Any) -> None:
        """Refuse another number of examples than is known."""
        expected = int(self.job.num_examples[told.client])
        if told.num_examples != expected:
            raise UpdateError(f"it says it has {told.num_examples} examples; {expected} are known.")

    def note_answer(self, told: Any) -> None:
        """Called for an answer that is accepted."""

    def _refuse_other(self, client: int, told: Any) -> None:
        """An answer belongs to this client, this round and this plan."""
        expected = {"client": client, "round": self.round, "plan": self.job.plan.fingerprint}
        for key, value in expected.items():
            if getattr(told, key, value) != value:
                raise UpdateError(f"its {key} is {getattr(told, key)}; {value} was asked.")

    def collect(self, clients: Sequence[int]) -> Iterator[tuple[int, ClientUpdate]]:
        round, plan = self.round, self.job.plan.fingerprint
        orders: dict[int, tuple[str, dict[str, Any], Any]] = {
            k: (UPLOAD, UploadHeader(client=k, round=round, plan=plan).model_dump(), {})
            for k in clients
            if k in self._results and k not in self._updates
        }

        def take_upload(client: int, answer: Answer) -> NDArray[np.float32]:
            self._refuse_other(client, read(UploadHeader, answer.header))
            return _update_of(answer)

        self._updates |= self.ask(orders, take_upload)
        for client in clients:
            if client in self._updates:
                checked, refused = read_each({client: self._updates.pop(client)}, self._checked)
                self.failures |= refused
                yield from checked.items()

    def _checked(self, client: int, values: NDArray[np.float32]) -> ClientUpdate:
        """The norms that a client was chosen by must be those of what it sent."""
        assignment, result = self._assignments[client], self._results[client]
        if len(values) == assignment.update_size:  # else refused by the round loop
            update = torch.from_numpy(values)
            _compare_norms(result.norm, update_norm(update, assignment))
            if self._block_weights is not None and result.weighted_norm is not None:
                weights = take(self._block_weights, assignment.uploaded)
                _compare_norms(result.weighted_norm, weighted_norm(update, weights, assignment))
        return ClientUpdate(values, result.num_examples, result.norm, {"loss": result.loss})

    def ask(
        self,
        orders: Mapping[int, tuple[str, dict[str, Any], Any]],
        take_answer: Callable[[int, Answer], Found],
    ) -> dict[int, Found]:
        """What is taken from the clients' answers; those that give nothing are failures."""
        if not orders:
            return {}
        self.members.refresh()
        nodes = self.members.node_of
        asked = [client for client in orders if client in nodes]
        awake = [client for client in asked if not self.members.is_skipped(nodes[client])]
        if len(awake) >= max(1, self.job.config.server.min_clients):
            asked = awake  # with fewer, the round fails unless mute nodes answer
        there = {client: Order(nodes[client], *orders[client]) for client in asked}
        for client in orders:
            if client not in nodes:
                self.failures[client] = "its node is not connected."
            elif client not in there:
                self.failures[client] = "its node gave no answer before; it is asked again later."
        answers = exchange(self.wire, there, self.seconds, self.stop)
        self.members.note({there[client].node: answer for client, answer in answers.items()})

        def take_sound(client: int, answer: Answer) -> Found:
            if answer.error is not None:
                raise UpdateError(answer.error)
            return take_answer(client, answer)

        found, refused = read_each(answers, take_sound)
        self.failures |= refused
        return found

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
        """Each client evaluates with the state that it keeps; ``failures`` says who does not."""

        def take_evaluation(client: int, answer: Answer) -> Evaluation:
            told = read(EvaluateAnswer, answer.header)
            self._refuse_other(client, told)
            self.check_answer(told)
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
        """What is taken from the clients' answers; ``failures`` says who gives nothing."""
        orders: dict[int, tuple[str, dict[str, Any], Any]] = {}
        for client in clients:
            header = EvaluateHeader(
                client=client, round=self.round, part=part, local=sorted(self.job.plan.local),
                kept=int(self.kept_round[client]),
            )  # fmt: skip
            orders[client] = action, header.model_dump(), arrays
        self.failures = {}
        return self.ask(orders, take_answer)

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


def _update_of(answer: Answer) -> NDArray[np.float32]:
    if set(answer.arrays) != {"update"}:
        raise UpdateError(f"it sent {sorted(answer.arrays) or 'no arrays'}; 'update' is sent.")
    return answer.arrays["update"]


def _compare_norms(reported: float, norm: float | None) -> None:
    """Refuse a wrong norm. One that is not finite is refused by the round loop, in better words."""
    known = norm is not None and math.isfinite(norm)
    if known and not math.isclose(norm or 0.0, reported, rel_tol=1e-4):
        raise UpdateError(f"it said that the norm of its update is {reported:g}; it is {norm:g}.")
