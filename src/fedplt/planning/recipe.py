"""What methods change about local training and aggregation besides who trains what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Normalizer = Literal["contributors", "participants"]
Scaler = Literal["none", "normed", "outputs", "inputs"]


@dataclass(frozen=True)
class LocalRecipe:
    """The little that methods differ in, as data."""

    normalizer: Normalizer = "contributors"
    """What a sum of updates is divided by: the weight of those who trained the coordinate, or of
    all who took part (who did not train it then vote for the old value)."""
    local_norms: bool = False
    """Normalization layers never leave the clients."""
    static_norm: bool = False
    """Running statistics do not move in training; they are gathered before an evaluation."""
    masked_loss: bool = False
    """Outputs of classes that the client has no example of are set to 0 before the loss."""
    scaler: Scaler = "none"
    """Divide by the width rate in training: what hidden layers give (before a norm, or all of
    them), or what layers take in."""
    evaluate_frozen_norms: bool = False
    """Norms that a client trains nothing of are in evaluation mode."""


USUAL = LocalRecipe()
