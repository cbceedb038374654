"""The engine for users' Flower apps: custom model, data, training loop and metrics."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from numpy.typing import NDArray
from torch import Tensor

from fedplt.client import ClientResult, Evaluation
from fedplt.errors import UpdateError
from fedplt.federation import Job
from fedplt.kernels import named_tensors
from fedplt.server import MAX_LOSS, claim_cap, validate_evaluation
from fedplt_flower.messages import (
    MAX_EXAMPLES,
    HelloAnswer,
    MetricsAnswer,
    find_metric,
    metric_names,
    read,
)
from fedplt_flower.records import Arrays
from fedplt_flower.server.engine import FlowerEngine, Records
from fedplt_flower.server.wire import Answer, Wire


@dataclass(frozen=True, eq=False, kw_only=True)
class AppJob(Job):
    """A job whose clients report their number of examples with their first answer."""

    known: NDArray[np.int64]
    """Number of examples per client; 0: the client has not answered yet."""
    are_claims: bool = True
    """Whether the numbers are self-reported; their weights are then capped."""

    @property
    def num_examples(self) -> NDArray[np.int64]:
        """Examples per client; for a client that has not answered yet, the mean of the others."""
        known = self.known[self.known > 0]
        mean = round(float(np.minimum(known, self._most).mean())) if len(known) else 1
        return np.where(self.known > 0, self.known, mean)

    @property
    def weights(self) -> NDArray[np.int64]:
        return np.minimum(super().weights, self._most)

    @property
    def _most(self) -> int:
        known = self.known[self.known > 0].tolist()
        return claim_cap(known) if known and self.are_claims else MAX_EXAMPLES

    def examples(self, client: int) -> range:
        return range(int(self.num_examples[client]))

    @cached_property
    def data_fingerprint(self) -> str:
        return "on nodes"


@dataclass(frozen=True, eq=False)
class AppSettings:
    """Settings of the user's app, as Flower's strategies pass them to its functions."""

    initial: ArrayRecord
    """All tensors of the model; the run replaces the trained ones."""
    train_config: ConfigRecord
    evaluate_config: ConfigRecord
    evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None
    evaluate_on_nodes: bool
    """Whether to call the app's ``@app.evaluate()``."""
    max_examples: int
    """Largest number of examples that a client may report."""


