"""The flat state of a torch module, and forward passes that save in the backward pass."""

from __future__ import annotations

from fedplt.kernels.attention import Caught, attention_forward
from fedplt.kernels.flat_state import (
    add_at,
    bind_state,
    buffer_positions,
    call_model,
    check_dtypes,
    evaluation_mode,
    mode,
    named_tensors,
    parts_of,
    put,
    read_state,
    take,
)
from fedplt.kernels.forwards import (
    FORWARDS,
    FORWARDS_BY_NAME,
    forward_of,
    full_name,
    outputs_on_axis_1,
)
from fedplt.kernels.mlp import chained, has_hooks
from fedplt.kernels.norm import (
    RUNNING_STATISTICS,
    has_running_statistics,
    modules_with_running_statistics,
)
from fedplt.kernels.trained_rows import Rows, Slices, TrainedRows, axis_first

__all__ = [
    "FORWARDS",
    "FORWARDS_BY_NAME",
    "RUNNING_STATISTICS",
    "Caught",
    "Rows",
    "Slices",
    "TrainedRows",
    "add_at",
    "attention_forward",
    "axis_first",
    "bind_state",
    "buffer_positions",
    "call_model",
    "chained",
    "check_dtypes",
    "evaluation_mode",
    "forward_of",
    "full_name",
    "has_hooks",
    "has_running_statistics",
    "mode",
    "modules_with_running_statistics",
    "named_tensors",
    "outputs_on_axis_1",
    "parts_of",
    "put",
    "read_state",
    "take",
]
