"""Evaluate the global model on the server's data, and summarize scores per client."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedplt.client import CHUNK, Evaluation, Metric, Sums, label_shares
from fedplt.configuration import ON_NODES
from fedplt.errors import ConfigError, DataError
from fedplt.federation.engine import Engine
from fedplt.federation.job import Job
from fedplt.kernels import buffer_positions

Measured = tuple[Evaluation, dict[str, float] | None]
"""The evaluation of the global model, and a summary of the clients' scores."""
MAX_LISTED, MAX_WORST = 200, 20
"""Up to so many clients are recorded one by one; of more, so many at either end."""


class Measurement:
    """Evaluates states as the job's configuration asks."""

    def __init__(self, job: Job, engine: Engine) -> None:
        self.job, self.engine = job, engine
        self._is_local = bool(job.plan.local)
        config = job.config
        self._where = "nodes" if config.data.name == ON_NODES else config.evaluation.on
        self._label_shares = self._per_client_shares()

    def of_round(self, round: int, state: Tensor) -> Measured | tuple[None, None]:
        """Evaluate a round's state; (None, None) if this round is not evaluated."""
        return self.of("validation", state) if self._is_due(round) else (None, None)

    def gather_statistics(self, round: int, state: Tensor) -> None:
        """With ``static_norm``: write the running statistics of a round to be evaluated."""
        statistics = buffer_positions(self.job.layers)
        if self.job.recipe.static_norm and len(statistics) and self._is_due(round):
            state[statistics] = self.engine.statistics(state)

    def _is_due(self, round: int) -> bool:
        config = self.job.config
        return not (round + 1) % config.evaluation.every or round + 1 >= config.rounds

    def of(self, part: str, state: Tensor) -> Measured | tuple[None, None]:
        shares, examples = self._label_shares, self.job.num_examples
        if self._is_local or self._where == "nodes":
            return self._of_clients(part, state)
        evaluation = self.engine.evaluate(part, state)
        if self._where == "both":
            return evaluation, self._of_clients(part, state)[1]
        if shares is None:
            return evaluation, None
        return evaluation, summary_of(evaluation.client_scores(shares), examples)

    def _of_clients(self, part: str, state: Tensor) -> Measured | tuple[None, None]:
        """Every client evaluates for itself; (None, None) if nobody answers."""
        clients = range(self.job.plan.num_clients)
        evaluations = self.engine.evaluate_clients(part, state, clients)
        if not evaluations:
            return None, None
        shares, examples = self._label_shares, self.job.num_examples
        return score_of_clients(evaluations, shares, examples, self.job.metric)

    def _per_client_shares(self) -> NDArray[np.float64] | None:
        """None: clients are not weighted by labels, or the nodes evaluate on data of their own."""
        wanted = self.job.config.evaluation.per_client or self._is_local
        if not wanted or self._where != "server":
            return None
        key = "method.local_norms" if self._is_local else "evaluation.per_client"
        if not self.job.metric.is_mean:
            raise ConfigError(
                f"{key}: clients are scored by their labels, which needs a metric that is a mean "
                f"over examples, such as accuracy; {self.job.metric.name} is not."
            )
        try:
            return label_shares(self.job.samples.labels(), self.job.offsets)
        except DataError as error:
            raise ConfigError(f"{key}: {error}") from error


def evaluation_chunks(job: Job, number: int, client: int | None) -> list[int]:
    """All chunks, or a client's share: together the clients cover all of the data."""
    limit = job.config.evaluation.client_examples
    if client is None or limit is None:
        return list(range(number))
    return sorted({(client + i) % number for i in range(-(-limit // CHUNK))})


def summary_of(
    scores: NDArray[np.float64],
    num_examples: NDArray[np.int64],
    clients: Sequence[int] | None = None,
) -> dict[str, float]:
    """Mean (by examples), sample std and quantiles of the scores; then single clients' scores.

    These have the client's number as key: all clients of a small fleet, the lowest and the highest
    scores of a large one. ``clients`` are the numbers; default: 0, 1, ...
    """
    known = np.flatnonzero(~np.isnan(scores))
    weights, values = num_examples[known], scores[known]
    low, tenth, median, ninth, high = np.quantile(values, [0, 0.1, 0.5, 0.9, 1])
    order = known[np.argsort(values, kind="stable")]
    if len(order) > MAX_LISTED:
        order = np.concatenate([order[:MAX_WORST], order[-MAX_WORST:]])
    return {
        "mean": float(np.average(values, weights=weights)),
        "std": float(np.std(values, ddof=1)) if len(values) > 1 else 0.0,
        "min": float(low),
        "p10": float(tenth),
        "median": float(median),
        "p90": float(ninth),
        "max": float(high),
        **{str(clients[k] if clients else k): float(scores[k]) for k in np.sort(order).tolist()},
    }


def score_of_clients(
    evaluations: Mapping[int, Evaluation],
    label_shares: NDArray[np.float64] | None,
    num_examples: NDArray[np.int64],
    metric: Metric,
) -> tuple[Evaluation, dict[str, float]]:
    """One number from the clients' evaluations, each of its own model (FedBN) or on its own data.

    On common data a client's score is weighted by its label distribution, and its loss is over
    all of them. Both are averaged over the clients, weighted by the examples that they train on.
    On data of their own the score is that of all their examples together.
    """

    def score(client: int, evaluation: Evaluation) -> float:
        if label_shares is None:
            return evaluation.score
        return float(evaluation.client_scores(label_shares[client : client + 1])[0])

    clients = _alike(evaluations)
    own = label_shares is None and all(each.count for each in evaluations.values())
    weights = np.array(
        [
            evaluations[k].count if own else evaluations[k].num_examples or num_examples[k]
            for k in clients
        ]
    )
    scores = np.array([score(k, evaluations[k]) for k in clients])
    summary = summary_of(scores, weights, clients)
    losses = [evaluations[client].loss for client in clients]
    together = summary["mean"]
    if own:
        sums = [evaluations[client].sums for client in clients]
        together = metric.score(_added(sums), int(weights.sum()))
    return Evaluation(float(np.average(losses, weights=weights)), together), summary


def _alike(evaluations: Mapping[int, Evaluation]) -> list[int]:
    """The clients whose metrics have as many numbers as most; others measured something else."""
    lengths = {k: 0 if each.sums is None else len(each.sums) for k, each in evaluations.items()}
    most = Counter(lengths.values()).most_common(1)[0][0]
    for client in sorted(client for client, length in lengths.items() if length != most):
        warnings.warn(
            f"client {client} measured another metric than most: its evaluation is left out. Is "
            "[task] in its node.toml that of the run?",
            stacklevel=2,
        )
    return sorted(client for client, length in lengths.items() if length == most)


def _added(parts: Sequence[Sums | None]) -> Sums:
    """The sums of all clients, in client order."""
    columns = zip(*(part for part in parts if part is not None), strict=True)
    return np.array([math.fsum(column) for column in columns])
