"""Bring a model's outputs and targets into the form that losses and metrics need.

Outputs are a tensor, or an object or dictionary with ``logits`` (Hugging Face models).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedplt.errors import DataError

IGNORED = -100
"""The label that cross entropy ignores, such as for padding."""


def logits_of(outputs: Any) -> Tensor:
    """The tensor of outputs, or the ``logits`` of an output object."""
    if isinstance(outputs, Tensor):
        return outputs
    found = outputs.get("logits") if isinstance(outputs, Mapping) else None
    found = getattr(outputs, "logits", None) if found is None else found
    if found is None and isinstance(outputs, (tuple, list)) and len(outputs) == 1:
        found = outputs[0]
    if not isinstance(found, Tensor):
        raise DataError(
            f"the model returns a {type(outputs).__name__}; built-in losses and metrics take a "
            "tensor, or an object with .logits. Give a custom loss and metric for others."
        )
    return found


def class_scores(outputs: Any, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Scores with classes on the second axis, as cross entropy takes them, and the targets.

    Models that wrap their logits have the classes last: (examples, tokens, classes). One-hot
    labels in whole numbers become probabilities.
    """
    logits = logits_of(outputs)
    if logits is not outputs and logits.ndim > 2:
        logits = logits.movedim(-1, 1)
    if targets.ndim == logits.ndim > 1 and not targets.is_floating_point():
        targets = targets.to(logits.dtype)
    return logits, targets


def aligned(outputs: Any, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs and targets with the same shape, (examples, ...), and the outputs' type."""
    logits = logits_of(outputs)
    if logits.ndim == targets.ndim + 1 and logits.shape[-1] == 1:
        targets = targets.unsqueeze(-1)
    elif targets.ndim == logits.ndim + 1 and targets.shape[-1] == 1:
        logits = logits.unsqueeze(-1)
    if logits.shape != targets.shape:
        raise DataError(
            f"the model gives {_shape(logits)} per example, but a target is {_shape(targets)}; "
            "make them alike."
        )
    return logits.reshape(len(logits), -1), targets.reshape(len(targets), -1).to(logits.dtype)


def next_tokens(outputs: Any, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Scores (examples, vocabulary, tokens), and the next token for each of them.

    If the outputs are a tensor, the vocabulary is its last or second axis, and the targets are
    already the next tokens. If a model wraps its logits, the vocabulary is the last axis, and the
    targets are the inputs: output t predicts target t + 1.
    """
    logits = logits_of(outputs)
    if logits is not outputs:
        return logits[:, :-1].movedim(-1, 1), targets[:, 1:]
    last = vocabulary_axis(tuple(logits.shape), tuple(targets.shape)) != 1
    return logits.movedim(-1, 1) if last else logits, targets


def vocabulary_axis(outputs: tuple[int, ...], targets: tuple[int, ...]) -> int:
    """The axis of the vocabulary: the targets show which one has the tokens, it is the other.

    >>> vocabulary_axis((8, 20, 100), (8, 20)), vocabulary_axis((8, 100, 20), (8, 20))
    (2, 1)
    """
    if len(outputs) != 3 or len(targets) != 2 or outputs[1] != targets[1]:
        return 1
    if outputs[2] == targets[1]:
        raise DataError(
            f"the model gives a tensor of shape {outputs[1:]} per example for {targets[1]} tokens: "
            "either axis may be the vocabulary. Cut or pad the sequences to another length, or "
            "give a custom loss and metric."
        )
    return 2


def _shape(batch: Tensor) -> str:
    shape = tuple(batch.shape[1:])
    return "one number" if not shape else f"a tensor of shape {shape}"


def own_loss(outputs: Any) -> Tensor | None:
    """The loss that a model computed itself from labels among its inputs."""
    if isinstance(outputs, Tensor):
        return None
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else getattr(outputs, "loss", None)
    return loss if isinstance(loss, Tensor) and loss.ndim == 0 else None


def is_labels(targets: Any) -> bool:
    """Whether targets are whole numbers."""
    return isinstance(targets, Tensor) and not (
        targets.is_floating_point() or targets.is_complex() or targets.dtype is torch.bool
    )
