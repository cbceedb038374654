"""Check a client's update before it is aggregated."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from fedplt.client import ClientUpdate, Origin
from fedplt.errors import UpdateError
from fedplt.planning import Assignment
from fedplt.server.clipping import root_mean_squares


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
        assignment: what it was to train.
        origin: the client, round and plan that the update must come from.
        num_examples: how many examples the client has, if the server knows.
        max_rms: the largest root mean square of the change of a layer's parameters.
    """
    _check_values(update.values, assignment.update_size)
    _check_examples(update.num_examples, num_examples)
    if origin is not None and update.origin != origin:
        raise UpdateError(f"it comes from {update.origin}; {origin} was asked.")
    # One pass: a sum of squares is finite if and only if all numbers are (and not astronomical).
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


def _check_values(values: Any, size: int) -> None:
    if not isinstance(values, np.ndarray):
        raise UpdateError(f"it holds a {type(values).__name__}; an update is a NumPy array.")
    if values.dtype != np.float32 or values.ndim != 1:
        raise UpdateError(
            f"it holds {values.dtype} numbers in {values.ndim} dimensions; "
            "an update is one flat float32 array."
        )
    if len(values) != size:
        raise UpdateError(f"it holds {len(values)} numbers; its assignment has {size}.")
    if not values.flags.c_contiguous:
        raise UpdateError("its numbers do not lie one after another in memory.")


def _check_examples(told: Any, known: int | None) -> None:
    if isinstance(told, bool) or not isinstance(told, int | np.integer) or told < 1:
        shown = told if isinstance(told, int | float) and abs(told) < 1e15 else type(told).__name__
        raise UpdateError(f"it claims {shown} examples; at least 1 is needed, a whole number.")
    if known is not None and told != known:
        raise UpdateError(f"it claims {min(told, 10**15)} examples; the client has {known}.")


def _is_finite(norm: Any) -> bool:
    try:
        return math.isfinite(norm)
    except (TypeError, ValueError, OverflowError):
        return False
