"""What a method changes in local training and aggregation, beyond the plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Normalizer = Literal["contributors", "participants"]
Scaler = Literal["none", "normed", "outputs", "inputs"]


@dataclass(frozen=True)
class LocalRecipe:
    """What a method changes in local training and aggregation, as data."""

    normalizer: Normalizer = "contributors"
    """Divide the sum of updates by the weights of the clients that trained the coordinate, or of
    all that took part (a client that did not train it then votes for the old value)."""
    local_norms: bool = False
    """Each client keeps its own normalization layers and never uploads them."""
    static_norm: bool = False
    """Running statistics do not change in training; they are gathered before an evaluation."""
    masked_loss: bool = False
    """Set outputs of classes that the client has no examples of to 0 before the loss."""
    scaler: Scaler = "none"
    """In training, divide by the width rate: the outputs of hidden layers (``normed``: only of
    those before a normalization layer; ``outputs``: of all), or the inputs of layers."""
    evaluate_frozen_norms: bool = False
    """Normalization layers without a trained row are in evaluation mode during training."""


DEFAULT_RECIPE = LocalRecipe()
