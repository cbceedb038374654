# mypy: implicit-reexport
"""The flat state of a torch module, and kernels that compute gradients of the trained rows only."""

from __future__ import annotations

from fedplt.kernels.block_forward import (
    BlockForward,
    has_own_forward,
    is_original,
    is_shadowed,
    original,
)
from fedplt.kernels.chain import Chained
from fedplt.kernels.convolution import keep_layout
from fedplt.kernels.dispatch import KERNEL_OF, has_kernel, is_transposed_linear, outputs_on_axis_1
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
from fedplt.kernels.frozen_activations import (
    is_frozen,
    mark_frozen,
    marked_functions,
    require_gradient,
)
from fedplt.kernels.matrix_products import GENERATION
from fedplt.kernels.norm import (
    RUNNING_STATISTICS,
    has_running_statistics,
    keeps_statistics,
    modules_with_running_statistics,
)
from fedplt.kernels.trained_rows import Pass, Slices, Statistics, TrainedRows, axis_first
