"""The engine whose clients are apps with a model, data and a training loop of their own."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray
from torch import Tensor

from fedplt.client import ClientResult, Evaluation
from fedplt.engines.flower.app_messages import (
    EVALUATE,
    TRAIN,
    MetricsAnswer,
    SlicesAnswer,
    SlicesHeader,
    find_metric,
    metric_names,
)
from fedplt.engines.flower.messages import MAX_EXAMPLES, HelloAnswer, read
from fedplt.engines.flower.records import answer_of
from fedplt.engines.flower.server.connected_nodes import Members
from fedplt.engines.flower.server.engine import FlowerEngine
from fedplt.engines.flower.server.grid_wire import GridWire
from fedplt.engines.flower.wire import Answer, Order
from fedplt.errors import UpdateError
from fedplt.federation import Job
from fedplt.kernels import named_tensors
from fedplt.planning import Assignment
from fedplt.server import MAX_LOSS, claim_cap, refusal, validate_evaluation

DEFAULT_MAX_EXAMPLES = 1_000_000
"""Of a client that has not said before how many it has."""


@dataclass(frozen=True, eq=False, kw_only=True)
class AppJob(Job):
    """A job whose clients say how many examples they have when they reply for the first time."""

    known: NDArray[np.int64]
    """Per client; 0: it has not replied yet."""
    are_claims: bool = True
    """The numbers are the clients' own words, which count up to a bound."""

    @property
    def num_examples(self) -> NDArray[np.int64]:
        """Of a client that has not replied yet: the mean of the others."""
        told = self.known[self.known > 0]
        mean = round(float(np.minimum(told, self._most).mean())) if len(told) else 1
        return np.where(self.known > 0, self.known, mean)

    @property
    def weights(self) -> NDArray[np.int64]:
        return np.minimum(super().weights, self._most)

    @property
    def _most(self) -> int:
        told = self.known[self.known > 0].tolist()
        return claim_cap(told) if told and self.are_claims else MAX_EXAMPLES

    def examples(self, client: int) -> range:
        return range(int(self.num_examples[client]))

    @cached_property
    def data_fingerprint(self) -> str:
        return "on nodes"


@dataclass(frozen=True, eq=False)
class AppCalls:
    """What the app's own functions get, as from Flower's strategies."""

    initial: ArrayRecord
    """All tensors of the model; those that are trained are replaced by the run's."""
    train_config: ConfigRecord
    evaluate_config: ConfigRecord
    evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None
    on_nodes: bool
    """Call the app's ``@app.evaluate()`` on the nodes."""

    def config(self, given: ConfigRecord, round: int) -> ConfigRecord:
        return ConfigRecord({**given, "server-round": round})


class AppWire(GridWire):
    """Adds the records that an app's functions expect, and reads their metrics."""

    def __init__(self, grid: Grid) -> None:
        super().__init__(grid)
        self.extra: dict[str, dict[str, ArrayRecord | ConfigRecord]] = {}
        """By message type."""

    def records(self, order: Order) -> RecordDict:
        records = super().records(order)
        for name, record in self.extra.get(order.action, {}).items():
            records[name] = record
        return records

    def answer(self, reply: Message) -> Answer:
        try:
            if reply.has_error() or "fedplt" in reply.content.config_records:
                return answer_of(reply)
            metrics = {
                str(name): value
                for record in reply.content.metric_records.values()
                for name, value in record.items()
                if isinstance(value, (int, float))
            }
            return Answer({"metrics": metrics})
        except Exception as error:
            return Answer(error=refusal(error))


class AppMembers(Members):
    """Apps do not know how many examples they have, nor how the model is cut, before they train."""

    def check(self, hello: HelloAnswer) -> None:
        if hello.layers is not None or hello.num_examples is not None:
            raise UpdateError("it is not an app for FedPLT: its app is SlicesApp().")


