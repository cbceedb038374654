"""Static partial training on a strongly convex problem, recording every quantity of the proof."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedplt.comparison import t_quantile
from fedplt.errors import FedpltError
from fedplt.seeds import generator
from reproduction.theory.bounds import masked_alignments
from reproduction.theory.problems import Matrix, Problem, Vector

DIVERGED = 1e12


@dataclass(frozen=True, eq=False)
class Trajectory:
    """One run, local step by local step. Arrays are (steps,) or (steps, clients)."""

    distances: Vector
    r"""Squared distance of the clients' average from W*, (steps + 1,)."""
    alignments: Matrix
    """Masked alignment of every client at its own model."""
    descents: Matrix
    r""":math:`\langle \nabla F_k(W_k), W_k - W^*\rangle`: unstated, must not be negative."""
    local_gradients: Matrix
    """Norms of the clients' gradients at their own models."""
    global_gradients: Vector
    """Norms of the global gradient at the average."""
    smoothness_ratios: Matrix
    """Change of a gradient from one step to the next over the change of the point, over L."""
    convexity_slacks: Matrix
    """By how much strong convexity between a client's model and W* holds; >= 0 if it does."""


def rotating_masks(dimension: int, ratios: Sequence[float]) -> NDArray[np.bool_]:
    """Static masks as FedPLT assigns them: each client gets the next coordinates, cyclically.

    >>> rotating_masks(4, [0.5, 0.75]).astype(int).tolist()
    [[1, 1, 0, 0], [1, 0, 1, 1]]
    """
    masks = np.zeros((len(ratios), dimension), dtype=bool)
    start = 0
    for mask, ratio in zip(masks, ratios, strict=True):
        if not 0 < ratio <= 1:
            raise FedpltError(f"ratio is {ratio}; a training ratio lies in (0, 1].")
        count = max(1, round(ratio * dimension))
        mask[np.arange(start, start + count) % dimension] = True
        start += count
    return masks


def static_partial_training(
    problem: Problem,
    masks: NDArray[np.bool_],
    step_sizes: Sequence[float],
    start: Vector,
    *,
    local_steps: int = 1,
    noise: float = 0.0,
    seed: int = 0,
) -> Trajectory:
    """Rounds of ``local_steps`` masked gradient steps, averaged with weights ``c_k``.

    ``step_sizes``: one per round. ``noise``: Gaussian noise is added to every local gradient so
    that its expected squared norm is ``noise**2``.
    """
    weights, optimum = problem.weights, problem.optimum
    clients, dimension = masks.shape
    models = np.tile(start, (clients, 1))
    rows: list[tuple[NDArray[np.float64], ...]] = []
    distances = [float(np.sum((start - optimum) ** 2))]
    before: tuple[Matrix, Matrix] | None = None
    for round, step_size in enumerate(step_sizes):
        random = generator(seed, "theory-noise", round=round)
        for _ in range(local_steps):
            gradients, offsets = problem.gradients(models), models - optimum
            average = weights @ models
            everywhere = np.tile(average, (clients, 1))
            rows.append(
                (
                    masked_alignments(gradients, masks, offsets),
                    np.einsum("ki,ki->k", gradients, offsets),
                    np.linalg.norm(gradients, axis=1),
                    np.array([np.linalg.norm(weights @ problem.gradients(everywhere))]),
                    _smoothness(before, (models, gradients), problem.smoothness),
                    _convexity(problem, models, gradients, offsets),
                )
            )
            before = (models, gradients)
            noises = random.normal(size=gradients.shape) * noise / np.sqrt(dimension)
            models = models - step_size * np.where(masks, gradients + noises, 0.0)
            distances.append(float(np.sum((weights @ models - optimum) ** 2)))
            if not distances[-1] < DIVERGED * (1 + distances[0]):
                raise FedpltError(
                    f"training diverges: in round {round + 1} the squared distance to the optimum "
                    f"is {distances[-1]:.3g}. The step size is {step_size:.3g}; choose one well "
                    f"below 2 / L = {2 / problem.smoothness:.3g}."
                )
        models = np.tile(weights @ models, (clients, 1))
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    alignments, descents, local, global_, smooth, convex = columns
    return Trajectory(
        np.array(distances), alignments, descents, local, global_[:, 0], smooth, convex
    )


def _smoothness(
    before: tuple[Matrix, Matrix] | None, now: tuple[Matrix, Matrix], smoothness: float
) -> Vector:
    if before is None:
        return np.zeros(len(now[0]))
    moved = np.linalg.norm(now[0] - before[0], axis=1)
    turned = np.linalg.norm(now[1] - before[1], axis=1)
    still = np.zeros_like(moved)
    return np.asarray(np.divide(turned, smoothness * moved, out=still, where=moved > 1e-12))


def _convexity(problem: Problem, models: Matrix, gradients: Matrix, offsets: Matrix) -> Vector:
    optimum = np.tile(problem.optimum, (len(models), 1))
    gap = problem.losses(optimum) - problem.losses(models)
    linear = -np.einsum("ki,ki->k", gradients, offsets)
    curved = 0.5 * problem.strong_convexity * np.sum(offsets**2, axis=1)
    return np.asarray(gap - linear - curved)


CONFIDENCE = 0.99
"""All intervals of a call hold together at this level."""


class MeanIntervals(NamedTuple):
    """Intervals of the expectations, (steps,); infinite if there is one repetition."""

    low: Vector
    high: Vector


def mean_intervals(samples: Matrix) -> MeanIntervals:
    r"""Student's intervals :math:`\bar x \pm t\, s / \sqrt n` of ``samples`` (repetitions, steps).

    They share the error of 1 % (Bonferroni), because a bound is broken where any step breaks it.
    Squared distances are skewed to the right, which makes the lower ends, the ones that
    contradict a bound, cautious.

    >>> mean_intervals(np.array([[1.0, 4.0], [1.0, 6.0], [1.0, 5.0]])).low.round(2).tolist()
    [1.0, -3.13]
    """
    number, steps = samples.shape
    mean = samples.mean(axis=0)
    if number == 1:
        return MeanIntervals(np.full(steps, -math.inf), np.full(steps, math.inf))
    t = t_quantile(1 - (1 - CONFIDENCE) / (2 * steps), number - 1)
    half = t * samples.std(axis=0, ddof=1) / math.sqrt(number)
    return MeanIntervals(mean - half, mean + half)