class AppEngine(FlowerEngine):
    """Sends apps the layers with their assignments, and collects the apps' metrics."""

    sends_layers = True
    job: AppJob

    def __init__(
        self, job: AppJob, wire: Wire, settings: AppSettings, stop: Callable[[], bool]
    ) -> None:
        super().__init__(job, wire, stop)
        self.settings = settings
        self.train_metrics: dict[int, tuple[int, Mapping[str, float]]] = {}
        """Examples and metrics of the clients that trained in this round."""
        self.node_metrics: dict[int, dict[str, float]] = {}
        self.server_metrics: dict[int, MetricRecord] = {}
        """Metrics of ``evaluate_fn`` by the number of the round, from 1."""
        self._evaluated: dict[int, tuple[int, Mapping[str, float]]] = {}
        """Examples and metrics of the clients that evaluated the model last."""

    def check_hello(self, hello: HelloAnswer) -> None:
        """Refuse nodes of deployments: an app knows examples and layers only once it trains."""
        if hello.layers is not None or hello.num_examples is not None:
            raise UpdateError("it is not an app for FedPLT: its app is SlicesApp().")

    def train_records(self) -> Records:
        self.train_metrics = {}
        return {"config": self._config(self.settings.train_config)}

    def _config(self, given: ConfigRecord) -> ConfigRecord:
        return ConfigRecord({**given, "server-round": self.round + 1})

    def take_result(self, client: int, answer: Answer, upload: bool) -> ClientResult:
        if set(answer.header) == {"metrics"}:
            raise UpdateError(
                "its app replied without fedplt's train_slices: in @app.train(), return "
                "part.reply(num_examples=...)."
            )
        result = super().take_result(client, answer, upload)
        self.job.known[client] = result.num_examples
        self.train_metrics[client] = result.num_examples, answer.header.get("metrics", {})
        return result

    def check_examples(self, found: Any) -> None:
        """Refuse too large a number of examples, or one that has changed since the first reply."""
        if self.job.known[found.client]:
            super().check_examples(found)
        elif found.num_examples > self.settings.max_examples:
            raise UpdateError(
                f"it trained on {found.num_examples} examples; at most "
                f"{self.settings.max_examples} are allowed (max_examples)."
            )

    def arrays(self, state: Tensor) -> ArrayRecord:
        """All tensors of the model, under the names in the app."""
        trained = named_tensors(self.job.layers, state)
        tensors = self.settings.initial.to_torch_state_dict()
        return ArrayRecord({name: trained.get(name, old) for name, old in tensors.items()})

    def evaluate(self, part: str, state: Tensor) -> Evaluation:
        """Call ``evaluate_fn`` on the server."""
        assert self.settings.evaluate_fn is not None
        found = self.settings.evaluate_fn(self.round + 1, self.arrays(state))
        if found is None:
            return Evaluation(math.nan, math.nan)
        self.server_metrics[self.round + 1] = found
        return self._evaluation({k: v for k, v in found.items() if isinstance(v, (int, float))})

    def evaluate_clients(
        self, part: str, state: Tensor, clients: Sequence[int]
    ) -> dict[int, Evaluation]:
        """Call the app's function on each node; answers without the run's metric are left out."""
        self.failures, self._evaluated = {}, {}
        if not self.settings.evaluate_on_nodes:
            return {}
        found = super().evaluate_clients(part, state, clients)
        if found:
            most = claim_cap([number for number, _ in self._evaluated.values()])
            means = {k: (min(n, most), metrics) for k, (n, metrics) in self._evaluated.items()}
            self.node_metrics[self.round + 1] = weighted_mean(means)
        return {k: each for k, each in found.items() if not math.isnan(each.score)}

    def evaluate_contents(self, state: Tensor) -> tuple[Arrays, Records]:
        config = self._config(self.settings.evaluate_config)
        return {}, {"arrays": self.arrays(state), "config": config}

    def take_evaluation(self, client: int, answer: Answer) -> Evaluation:
        number, metrics = read(MetricsAnswer, answer.header).split()
        evaluation = self._evaluation(metrics, number)
        if self._score(metrics) is not None:
            validate_evaluation(evaluation, self.job.metric)
        self._evaluated[client] = number, metrics
        return evaluation

    def _evaluation(
        self, metrics: Mapping[str, float], num_examples: int | None = None
    ) -> Evaluation:
        loss, score = find_metric(metrics, "loss"), self._score(metrics)
        return Evaluation(
            math.nan if loss is None else loss,
            math.nan if score is None else score,
            num_examples=num_examples,
        )

    def _score(self, metrics: Mapping[str, float]) -> float | None:
        return find_metric(metrics, *metric_names(self.job.metric.name))

    def local_tensors(self) -> dict[str, Tensor]:
        return {**super().local_tensors(), "flower.examples": torch.tensor(self.job.known)}

    def restore_local(self, tensors: Mapping[str, Tensor]) -> None:
        super().restore_local(tensors)
        self.job.known[:] = tensors["flower.examples"].numpy()


def weighted_mean(found: Mapping[int, tuple[int, Mapping[str, float]]]) -> dict[str, float]:
    """The mean of each metric over the clients that report it, weighted by their examples.

    Values that are not finite, or larger than :data:`~fedplt.server.MAX_LOSS`, are left out.
    """
    names = {name for _, metrics in found.values() for name in metrics}
    result = {}
    for name in sorted(names):
        given = [(number, metrics[name]) for number, metrics in found.values() if name in metrics]
        pairs = [(number, value) for number, value in given if abs(value) <= MAX_LOSS]
        total = sum(number for number, _ in pairs)
        result[name] = math.fsum(n * value for n, value in pairs) / total if pairs else math.nan
    return result
