"""Check a client's update before it is aggregated."""

from __future__ import annotations

import math

import numpy as np
import torch

from fedplt.client import ClientUpdate
from fedplt.errors import UpdateError
from fedplt.planning import Assignment


def validate(update: ClientUpdate, assignment: Assignment) -> None:
    """Raise :class:`UpdateError` if the update does not fit the assignment or is not finite."""
    values = update.values
    if values.dtype != np.float32 or values.ndim != 1:
        raise UpdateError(
            f"it holds {values.dtype} numbers in {values.ndim} dimensions; "
            "an update is one flat float32 array."
        )
    if len(values) != assignment.update_size:
        raise UpdateError(
            f"it holds {len(values)} numbers; its assignment has {assignment.update_size}."
        )
    if update.num_examples < 1:
        raise UpdateError(f"it claims {update.num_examples} examples; at least 1 is needed.")
    # One pass: a sum of squares is finite if and only if all numbers are (and not astronomical).
    vector = torch.from_numpy(values)
    squares = float(vector @ vector)
    if not (math.isfinite(squares) and math.isfinite(update.norm)):
        raise UpdateError(
            "it holds numbers that are not finite: the client's training diverged "
            "(try a lower learning rate)."
        )
