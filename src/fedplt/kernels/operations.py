"""Operations that are computed by kernels, where they are called with a planned parameter itself.

Everything else that a model does with a parameter (a changed copy of it, another axis, another
operation) is torch's own, and autograd's whole gradient of it is scattered to the slices.
To add a kernel: a function in a file of its own, and an entry in ``OPERATIONS``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from fedplt.kernels.attention import catching
from fedplt.kernels.convolution import sliced_convolution, sliced_transposed_convolution
from fedplt.kernels.embedding import sliced_embedding
from fedplt.kernels.linear import sliced_linear
from fedplt.kernels.norm import sliced_batch_norm, sliced_instance_norm
from fedplt.kernels.plain import is_plain
from fedplt.kernels.trained_rows import Statistics, TrainedRows


class Planned(Protocol):
    """Knows the planned parameters and statistics of a model."""

    def rows_of(self, weight: Any, bias: Any, axis: int = 0) -> TrainedRows | None:
        """Of a weight whose outputs are on this axis; None where there is nothing to gain."""

    def statistics_of(self, mean: Any, var: Any) -> Statistics | None: ...


Operation = Callable[..., Any]
"""Called with what is planned and the operation's own arguments; may give NotImplemented."""


def _linear(planned: Planned, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    trained = planned.rows_of(weight, bias) if is_plain(input) and input.ndim else None
    return NotImplemented if trained is None else sliced_linear(input, trained)


def _addmm(planned: Planned, input: Tensor, mat1: Tensor, mat2: Tensor, **options: Any) -> Any:
    """``bias + x @ weight``, as Conv1D of the transformers package does it."""
    if options or not is_plain(mat1) or input.ndim != 1:
        return NotImplemented
    trained = planned.rows_of(mat2, input, 1)
    return NotImplemented if trained is None else sliced_linear(mat1, trained)


def _convolution(
    planned: Planned,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    trained = planned.rows_of(weight, bias) if is_plain(input) else None
    if trained is None or not _whole_groups(trained, groups):
        return NotImplemented
    return sliced_convolution(input, trained, stride, padding, dilation, groups)


def _whole_groups(trained: TrainedRows, groups: int) -> bool:
    each = len(trained.tensors["weight"]) // groups
    return groups == 1 or all(start % each == stop % each == 0 for start, stop in trained.rows)


def _transposed_convolution(
    planned: Planned,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Any:
    trained = planned.rows_of(weight, bias, 1) if groups == 1 and is_plain(input) else None
    if trained is None:
        return NotImplemented
    return sliced_transposed_convolution(input, trained, stride, padding, output_padding, dilation)


def _embedding(
    planned: Planned,
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:
    standard = max_norm is None and not scale_grad_by_freq and not sparse and is_plain(input)
    trained = planned.rows_of(weight, None) if standard else None
    return NotImplemented if trained is None else sliced_embedding(input, trained, padding_idx)


def _batch_norm(
    planned: Planned,
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    statistics = planned.statistics_of(running_mean, running_var)
    if statistics is None:
        return NotImplemented
    return sliced_batch_norm(input, statistics, weight, bias, training, momentum, eps)


def _instance_norm(
    planned: Planned,
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    statistics = planned.statistics_of(running_mean, running_var)
    if statistics is None:
        return NotImplemented
    return sliced_instance_norm(input, statistics, weight, bias, use_input_stats, momentum, eps)


def _attention(planned: Planned, *args: Any, **kwargs: Any) -> Any:
    """Its projections are products inside of one function of torch."""
    names = ("in_proj_weight", "in_proj_bias", "out_proj_weight", "out_proj_bias")
    places = (5, 6, 11, 12)
    given = [
        kwargs.get(name, args[place] if place < len(args) else None)
        for name, place in zip(names, places, strict=True)
    ]
    caught: dict[int, tuple[Any, TrainedRows]] = {}
    for weight, bias in (given[:2], given[2:]):
        trained = planned.rows_of(weight, bias)
        if trained is not None:
            caught[id(weight)] = (weight, trained)
            for slices in trained.slices:
                slices.uses += 1  # torch may use the weight in another way, too: never fused
    if not caught:
        return NotImplemented
    with catching(caught):
        return F.multi_head_attention_forward(*args, **kwargs)


OPERATIONS: dict[Callable[..., Any], Operation] = {
    F.linear: _linear,
    torch.addmm: _addmm,
    F.conv1d: _convolution,
    F.conv2d: _convolution,
    F.conv3d: _convolution,
    F.conv_transpose1d: _transposed_convolution,
    F.conv_transpose2d: _transposed_convolution,
    F.conv_transpose3d: _transposed_convolution,
    F.embedding: _embedding,
    F.batch_norm: _batch_norm,
    F.instance_norm: _instance_norm,
    F.multi_head_attention_forward: _attention,
}
