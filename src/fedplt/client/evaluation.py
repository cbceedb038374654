"""Evaluate a model on validation or test data, chunk by chunk, and weight scores per client."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedplt.client.metrics import Metric, Sums
from fedplt.client.outputs import is_labels
from fedplt.client.tasks import Loss
from fedplt.data import Samples
from fedplt.errors import DataError
from fedplt.kernels import modules_with_running_statistics
from fedplt.models import call_model
from fedplt.seeds import seeded_globals, torch_seed
from fedplt.text import brief
from fedplt.torch_internals import seed_torch

CHUNK = 1000
"""Examples per evaluation batch; fixed, so that sums do not depend on the number of workers."""


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Mean loss, the score, and per label the number of examples and the sum of scores."""

    loss: float
    score: float
    label_counts: NDArray[np.int64] | None = None
    label_scores: NDArray[np.float64] | None = None
    num_examples: int | None = None
    """With per-client data: the number of the client's examples."""
    count: int = 0
    """Number of evaluated examples; 0: not known."""
    sums: Sums | None = None
    """The metric's numbers, summed over the evaluated examples."""

    __repr__ = brief

    def client_scores(self, label_shares: NDArray[np.float64]) -> NDArray[np.float64]:
        """Score of each client: per-label scores, weighted by the client's label distribution.

        ``label_shares`` is (clients, labels). Labels that the evaluation data lacks are left out.
        """
        if self.label_counts is None or self.label_scores is None:
            raise DataError(
                "per-client evaluation needs integer labels and a metric that is a mean over "
                "examples, such as accuracy"
            )
        width = max(len(self.label_counts), label_shares.shape[1])
        counts = np.pad(self.label_counts, (0, width - len(self.label_counts)))
        sums = np.pad(self.label_scores, (0, width - len(self.label_scores)))
        known = counts > 0
        scores = sums[known] / counts[known]
        shares = np.pad(label_shares, ((0, 0), (0, width - label_shares.shape[1])))[:, known]
        weight = shares.sum(axis=1)
        means: NDArray[np.float64] = np.full(len(shares), math.nan)
        np.divide(shares @ scores, weight, out=means, where=weight > 0)
        return means


@dataclass(frozen=True, eq=False)
class ChunkResult:
    """Sums over the examples of one chunk."""

    num_examples: int
    loss: float
    sums: tuple[float, ...]
    """The metric's numbers."""
    labels: NDArray[np.int64] | None
    label_scores: NDArray[np.float64] | None


def evaluate_chunk(
    model: nn.Module, samples: Samples, chunk: int, loss: Loss, metric: Metric
) -> ChunkResult:
    """Evaluate one chunk of the samples."""
    model.eval()
    with torch.no_grad(), seeded("evaluation", chunk):
        inputs, targets, number = _batch(samples, chunk)
        outputs = call_model(model, inputs)
        mean_loss = float(loss(outputs, targets))
        rows = metric.rows(outputs, targets, number)
    sums = tuple(float(column.sum()) for column in rows.T.contiguous())
    labels = label_scores = None
    if metric.is_mean and is_labels(targets) and targets.ndim == 1:
        targets = targets.cpu()
        labels = torch.bincount(targets).numpy()
        label_scores = torch.bincount(targets, weights=rows[:, 0]).numpy()
    return ChunkResult(number, mean_loss * number, sums, labels, label_scores)


def gather_statistics(model: nn.Module, samples: Samples, chunk: int) -> int:
    """Set the running statistics of all normalization layers to those of one chunk of samples.

    Returns the number of examples. All other layers are in evaluation mode.
    """
    model.eval()
    layers = modules_with_running_statistics(model)
    momenta = [layer.momentum for layer in layers]
    for layer in layers:
        layer.momentum = 1.0
        layer.train()
    with torch.no_grad(), seeded("evaluation", chunk):
        inputs, _, number = _batch(samples, chunk)
        call_model(model, inputs)
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.momentum = momentum
    return number


def _batch(samples: Samples, chunk: int) -> tuple[Any, Any, int]:
    """Inputs and targets of a chunk, and the number of its examples."""
    indices = torch.arange(chunk * CHUNK, min((chunk + 1) * CHUNK, len(samples)))
    return *samples.batch(indices), len(indices)


@contextmanager
def seeded(purpose: str, chunk: int = 0) -> Iterator[None]:
    """Seed the random draws of data sets and models: a chunk gives the same in every worker."""
    with torch.random.fork_rng(devices=[]), seeded_globals(0, purpose, client=chunk):
        seed_torch(torch_seed(0, purpose, client=chunk))
        yield


def num_chunks(samples: Samples) -> int:
    return -(-len(samples) // CHUNK)


def statistics_chunks(samples: Samples) -> int:
    """Number of chunks for running statistics; a chunk of one example has no variance."""
    return max(1, num_chunks(samples) - (len(samples) % CHUNK == 1))


def combine_statistics(gathered: Sequence[tuple[int, Tensor]]) -> Tensor:
    """The mean of the chunks' statistics, weighted by examples; given in chunk order."""
    (number, values), *rest = gathered
    total = number * values
    for number, values in rest:
        total = total + number * values
    return torch.as_tensor(total / sum(number for number, _ in gathered)).float()


def combine(results: Iterable[ChunkResult], metric: Metric) -> Evaluation:
    """Combine the chunk results, given in chunk order, over all examples."""
    results = list(results)
    number = sum(result.num_examples for result in results)
    columns = zip(*(result.sums for result in results), strict=True)
    sums = np.array([math.fsum(column) for column in columns])
    return Evaluation(
        math.fsum(result.loss for result in results) / number,
        metric.score(sums, number),
        _summed([result.labels for result in results]),
        _summed([result.label_scores for result in results]),
        count=number,
        sums=sums,
    )


def _summed(arrays: list[Any]) -> Any:
    if any(array is None for array in arrays):
        return None
    width = max(len(array) for array in arrays)
    return np.sum([np.pad(array, (0, width - len(array))) for array in arrays], axis=0)


def label_shares(labels: NDArray[np.int64], offsets: NDArray[np.int64]) -> NDArray[np.float64]:
    """Each client's label distribution, (clients, labels); examples are in client order."""
    num_labels, num_clients = int(labels.max()) + 1, len(offsets) - 1
    owner = np.repeat(np.arange(num_clients), np.diff(offsets))
    counts = np.bincount(owner * num_labels + labels, minlength=num_clients * num_labels)
    counts = counts.reshape(num_clients, num_labels)
    return np.asarray(counts / counts.sum(axis=1, keepdims=True))
