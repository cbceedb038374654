"""The engine whose clients are Flower nodes, simulated or real."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property, partial
from typing import Any, TypeVar

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord
from numpy.typing import NDArray
from torch import Tensor

from fedplt.client import (
    ClientResult,
    ClientUpdate,
    Evaluation,
    Origin,
    combine,
    combine_statistics,
    evaluate_chunk,
    gather_statistics,
    num_chunks,
    statistics_chunks,
    update_norm,
    weighted_norm,
)
from fedplt.configuration import ON_NODES
from fedplt.errors import UpdateError
from fedplt.federation import Job
from fedplt.fleet import DeviceProfile
from fedplt.kernels import bind_state, buffer_positions, take
from fedplt.models import copy_model
from fedplt.planning import DIFFERENCES, Assignment, update_packing
from fedplt.server import Broadcast, read_each, validate_evaluation
from fedplt_flower.messages import (
    EVALUATE,
    TRAIN,
    UPLOAD,
    EvaluateAnswer,
    EvaluateHeader,
    HelloAnswer,
    Strict,
    TrainAnswer,
    TrainHeader,
    UploadHeader,
    read,
)
from fedplt_flower.records import Arrays
from fedplt_flower.server.connected_nodes import ConnectedNodes, Registered, device_of
from fedplt_flower.server.wire import Answer, Order, Wire, exchange

Found = TypeVar("Found")
Records = Mapping[str, ArrayRecord | ConfigRecord]
"""Extra Flower records of an order, for the functions of a user's app."""


