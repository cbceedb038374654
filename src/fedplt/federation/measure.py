"""How good a model is for the clients."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedplt.evaluation import Evaluation


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

    A client's score is that on data that follows its labels; scores and losses are averaged by
    examples (losses over all evaluation data).
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
