"""Evaluate the global model on the server's data, and summarize scores per client."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedplt.client import CHUNK, Evaluation, Metric, label_shares
from fedplt.configuration import ON_NODES
from fedplt.errors import ConfigError, DataError
from fedplt.federation.engine import Engine
from fedplt.federation.job import Job
from fedplt.kernels import buffer_positions
from fedplt.server import claim_factors, read_each

Measured = tuple[Evaluation, dict[str, float] | None]
"""The evaluation of the global model, and a summary of the clients' scores."""
MAX_LISTED, MAX_WORST = 200, 20
"""Up to 200 clients are recorded one by one; of more, only the 20 lowest and 20 highest."""


class Evaluator:
    """Evaluates states as the job's configuration asks."""

    def __init__(self, job: Job, engine: Engine) -> None:
        self.job, self.engine = job, engine
        self._is_local = bool(job.plan.local)
        config = job.config
        self._where = "nodes" if config.data.name == ON_NODES else config.evaluation.on
        self._label_shares = self._per_client_shares()
        self.left_out: dict[str, str] = {}
        """Clients whose evaluation the last call did not use, and why."""
        if config.evaluation.combine != "mean" and not (self._is_local or self._where == "nodes"):
            raise ConfigError(
                f"evaluation.combine is {config.evaluation.combine!r}, but the score is computed "
                "on the server's data. Leave it out, or set evaluation.on = 'nodes'."
            )

    def of_round(self, round: int, state: Tensor) -> Measured | tuple[None, None]:
        """Evaluate a round's state; (None, None) if this round is not evaluated."""
        self.left_out = {}
        return self.of("validation", state) if self._is_due(round) else (None, None)

    def gather_statistics(self, round: int, state: Tensor) -> None:
        """With ``static_norm``: write the running statistics, if this round is evaluated."""
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
        """The score from evaluations on all clients; (None, None) if nobody answers."""
        clients, shares = range(self.job.plan.num_clients), self._label_shares
        evaluations = self.engine.evaluate_clients(part, state, clients)
        scores, refused = read_each(evaluations, lambda k, found: _score(k, found, shares))
        refused |= {**self.engine.failures, **_unlike(evaluations)}
        self.left_out = {str(client): why for client, why in sorted(refused.items())}
        for client, why in self.left_out.items():
            warnings.warn(f"client {client} was not evaluated: {why}", stacklevel=2)
        sound = {k: each for k, each in evaluations.items() if k not in refused}
        if all(math.isnan(scores[client]) for client in sound):
            return None, None
        settings = self.job.config.evaluation
        return score_of_clients(
            sound, shares, self.job.num_examples, self.job.metric,
            combine=settings.combine, trim=settings.trim,
        )  # fmt: skip

    def _per_client_shares(self) -> NDArray[np.float64] | None:
        """None: clients are not weighted by labels, or each node evaluates on its data."""
        wanted = self.job.config.evaluation.per_client or self._is_local
        if not wanted or self._where != "server":
            return None
        key = "method.local_norms" if self._is_local else "evaluation.per_client"
        if not self.job.metric.is_mean:
            raise ConfigError(
                f"clients are scored by their labels, which needs a metric that is a mean "
                f"over examples, such as accuracy; {self.job.metric.name} is not.",
                key=key,
            )
        try:
            return label_shares(self.job.samples.labels(), self.job.offsets)
        except DataError as error:
            raise ConfigError(str(error), key=key) from error