class AppEngine(FlowerEngine):
    """Sends apps what they hold and train, and collects their metrics."""

    train_action = TRAIN
    members_kind = AppMembers
    answer_kind = SlicesAnswer
    job: AppJob
    wire: AppWire

    def __init__(
        self,
        job: AppJob,
        wire: AppWire,
        calls: AppCalls,
        stop: Callable[[], bool] = lambda: False,
        *,
        max_examples: int = DEFAULT_MAX_EXAMPLES,
    ) -> None:
        super().__init__(job, wire, stop, pin=job.config.engine.pin_nodes)
        self.calls, self.max_examples = calls, max_examples
        self.train_metrics: dict[int, tuple[int, Mapping[str, float]]] = {}
        """Examples and metrics of the clients that trained in this round."""
        self.node_metrics: dict[int, dict[str, float]] = {}
        self.server_metrics: dict[int, MetricRecord] = {}
        """By the number of the round, from 1."""

    def train(
        self,
        round: int,
        state: Tensor,
        assignments: Mapping[int, Assignment],
        block_weights: Tensor | None = None,
        *,
        upload: bool = True,
    ) -> list[Any]:
        config = self.calls.config(self.calls.train_config, round + 1)
        self.wire.extra[TRAIN] = {"config": config}
        self.train_metrics = {}
        return super().train(round, state, assignments, block_weights, upload=upload)

    def train_header(self, client: int, assignment: Assignment, upload: bool) -> dict[str, Any]:
        header = SlicesHeader(
            client=client,
            round=self.round,
            plan=self.job.plan.fingerprint,
            layers=self._layers["layers"],
            flow=self._layers["flow"],
            spaces=assignment.spaces.to_json() if assignment.spaces else None,
            assignment=assignment.to_message(),
            local=sorted(assignment.local),
            recipe=asdict(self.job.recipe),
            kept=int(self.kept_round[client]),
            oldest=self.oldest,
            upload=upload,
        )
        return header.model_dump()

    @cached_property
    def _layers(self) -> dict[str, Any]:
        return self.job.layers.identity()

    def check_answer(self, told: SlicesAnswer) -> None:
        """The first number of examples that a client says is bounded; from then on it stays."""
        known = self.job.known
        if not known[told.client] and told.num_examples > self.max_examples:
            raise UpdateError(
                f"it says it trained on {told.num_examples} examples; at most {self.max_examples} "
                "are allowed (max_examples)."
            )
        if known[told.client]:
            super().check_answer(told)

    def note_answer(self, told: SlicesAnswer) -> None:
        self.job.known[told.client] = told.num_examples
        self.train_metrics[told.client] = told.num_examples, told.metrics

    def take_result(self, client: int, answer: Answer, upload: bool) -> ClientResult:
        if set(answer.header) == {"metrics"}:
            raise UpdateError(
                "its app replied without fedplt's train_slices: in @app.train(), return "
                "part.reply(num_examples=...)."
            )
        return super().take_result(client, answer, upload)

    def arrays(self, state: Tensor) -> ArrayRecord:
        """All tensors of the model, as the app's functions know them."""
        trained = named_tensors(self.job.layers, state)
        tensors = self.calls.initial.to_torch_state_dict()
        return ArrayRecord({name: trained.get(name, old) for name, old in tensors.items()})

    def evaluate(self, part: str, state: Tensor) -> Evaluation:
        """By the app's function on the server."""
        assert self.calls.evaluate_fn is not None
        found = self.calls.evaluate_fn(self.round + 1, self.arrays(state))
        if found is None:
            return Evaluation(math.nan, math.nan)
        self.server_metrics[self.round + 1] = found
        return self._evaluation({k: v for k, v in found.items() if isinstance(v, (int, float))})

    def evaluate_clients(
        self, part: str, state: Tensor, clients: Sequence[int]
    ) -> dict[int, Evaluation]:
        """By the app's function on each node; those without the metric are in no record."""
        self.failures = {}
        if not self.calls.on_nodes:
            return {}
        config = self.calls.config(self.calls.evaluate_config, self.round + 1)
        self.wire.extra[EVALUATE] = {"arrays": self.arrays(state), "config": config}

        def take_metrics(_: int, answer: Answer) -> tuple[int, dict[str, float], Evaluation]:
            number, metrics = read(MetricsAnswer, answer.header).split()
            evaluation = self._evaluation(metrics, number)
            given = find_metric(metrics, *metric_names(self.job.metric.name)) is not None
            if given:
                validate_evaluation(evaluation, self.job.metric)
            return number, metrics, evaluation

        found = self.ask_to_evaluate(EVALUATE, part, clients, {}, take_metrics)
        if found:
            most = claim_cap([number for number, _, _ in found.values()])
            means = {k: (min(number, most), metrics) for k, (number, metrics, _) in found.items()}
            self.node_metrics[self.round + 1] = weighted_mean(means)
        evaluations = {k: each for k, (_, _, each) in found.items()}
        return {k: each for k, each in evaluations.items() if not math.isnan(each.score)}

    def _evaluation(
        self, metrics: Mapping[str, float], num_examples: int | None = None
    ) -> Evaluation:
        loss = find_metric(metrics, "loss")
        score = find_metric(metrics, *metric_names(self.job.metric.name))
        return Evaluation(
            math.nan if loss is None else loss,
            math.nan if score is None else score,
            num_examples=num_examples,
        )

    def local_tensors(self) -> dict[str, Tensor]:
        return {**super().local_tensors(), "flower.examples": torch.tensor(self.job.known)}

    def restore_local(self, tensors: Mapping[str, Tensor]) -> None:
        super().restore_local(tensors)
        self.job.known[:] = tensors["flower.examples"].numpy()


def weighted_mean(found: Mapping[int, tuple[int, Mapping[str, float]]]) -> dict[str, float]:
    """The mean of each metric over the clients that have it, weighted by their examples.

    A value that is not finite, or larger than :data:`~fedplt.server.MAX_LOSS`, is left out.
    """
    names = {name for _, metrics in found.values() for name in metrics}
    result = {}
    for name in sorted(names):
        given = [(number, metrics[name]) for number, metrics in found.values() if name in metrics]
        pairs = [(number, value) for number, value in given if abs(value) <= MAX_LOSS]
        total = sum(number for number, _ in pairs)
        result[name] = math.fsum(n * value for n, value in pairs) / total if pairs else math.nan
    return result