class FlowerEngine:
    """Orders nodes to train and to evaluate, and validates their answers.

    :func:`fedplt.server.read_each` reads all answers. A client that fails, is late, or sends an
    unreadable answer is left out of the round; ``failures`` has the reason. Local states stay in
    files on the nodes; the server stores only their rounds.
    """

    sends_layers = False
    """Whether orders to train contain the model's layers, for clients that cannot find them."""

    def __init__(
        self,
        job: Job,
        wire: Wire,
        stop: Callable[[], bool] = lambda: False,
        *,
        registered: Registered | None = None,
    ) -> None:
        self.job, self.wire, self.stop = job, wire, stop
        self.failures: dict[int, str] = {}
        number, pin = job.plan.num_clients, job.config.engine.pin_nodes
        self.nodes = ConnectedNodes(
            wire, number, self.check_hello, stop, pin=pin, registered=registered
        )
        self.local_state_round = np.full(job.plan.num_clients, -1, dtype=np.int64)
        """The last committed round after which a client saved its local state; -1: none."""
        self.round = 0
        self._assignments: Mapping[int, Assignment] = {}
        self._block_weights: Tensor | None = None
        self._results: dict[int, ClientResult] = {}
        self._updates: dict[int, NDArray[Any]] = {}

    @property
    def seconds(self) -> float:
        return self.job.config.engine.round_timeout_seconds

    def roster(self) -> dict[int, DeviceProfile]:
        self.nodes.gather(self.job.config.server.min_clients or 1, self.seconds)
        return {
            client: device_of(self.nodes.hellos[client]) for client in sorted(self.nodes.node_of)
        }

    def check_hello(self, hello: HelloAnswer) -> None:
        """Refuse a node whose model or data differs from what the server plans for."""
        layers, fleet = self.job.layers.fingerprint, self.job.config.fleet
        if hello.layers != layers:
            raise UpdateError(
                f"its model is cut into other layers ({hello.layers}) than the server's "
                f"({layers}): model code, options or versions differ."
            )
        self.check_examples(hello)
        if fleet is not None and fleet.replan == "on-change":
            device_of(hello)

    def resume_after(self, rounds_done: int) -> None:
        self.round = max(0, rounds_done - 1)

    def use(self, job: Job) -> None:
        self.job = job

    def train(
        self,
        round: int,
        sent: Broadcast,
        assignments: Mapping[int, Assignment],
        block_weights: Tensor | None = None,
        *,
        upload: bool = True,
    ) -> list[ClientResult]:
        self.nodes.turn += 1
        self.nodes.gather(self.job.config.server.min_clients, self.seconds)
        self.round, self._assignments, self._block_weights = round, assignments, block_weights
        self.failures, self._results, self._updates = {}, {}, {}
        orders: dict[int, tuple[Strict, Arrays]] = {}
        for client, assignment in assignments.items():
            arrays = {"state": sent.array_of(client, assignment)}
            if block_weights is not None:
                arrays["weights"] = take(block_weights, assignment.uploaded).numpy()
            orders[client] = self.train_header(client, assignment, upload, sent), arrays
        take_result = partial(self.take_result, upload=upload)
        self._results = self.ask(TRAIN, orders, take_result, self.train_records())
        return [self._results[client] for client in assignments if client in self._results]

    def train_header(
        self, client: int, assignment: Assignment, upload: bool, sent: Broadcast
    ) -> TrainHeader:
        job = self.job
        down, messages = sent.encoding_of(client), job.config.messages
        training, spaces = job.training_of(client), assignment.spaces
        layers = self._layers if self.sends_layers else {}
        return TrainHeader(
            client=client,
            round=self.round,
            plan=job.plan.fingerprint,
            assignment=assignment.to_message(),
            local=sorted(assignment.local),
            local_state_round=int(self.local_state_round[client]),
            oldest_state_round=self.oldest_state_round(client),
            upload=upload,
            seed=job.config.seed,
            recipe=asdict(training.recipe),
            training=training.settings,
            learning_rate=job.learning_rate(client, self.round),
            check=job.config.engine.check and job.config.data.name == ON_NODES,
            down=down,
            is_difference=down in DIFFERENCES,
            keep_reference=messages.down in DIFFERENCES and sent.state_of(client) is sent.state,
            up=messages.up,
            **layers,
            spaces=spaces.to_json() if layers and spaces else None,
        )

    @cached_property
    def _layers(self) -> dict[str, Any]:
        identity = self.job.layers.identity()
        return {key: list(identity[key]) for key in ("layers", "flow")}

    def oldest_state_round(self, client: int) -> int:
        """The oldest round that a resumed run may start from: the last checkpoint but one."""
        every = self.job.config.checkpoint_every
        return max(0, self.round // every - 1) * every - 1

    def train_records(self) -> Records:
        return {}

    def take_result(self, client: int, answer: Answer, upload: bool) -> ClientResult:
        found = read(TrainAnswer, answer.header)
        self._refuse_other(client, found)
        self.check_examples(found)
        if upload:
            self._updates[client] = self._update_of(answer)
        return ClientResult(
            client, found.num_examples, found.norm, found.loss, found.seconds, found.weighted_norm
        )

    def check_examples(self, found: Any) -> None:
        """Refuse a number of examples that differs from the known one."""
        expected = int(self.job.num_examples[found.client])
        if found.num_examples != expected:
            raise UpdateError(f"it has {found.num_examples} examples; {expected} are known.")

    def _refuse_other(self, client: int, found: Any) -> None:
        """Refuse an answer of another client, round or plan."""
        expected = {"client": client, "round": self.round, "plan": self.job.plan.fingerprint}
        for key, value in expected.items():
            if getattr(found, key, value) != value:
                raise UpdateError(f"its {key} is {getattr(found, key)}; the order's is {value}.")

    def collect(self, clients: Sequence[int]) -> Iterator[tuple[int, ClientUpdate]]:
        round, plan = self.round, self.job.plan.fingerprint
        orders: dict[int, tuple[Strict, Arrays]] = {
            k: (UploadHeader(client=k, round=round, plan=plan), {})
            for k in clients
            if k in self._results and k not in self._updates
        }

        def take_upload(client: int, answer: Answer) -> NDArray[Any]:
            self._refuse_other(client, read(UploadHeader, answer.header))
            return self._update_of(answer)

        self._updates |= self.ask(UPLOAD, orders, take_upload, {})
        for client in clients:
            if client in self._updates:
                checked, refused = read_each({client: self._updates.pop(client)}, self._checked)
                self.failures |= refused
                yield from checked.items()

    def _update_of(self, answer: Answer) -> NDArray[Any]:
        """The uploaded array: numbers, or the bytes of another encoding."""
        if set(answer.arrays) != {"update"}:
            raise UpdateError(f"it sent {sorted(answer.arrays) or 'no arrays'}; 'update' is sent.")
        update = answer.arrays["update"]
        expected = "float32" if self.job.config.messages.up == "float32" else "uint8"
        if update.dtype != expected:
            raise UpdateError(f"its update is of {update.dtype}; {expected} is sent.")
        return update

    def _checked(self, client: int, upload: NDArray[Any]) -> ClientUpdate:
        """Check that the norms by which the client was sampled are those of its upload.

        Rounded updates have other norms, but they are never combined with sampling by norms.
        """
        assignment, result = self._assignments[client], self._results[client]
        up, values = self.job.config.messages.up, upload
        if up != "float32":
            values = update_packing(assignment, up).decode(upload)
        elif len(values) == assignment.update_size:  # else the round loop refuses it
            update = torch.from_numpy(values)
            _compare_norms(result.norm, update_norm(update, assignment))
            if self._block_weights is not None and result.weighted_norm is not None:
                weights = take(self._block_weights, assignment.uploaded)
                _compare_norms(result.weighted_norm, weighted_norm(update, weights, assignment))
        origin = Origin(client, self.round, self.job.plan.fingerprint)
        metrics = {"loss": result.loss}
        return ClientUpdate(values, result.num_examples, result.norm, metrics, origin)

    def ask(
        self,
        action: str,
        orders: Mapping[int, tuple[Strict, Arrays]],
        take_answer: Callable[[int, Answer], Found],
        records: Records,
    ) -> dict[int, Found]:
        """Send orders; return ``take_answer(client, answer)`` of each. Others are failures."""
        if not orders:
            return {}
        self.nodes.refresh()
        nodes = self.nodes.node_of
        asked = [client for client in orders if client in nodes]
        responsive = [client for client in asked if not self.nodes.is_skipped(nodes[client])]
        if len(responsive) >= max(1, self.job.config.server.min_clients):
            asked = responsive  # with fewer, the round fails unless unresponsive nodes answer
        sent = {}
        for client in asked:
            header, arrays = orders[client]
            sent[client] = Order(nodes[client], action, header.model_dump(), arrays, records)
        for client in orders:
            if client not in nodes:
                self.failures[client] = "its node is not connected."
            elif client not in sent:
                self.failures[client] = "its node gave no answer before; it is asked again later."
        answers = exchange(self.wire, sent, self.seconds, self.stop)
        self.nodes.note({sent[client].node: answer for client, answer in answers.items()})

        def take_sound(client: int, answer: Answer) -> Found:
            if answer.error is not None:
                raise UpdateError(answer.error)
            return take_answer(client, answer)

        found, refused = read_each(answers, take_sound)
        self.failures |= refused
        return found

    def evaluate(self, part: str, state: Tensor) -> Evaluation:
        """Evaluate in this process, in the same chunks as the simulator."""
        job, (model, bound) = self.job, self._server_model
        samples = job.test if part == "test" else job.validation
        assert samples is not None
        bound.copy_(state)
        chunks = (
            evaluate_chunk(model, samples, chunk, job.training.loss, job.metric)
            for chunk in range(num_chunks(samples))
        )
        return combine(chunks, job.metric)

    def statistics(self, state: Tensor) -> Tensor:
        model, bound = self._server_model
        samples, where = self.job.samples, buffer_positions(self.job.layers)
        gathered = []
        for chunk in range(statistics_chunks(samples)):
            bound.copy_(state)
            number = gather_statistics(model, samples, chunk)
            gathered.append((number, bound[where].double()))
        return combine_statistics(gathered)

    @cached_property
    def _server_model(self) -> tuple[Any, Tensor]:
        """A copy of the model, and its flat state."""
        model = copy_model(self.job.model)
        return model, bind_state(model, self.job.layers)

    def evaluate_clients(
        self, part: str, state: Tensor, clients: Sequence[int]
    ) -> dict[int, Evaluation]:
        """Let each client evaluate the model with its local state."""
        arrays, records = self.evaluate_contents(state)
        orders: dict[int, tuple[Strict, Arrays]] = {}
        for client in clients:
            header = EvaluateHeader(
                client=client, round=self.round, part=part, local=sorted(self.job.plan.local),
                local_state_round=int(self.local_state_round[client]),
            )  # fmt: skip
            orders[client] = header, arrays
        self.failures = {}
        return self.ask(EVALUATE, orders, self.take_evaluation, records)

    def evaluate_contents(self, state: Tensor) -> tuple[Arrays, Records]:
        """The arrays and records of an order to evaluate."""
        return {"state": state.numpy()}, {}

    def take_evaluation(self, client: int, answer: Answer) -> Evaluation:
        """Read an evaluation; refuse sums that are impossible for the metric."""
        found = read(EvaluateAnswer, answer.header)
        self._refuse_other(client, found)
        self.check_examples(found)
        counts, scores, sums = found.label_counts, found.label_scores, np.asarray(found.sums)
        if not math.isfinite(found.loss):
            raise UpdateError(f"its loss is {found.loss}.")
        with np.errstate(all="ignore"):
            score = self.job.metric.score(sums, found.count)
        evaluation = Evaluation(
            found.loss,
            score,
            None if counts is None else np.asarray(counts, dtype=np.int64),
            None if scores is None else np.asarray(scores, dtype=np.float64),
            count=found.count,
            sums=sums,
        )
        validate_evaluation(evaluation, self.job.metric)
        return evaluation

    def keep_local(self, clients: Sequence[int]) -> None:
        if self.job.plan.local or self.job.config.messages.need_local_state:
            self.local_state_round[list(clients)] = self.round

    def local_tensors(self) -> dict[str, Tensor]:
        """The round of each client's local state, and the client's node."""
        pinned = self.nodes.pinned
        nodes = [pinned.get(client, 0) for client in range(len(self.local_state_round))]
        return {
            "flower.kept_rounds": torch.from_numpy(self.local_state_round.copy()),
            "flower.nodes": torch.from_numpy(np.array(nodes, dtype=np.uint64).view(np.int64)),
        }

    def restore_local(self, tensors: Mapping[str, Tensor]) -> None:
        self.local_state_round[:] = tensors["flower.kept_rounds"].numpy()
        nodes = tensors["flower.nodes"].numpy().view(np.uint64).tolist()
        self.nodes.pinned = {client: node for client, node in enumerate(nodes) if node}

    def close(self) -> None:
        self.wire.close()


def _compare_norms(reported: float, norm: float | None) -> None:
    """Refuse a wrong norm. The round loop refuses one that is not finite, with a better message."""
    known = norm is not None and math.isfinite(norm)
    if known and not math.isclose(norm or 0.0, reported, rel_tol=1e-4):
        raise UpdateError(f"it reported {reported:g} as the norm of its update, which is {norm:g}.")