def evaluation_chunks(job: Job, number: int, client: int | None) -> list[int]:
    """All chunks, or a client's share: together the clients cover all of the data."""
    limit = job.config.evaluation.client_examples
    if client is None or limit is None:
        return list(range(number))
    return sorted({(client + i) % number for i in range(-(-limit // CHUNK))})


def summary_of(
    scores: NDArray[np.float64], num_examples: NDArray[Any], clients: Sequence[int] | None = None
) -> dict[str, float]:
    """Mean (by examples), sample std and quantiles of the scores; then single clients' scores.

    The key of a single score is the client's number: all clients of a small fleet, the lowest and
    highest scores of a large one. ``clients`` are the numbers; default: 0, 1, ...
    """
    known = np.flatnonzero(~np.isnan(scores))
    weights, values = num_examples[known], scores[known]
    names = ("min", "p10", "median", "p90", "max")
    quantiles = np.quantile(values, [0, 0.1, 0.5, 0.9, 1]).tolist()
    order = known[np.argsort(values, kind="stable")]
    if len(order) > MAX_LISTED:
        order = np.concatenate([order[:MAX_WORST], order[-MAX_WORST:]])
    return {
        "mean": float(np.average(values, weights=weights)),
        "std": float(np.std(values, ddof=1)) if len(values) > 1 else 0.0,
        **dict(zip(names, quantiles, strict=True)),
        **{str(clients[k] if clients else k): float(scores[k]) for k in np.sort(order).tolist()},
    }


def score_of_clients(
    evaluations: Mapping[int, Evaluation],
    label_shares: NDArray[np.float64] | None,
    num_examples: NDArray[np.int64],
    metric: Metric,
    *,
    combine: str = "mean",
    trim: float = 0.2,
) -> tuple[Evaluation, dict[str, float]]:
    """One score from the clients' evaluations: each with its model (FedBN), or on its data.

    On common data a client's score is weighted by its label distribution; its loss is over all
    examples. Both are averaged over the clients, weighted by their numbers of training examples.
    On the clients' own data the score is over all their examples together. Numbers of examples and
    sums that clients report are capped at ten times the median (:func:`claim_factors`).

    ``combine``: ``"median"`` or ``"trimmed-mean"`` of the clients' scores instead; every client
    counts once.
    """
    clients = sorted(evaluations)
    found = [evaluations[client] for client in clients]
    parts = [each.sums for each in found if each.sums is not None and each.count]
    own = label_shares is None and len(parts) == len(found)
    scores = np.array([_score(k, evaluations[k], label_shares) for k in clients])
    losses = np.array([each.loss for each in found])
    if own:
        factors = claim_factors([each.count for each in found])
        if not all(map(math.isfinite, metric.number_limits)):
            factors = np.minimum(
                factors, claim_factors([float(np.abs(sums).max()) for sums in parts])
            )
        weights = factors * [each.count for each in found]
    else:
        given = [each.num_examples or 0 for each in found]
        factors = claim_factors(given) if all(given) else np.ones(len(given))
        known = [int(n or num_examples[k]) for n, k in zip(given, clients, strict=True)]
        weights = factors * known
    summary = summary_of(scores, weights, clients)
    together = summary["mean"]
    if own:
        scaled = [factor * sums for factor, sums in zip(factors, parts, strict=True)]
        # Client order, exactly rounded: the sum does not depend on who answers first.
        added = np.array([math.fsum(column) for column in zip(*scaled, strict=True)])
        together = metric.score(added, max(1, round(weights.sum())))
    loss = _mean(losses, weights)
    if combine != "mean":
        together, loss = _robust(scores, combine, trim), _robust(losses, combine, trim)
    return Evaluation(loss, together), summary


def _score(client: int, found: Evaluation, label_shares: NDArray[np.float64] | None) -> float:
    if label_shares is None:
        return found.score
    return float(found.client_scores(label_shares[client : client + 1])[0])


def _mean(values: NDArray[np.float64], weights: NDArray[np.float64]) -> float:
    """The weighted mean; values that are not given (NaN) are left out."""
    known = ~np.isnan(values)
    return float(np.average(values[known], weights=weights[known])) if known.any() else math.nan


def _robust(values: NDArray[np.float64], combine: str, trim: float) -> float:
    """The median, or the mean without the lowest and highest fraction ``trim``; NaN left out."""
    ordered = np.sort(values[~np.isnan(values)])
    if not len(ordered):
        return math.nan
    if combine == "median":
        return float(np.median(ordered))
    cut = int(trim * len(ordered))
    return float(ordered[cut : len(ordered) - cut].mean())


def _unlike(evaluations: Mapping[int, Evaluation]) -> dict[int, str]:
    """Clients that measured another metric: theirs has another number of sums than most."""
    lengths = {k: 0 if each.sums is None else len(each.sums) for k, each in evaluations.items()}
    most = Counter(lengths.values()).most_common(1)[0][0] if lengths else 0
    why = "it measured another metric than most. Is [task] in its node.toml that of the run?"
    return {client: why for client, length in lengths.items() if length != most}
