"""Hooks on gradients that are registered inside a ``train_only`` block."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import Tensor

from fedplt.client.slices import TrainableSlices
from fedplt.errors import CutError
from fedplt.kernels import require_followed


def hook_registrations(
    part: TrainableSlices, required: dict[int, bool]
) -> dict[Callable[..., Any], Callable[..., Any]]:
    """What to call instead of torch's own functions; ``required``: as of the interception."""
    functions: Any = (Tensor.register_hook, Tensor.register_post_accumulate_grad_hook)
    return {one: functools.partial(_register, part, required, one) for one in functions}


def _register(
    part: TrainableSlices,
    required: dict[int, bool],
    function: Callable[..., Any],
    tensor: Tensor,
    hook: Any,
) -> Any:
    slices = part.slices.get(id(tensor))
    if slices is not None and slices.parameter is tensor and slices.is_recorded:
        raise CutError(
            f"a hook on the gradient of {slices.name} was registered after the forward pass that "
            "used it, whose gradients go to its slices. Register it before the forward pass."
        )
    part.note_hook(tensor)
    require_followed(tensor)
    # A parameter that is not trained has no gradient: its hooks wait for the end of the block.
    is_frozen = not tensor.requires_grad and required.get(id(tensor), False)
    if is_frozen:
        tensor.requires_grad_()
    handle = function(tensor, hook)
    if is_frozen:
        tensor.requires_grad_(False)
    elif not tensor.is_leaf:
        part.state.may_leave_out = False
    return handle
