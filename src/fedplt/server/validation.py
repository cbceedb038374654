"""Check what clients send: updates before they are aggregated, evaluations before they count.

If an answer cannot be read, only that client is refused, and the round goes on
(:func:`read_each`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np
import torch

from fedplt.client import ClientUpdate, Evaluation, Metric, Origin
from fedplt.errors import UpdateError
from fedplt.planning import Assignment
from fedplt.server.robust import part_medians, root_mean_squares
from fedplt.text import printable

Who = TypeVar("Who", bound=int)
Answer = TypeVar("Answer")
Found = TypeVar("Found")
MAX_NORM = math.sqrt(float(np.finfo(np.float32).max))
"""An update with a larger norm is refused: its squares are not finite in float32."""
MAX_LOSS = 1e100
"""A larger loss or metric is refused or left out: means over clients must stay finite."""
SLACK = 1e-6
"""Tolerated relative rounding error of sums."""


def read_each(
    answers: Mapping[Who, Answer], read: Callable[[Who, Answer], Found]
) -> tuple[dict[Who, Found], dict[Who, str]]:
    """The results of ``read(who, answer)``, and why other answers are refused.

    Any exception is a refusal: answers come from machines that the server does not control.
    """
    found: dict[Who, Found] = {}
    refused: dict[Who, str] = {}
    for who, answer in answers.items():
        try:
            found[who] = read(who, answer)
        except Exception as error:
            refused[who] = refusal(error)
    return found, refused


def refusal(error: Exception) -> str:
    """Why an answer is refused, as one line that is safe to print."""
    if isinstance(error, UpdateError):
        return printable(str(error))
    return printable(f"its answer cannot be read: {type(error).__name__}: {error}")


def norm_problem(norm: float) -> str | None:
    """Why a reported update norm is impossible; None if it is possible."""
    if 0 <= norm <= MAX_NORM:
        return None
    return f"the norm of its update is {norm:g}"


def validate_evaluation(found: Evaluation, metric: Metric) -> None:
    """Raise :class:`UpdateError` if a client's evaluation is impossible for this metric."""
    low, high = metric.limits or (-math.inf, math.inf)
    slack = SLACK * max(1.0, high - low) if math.isfinite(high - low) else 0.0
    if not (low - slack <= found.score <= high + slack and abs(found.score) <= MAX_LOSS):
        raise UpdateError(f"its {metric.name} is {found.score:g}; allowed is {low:g} to {high:g}.")
    if abs(found.loss) > MAX_LOSS:
        raise UpdateError(f"its loss is {found.loss}.")
    if found.sums is not None:
        _check_sums("sums", found.sums, np.asarray(found.count), metric)
    counts, scores = found.label_counts, found.label_scores
    if counts is None and scores is None:
        return
    if counts is None or scores is None or counts.shape != scores.shape or not metric.is_mean:
        raise UpdateError("its label_counts and label_scores do not fit each other or the metric.")
    if (counts < 0).any() or sum(counts.tolist()) != found.count:
        raise UpdateError(f"its label_counts do not add up to its {found.count} examples.")
    _check_sums("label_scores", scores, counts, metric)


def _check_sums(name: str, sums: Any, counts: Any, metric: Metric) -> None:
    """Check that each sum can be one of ``counts`` numbers within the metric's limits."""
    low, high = metric.number_limits
    with np.errstate(invalid="ignore"):  # 0 examples times infinity
        least, most = np.nan_to_num(counts * low, nan=0), np.nan_to_num(counts * high, nan=0)
    slack = SLACK * np.maximum(counts, 1)
    inside = np.isfinite(sums) & (least - slack <= sums) & (sums <= most + slack)
    if not inside.all():
        raise UpdateError(f"its {name} cannot be those of {metric.name} over its examples.")


def validate(
    update: ClientUpdate,
    assignment: Assignment,
    *,
    origin: Origin | None = None,
    num_examples: int | None = None,
    max_rms: float | None = None,
) -> None:
    """Raise :class:`UpdateError` if the update does not fit the assignment or is not finite.

    Args:
        update: what a client sent.
        assignment: the client's assignment.
        origin: the client, round and plan that the update must come from.
        num_examples: the client's number of examples, if the server knows it.
        max_rms: the largest root mean square of the change of a layer's parameters.
    """
    _check_values(update.values, assignment.update_size)
    _check_examples(update.num_examples, num_examples)
    if origin is not None and update.origin != origin:
        raise UpdateError(f"it comes from {update.origin}; {origin} was asked.")
    # One pass: a sum of squares is finite if and only if all numbers are finite (and not huge).
    vector = torch.from_numpy(update.values)
    squares = float(vector @ vector)
    if not (math.isfinite(squares) and _is_finite(update.norm)):
        raise UpdateError(
            "it holds numbers that are not finite: the client's training diverged "
            "(try a lower learning rate)."
        )
    if max_rms is not None:
        for (layer, is_buffer), size in root_mean_squares(vector, assignment).items():
            if size > max_rms and not is_buffer:
                raise UpdateError(
                    f"its change of layer {assignment.layers[layer].name} has the root mean square "
                    f"{size:.3g}; at most {max_rms:g} is allowed (max_rms)."
                )


def outliers(
    updates: Mapping[int, ClientUpdate], assignments: Mapping[int, Assignment], most: float
) -> dict[str, str]:
    """Refuse updates that change a layer by more than ``most`` times the round's median; say why.

    The size is the root mean square over the trained parameters. Clients are keyed as in records.
    """
    found = {
        client: root_mean_squares(torch.from_numpy(update.values), assignments[client])
        for client, update in updates.items()
    }
    middle, refused = part_medians(found.values()), {}
    for client, sizes in found.items():
        parts = (part for part in sizes if not part[1] and middle[part] > 0)
        times = {sizes[part] / middle[part]: part[0] for part in parts}
        worst = max(times, default=0.0)
        if worst > most:
            refused[str(client)] = (
                f"its change of layer {assignments[client].layers[times[worst]].name} is "
                f"{worst:.3g} times the median of the round's clients; at most {most:g} is "
                "allowed (max_medians)."
            )
    return refused


def _check_values(values: Any, size: int) -> None:
    if not isinstance(values, np.ndarray):
        raise UpdateError(f"it holds a {type(values).__name__}; an update is a NumPy array.")
    if values.dtype != np.float32 or values.ndim != 1 or not values.flags.c_contiguous:
        raise UpdateError(
            f"it holds {values.dtype} numbers in {values.ndim} dimensions; an update is one flat "
            "float32 array, its numbers one after another in memory."
        )
    if len(values) != size:
        raise UpdateError(f"it holds {len(values)} numbers; its assignment has {size}.")


def _check_examples(claimed: Any, known: int | None) -> None:
    if isinstance(claimed, bool) or not isinstance(claimed, int | np.integer) or claimed < 1:
        short = isinstance(claimed, int | float) and abs(claimed) < 1e15
        shown = claimed if short else type(claimed).__name__
        raise UpdateError(f"it claims {shown} examples; at least 1 is needed, a whole number.")
    if known is not None and claimed != known:
        raise UpdateError(f"it claims {min(claimed, 10**15)} examples; the client has {known}.")


def _is_finite(norm: Any) -> bool:
    try:
        return math.isfinite(norm)
    except (TypeError, ValueError, OverflowError):
        return False
