# mypy: implicit-reexport
"""The flat state of a torch module, and forward passes that save in the backward pass."""

from __future__ import annotations

from fedplt.kernels.block_forward import BlockForward, has_own_forward, is_shadowed, original
from fedplt.kernels.flat_state import (
    add_at,
    bind_state,
    buffer_positions,
    check_dtypes,
    named_tensors,
    parts_of,
    put,
    read_state,
    take,
)
from fedplt.kernels.mlp import Chained, has_hooks
from fedplt.kernels.model_calls import call_model, copy_model, evaluation_mode, mode
from fedplt.kernels.norm import (
    RUNNING_STATISTICS,
    has_running_statistics,
    keeps_statistics,
    modules_with_running_statistics,
)
from fedplt.kernels.operations import (
    OPERATIONS,
    has_kernel,
    is_transposed_linear,
    outputs_on_axis_1,
)
from fedplt.kernels.plain import (
    eagerly,
    follow,
    followed_functions,
    has_standard_operations,
    is_followed,
    num_function_modes,
    require_followed,
    unwatched,
)
from fedplt.kernels.trained_rows import (
    Pass,
    Slices,
    Statistics,
    TrainedRows,
    axis_first,
)
