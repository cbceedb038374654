"""Evaluate the global model on the server's data, and summarize scores per client."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedplt.client import CHUNK, Evaluation, label_shares
from fedplt.errors import ConfigError, DataError
from fedplt.federation.engine import Engine
from fedplt.federation.job import Job
from fedplt.kernels import buffer_positions

Measured = tuple[Evaluation, dict[str, float] | None]
"""The evaluation of the global model, and a summary of the clients' scores."""


class Measurement:
    """Evaluates states as the job's configuration asks."""

    def __init__(self, job: Job, engine: Engine) -> None:
        self.job, self.engine = job, engine
        self._is_local = bool(job.plan.local)
        self._label_shares = self._per_client_shares()

    def of_round(self, round: int, state: Tensor) -> Measured | tuple[None, None]:
        """Evaluate a round's state; (None, None) if this round is not evaluated.

        With ``static_norm``, the running statistics of the normalization layers are gathered
        here and written into ``state``.
        """
        config = self.job.config
        if (round + 1) % config.evaluation.every and round + 1 < config.rounds:
            return None, None
        statistics = buffer_positions(self.job.layers)
        if self.job.recipe.static_norm and len(statistics):
            state[statistics] = self.engine.statistics(state)
        return self.of("validation", state)

    def of(self, part: str, state: Tensor) -> Measured:
        shares, examples = self._label_shares, self.job.num_examples
        if self._is_local:
            assert shares is not None
            clients = range(self.job.plan.num_clients)
            evaluations = self.engine.evaluate_clients(part, state, clients)
            return local_accuracy(evaluations, shares, examples)
        evaluation = self.engine.evaluate(part, state)
        if shares is None:
            return evaluation, None
        return evaluation, summary_of(evaluation.client_scores(shares), examples)

    def _per_client_shares(self) -> NDArray[np.float64] | None:
        if not (self.job.config.evaluation.per_client or self._is_local):
            return None
        try:
            return label_shares(self.job.samples.labels(), self.job.offsets)
        except DataError as error:
            key = "method.local_norms" if self._is_local else "evaluation.per_client"
            raise ConfigError(f"{key}: {error}") from error


def evaluation_chunks(job: Job, number: int, client: int | None) -> list[int]:
    """All chunks, or a client's share: together the clients cover all of the data."""
    limit = job.config.evaluation.client_examples
    if client is None or limit is None:
        return list(range(number))
    return sorted({(client + i) % number for i in range(-(-limit // CHUNK))})


def summary_of(scores: NDArray[np.float64], num_examples: NDArray[np.int64]) -> dict[str, float]:
    """Mean (by examples), std, min, median and max of the clients' scores."""
    known = ~np.isnan(scores)
    weights, scores = num_examples[known], scores[known]
    return {
        "mean": float(np.average(scores, weights=weights)),
        "std": float(np.std(scores)),
        "min": float(scores.min()),
        "median": float(np.median(scores)),
        "max": float(scores.max()),
    }


def local_accuracy(
    evaluations: Sequence[Evaluation],
    label_shares: NDArray[np.float64],
    num_examples: NDArray[np.int64],
) -> tuple[Evaluation, dict[str, float]]:
    """One number from evaluations of every client's own model (FedBN).

    A client's score is weighted by its label distribution; its loss is over all evaluation data.
    Both are averaged over the clients, weighted by their examples.
    """
    scores = np.array(
        [
            float(evaluation.client_scores(label_shares[client : client + 1])[0])
            for client, evaluation in enumerate(evaluations)
        ]
    )
    summary = summary_of(scores, num_examples)
    losses = [evaluation.loss for evaluation in evaluations]
    return Evaluation(float(np.average(losses, weights=num_examples)), summary["mean"]), summary
