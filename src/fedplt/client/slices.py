"""The trained slices of a model: an optimizer's parameters, and a client's update."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from fedplt.client.refusals import (
    explained_errors,
    refuse_ended,
    refuse_lost_gradient,
    refuse_other_data,
    tensor_of,
)
from fedplt.client.update import ClientUpdate, Origin, change_since, update_norm
from fedplt.cutting import ChannelPaths
from fedplt.errors import CutError
from fedplt.kernels import (
    Pass,
    Slices,
    Statistics,
    TrainedRows,
    axis_first,
    has_running_statistics,
    keeps_statistics,
)
from fedplt.planning import Assignment, Rows, TensorSpec, dotted
from fedplt.torch_internals import (
    DisableTorchFunction,
    foreach_sub_,
    has_standard_operations,
    hidden_operations,
    num_function_modes,
    run_backward,
)


class TrainableSlices:
    """The trained slices of a model: parameters to optimize, and their update."""

    def __init__(self, model: nn.Module, assignment: Assignment, *, keep_old: bool = True) -> None:
        if not assignment.holds_whole_model:
            raise CutError(
                "this client trains a smaller model, not a slice of this one: build it with "
                "assignment.build(fedplt.HeldModels(model, fedplt.bind_state(model, plan.layers))) "
                "and train assignment.on_client in it."
            )
        self.model, self.assignment = model, assignment.on_client
        self.state, self.paths = Pass(), ChannelPaths(model, assignment.layers)
        self.state.is_unpermuted = self.paths.is_unpermuted
        self._views: list[tuple[Tensor, int, Rows, list[Tensor]]] = []
        """Every tensor with trained slices, its axis, rows and slices, in the update's order."""
        self._memory: dict[int, tuple[Tensor, Tensor]] = {}
        """By ``id``: tensors that got new memory for the block, and their old memory."""
        self.owners: dict[int, Slices] = {}  # by the leaf's identity
        self._parameters: dict[str, nn.Parameter] = {}
        self.slices: dict[int, Slices] = {}  # by the parameter's identity: it may be tied
        self._rows: dict[tuple[int, int], TrainedRows] = {}  # by the ids of weight and bias
        self._old_statistics: list[tuple[Statistics, Tensor, Tensor]] = []
        try:
            for tensor, rows in self.assignment.trained_rows:
                self._take(tensor, rows, tensor_of(model, tensor.name))
        except BaseException:
            self.release()
            raise
        self.has_hooks = False
        """Whether gradients of slices have hooks."""
        self.has_kernels = not num_function_modes()
        """Whether no other function mode is active: kernels would hide operations from it."""
        self.untrained = {n: p for n, p in model.named_parameters() if id(p) not in self.slices}
        self._untrained_ids = {id(p): p for p in self.untrained.values()}
        self._statistics = self._find_statistics()
        self._old_statistics = [
            (statistics, statistics.mean.clone(), statistics.var.clone())
            for module in self.model.modules()
            if keeps_statistics(module)
            for statistics in [self._statistics[id(module.running_mean)]]
        ]
        self._before = self._values() if keep_old else None
        self.untrained_before: dict[str, Tensor] | None = None
        """Set at the first write to parameters that is not an optimizer's."""

    def _take(self, tensor: TensorSpec, rows: Rows, parameter: Any) -> None:
        if parameter is None or tuple(parameter.shape) != tensor.shape:
            there = "missing" if parameter is None else f"of shape {tuple(parameter.shape)}"
            raise CutError(
                f"{tensor.name} is {there} in this model and of shape {tensor.shape} in the plan: "
                "the plan was made for another model."
            )
        if not (tensor.is_buffer or parameter.requires_grad):
            raise CutError(
                f"{tensor.name} is frozen (requires_grad is False), but the plan trains it. Cut "
                "and plan the model again, or set requires_grad back."
            )
        views: list[Tensor] = []
        self._views.append((parameter, tensor.axis, rows, views))
        if not axis_first(parameter.detach(), tensor.axis).is_contiguous():
            self._move(parameter)  # rows must be dense: fused optimizers ignore strides
        self._find_views(parameter)
        if not tensor.is_buffer:
            leaves = [nn.Parameter(view) for view in views]
            owner = Slices(tensor.name, parameter, tensor.axis, rows, views, leaves)
            self.slices[id(parameter)] = owner
            for leaf, (start, stop) in zip(leaves, rows, strict=True):
                self._parameters[f"{tensor.name}[{start}:{stop}]"] = leaf
                self.owners[id(leaf)] = owner

    def _find_views(self, tensor: Tensor) -> None:
        """Set the views of a tensor's slices; called again when its memory is replaced."""
        for other, axis, rows, views in self._views:
            if other is tensor:
                # detach() shares the version counter, .data does not.
                whole = axis_first(tensor.detach(), axis)
                is_whole = not whole.ndim or rows == ((0, len(whole)),)
                views[:] = [whole] if is_whole else [whole[start:stop] for start, stop in rows]
        if owner := self.slices_of(tensor):
            for leaf, view in zip(owner.leaves, owner.views, strict=True):
                leaf.data = view
        for (weight, bias), found in self._rows.items():
            if weight == id(tensor):
                found.tensors["weight"] = found.slices[0].whole
            if bias == id(tensor):
                found.tensors["bias"] = tensor.detach()

    def _move(self, tensor: Tensor) -> None:
        """Give a tensor new memory until the block ends, with its sliced axis first."""
        axis = next((axis for other, axis, _, _ in self._views if other is tensor), 0)
        self._memory.setdefault(id(tensor), (tensor, tensor.data))
        whole = axis_first(tensor.detach(), axis).clone(memory_format=torch.contiguous_format)
        tensor.data = whole.movedim(0, axis) if axis else whole

    def set_data(self, tensor: Tensor, value: Tensor) -> None:
        """``tensor.data = value`` for a slice, or a tensor of the model.

        Slices are rows of one tensor, so values are copied. They are copied to new memory: as in
        torch, other tensors in the old memory keep their values, which loops restore later.
        """
        refuse_other_data(self._name_of, tensor, value)
        if value.data_ptr() == tensor.data_ptr() and value.stride() == tensor.stride():
            return
        owner = self.owners.get(id(tensor))
        parameter = owner.parameter if owner else tensor
        self._move(parameter)
        self._find_views(parameter)
        tensor.data.copy_(value.detach())

    def has_rows_of(self, tensor: Tensor) -> bool:
        return any(other is tensor for other, *_ in self._views)

    def _name_of(self, tensor: Tensor) -> str:
        own = [*self._parameters.items(), *nn.Module.named_parameters(self.model)]
        return next((name for name, p in own if p is tensor), "a buffer")

    def _find_statistics(self) -> dict[int, Statistics]:
        """Running statistics of the normalization layers, by the ``id`` of the running mean."""
        trained = {t.module: rows for t, rows in self.assignment.trained_rows if t.is_buffer}
        for tensor in self.assignment.layers.tensors:
            if tensor.is_buffer and tensor.name in self.assignment.local:
                # They are not aggregated, so this client needs its own for all channels.
                trained[tensor.module] = ((0, tensor.num_rows),)
        result = {}
        for name, module in self.model.named_modules():
            if has_running_statistics(module):
                mean: Any = module.running_mean
                result[id(mean)] = Statistics(mean, module.running_var, trained.get(name, ()))
        return result

    def release(self) -> None:
        """Move all parameters back to their old memory; called at the end of the block."""
        self.state.has_ended = True
        self.paths.outputs.clear()
        self._restore_statistics()
        for tensor, memory in self._memory.values():
            memory.copy_(tensor.data)
            tensor.data = memory
            self._find_views(tensor)
        self._memory.clear()

    def _restore_statistics(self) -> None:
        """Restore untrained channels: a layer in another thread, without the mode, changes them."""
        with torch.no_grad():
            for statistics, *old in self._old_statistics:
                for now, before in zip((statistics.mean, statistics.var), old, strict=True):
                    for start, stop in statistics.rows:
                        before[start:stop] = now[start:stop]
                    now.copy_(before)
        self._old_statistics = []

    # Called by kernels.

    def rows_of(self, weight: Any, bias: Any, axis: int = 0) -> TrainedRows | None:
        """The trained rows of a weight with its bias, for a kernel with outputs on ``axis``.

        None if the weight is not planned with this axis, or the bias is not a parameter.
        """
        found = self._rows.get((id(weight), id(bias)))
        if found is not None:
            return found if found.is_usable(axis) else None
        slices = self.slices_of(weight) or self._no_rows(weight, axis)
        if slices is None or slices.axis != axis:
            return None
        if not (self.has_kernels and has_standard_operations(weight)):
            return None
        parts = {"weight": slices}
        tensors = {"weight": slices.whole}
        if bias is not None:
            own = self.slices_of(bias)
            if own is not None and own.rows == slices.rows:
                parts["bias"] = own
            elif not self.is_untrained(bias) or not has_standard_operations(bias):
                return None
            tensors["bias"] = bias.detach()
        found = TrainedRows(
            slices.rows,
            tensors,
            {key: part.views for key, part in parts.items()},
            {key: part.leaves for key, part in parts.items()},
            tuple(parts.values()),
            self.state,
        )
        self._rows[id(weight), id(bias)] = found
        self._connect(found, weight)
        return found if found.is_usable(axis) else None

    def _no_rows(self, weight: Any, axis: int) -> Slices | None:
        """Slices without rows, for a frozen weight whose kernel can skip input gradient columns."""
        found = self.paths.path_to(weight)
        if found is None or not self.is_untrained(weight):
            return None
        name, (feeder, _, _) = found
        below = self.slices_of(self.paths.modules[feeder].weight)
        if below is None or below.rows == ((0, len(below.whole)),):
            return None
        return Slices(dotted(name, "weight"), weight, axis, (), [], [])

    def _connect(self, trained: TrainedRows, weight: Tensor) -> None:
        """Set a layer's feeder, if all layers between them train the same channels."""
        found = self.paths.path_to(weight)
        if found is None:
            return
        _, (name, columns, norms) = found
        feeder = self.paths.modules[name]
        below = self.rows_of(feeder.weight, feeder.bias)
        if below and below.rows and all(self._is_alike(name, below.rows) for name in norms):
            trained.feeder, trained.columns_per_channel = below, columns

    def _is_alike(self, name: str, rows: Rows) -> bool:
        norm: Any = self.paths.modules[name]
        statistics = self._statistics.get(id(getattr(norm, "running_mean", None)))
        if statistics is not None and statistics.rows != rows:
            return False
        own = [self.slices.get(id(p)) for p in norm.parameters(recurse=False)]
        return all(slices is not None and slices.rows == rows for slices in own)

    def slices_of(self, parameter: Any) -> Slices | None:
        """The slices of a parameter; None if it is not planned."""
        found = self.slices.get(id(parameter))
        return found if found is not None and found.parameter is parameter else None

    def note_hook(self, leaf: Any) -> None:
        """Note a hook on the gradient of a slice, or a changed ``requires_grad`` of it."""
        owner = self.owners.get(id(leaf))
        if owner is not None:
            owner.has_hooked_leaves = self.has_hooks = True

    def carrier_of(self, tensor: Any) -> Any:
        slices = self.slices_of(tensor)
        return tensor if slices is None else slices.carrier()

    def is_untrained(self, parameter: Any) -> bool:
        """Whether it is a parameter of the model without trained rows."""
        return self._untrained_ids.get(id(parameter)) is parameter

    def statistics_of(self, mean: Any, var: Any) -> Statistics | None:
        found = self._statistics.get(id(mean))
        return found if found is not None and found.mean is mean and found.var is var else None

    def trains_some_of(self, module: nn.Module) -> bool:
        """Whether a normalization layer's statistics may change, or any of its parameters."""
        statistics = self._statistics.get(id(getattr(module, "running_mean", None)))
        own = module.parameters(recurse=False)
        return bool(statistics and statistics.rows) or any(id(p) in self.slices for p in own)

    def note_write(self) -> None:
        """Call before the model or the loop writes to a parameter (``.data``, ``clamp_``, EMA)."""
        if self.untrained_before is None:
            self.untrained_before = {n: p.detach().clone() for n, p in self.untrained.items()}

    # Called by a training loop.

    def fuse_sgd(self, learning_rate: float) -> None:
        """Let :meth:`backward` do plain SGD at once: no gradient buffers, no optimizer pass.

        Every step is then a forward pass, ``part.backward(loss)`` and ``part.step()``. Weights that
        are used more than once, or in operations without a kernel, are updated in :meth:`step`.
        """
        self.state.rate = learning_rate

    def backward(self, loss: Tensor) -> None:
        """The backward pass of a step; only here may SGD be fused."""
        if self.state.has_ended:
            refuse_ended(self.parameters(), "this object has")
        self.state.is_step, self.state.depth = True, 1
        try:
            # As loss.backward(), without its overhead, which matters for short steps.
            with DisableTorchFunction():
                if not loss.requires_grad:  # this client trains nothing that this batch uses
                    refuse_lost_gradient(self.slices.values())
                    return
                if loss.numel() != 1:
                    raise RuntimeError(f"a loss is one number; this has shape {tuple(loss.shape)}.")
                one = torch.ones_like(loss)  # a backward may change it in place
            with explained_errors():
                run_backward(
                    (loss,), (one,), False, False, (), allow_unreachable=True, accumulate_grad=True
                )
        finally:
            self.state.is_step, self.state.depth = False, 0
            self.forget_uses()

    def forget_uses(self) -> None:
        """Call after a backward pass."""
        for slices in self.slices.values():
            slices.uses, slices.is_recorded = 0, False

    @hidden_operations
    def step(self) -> None:
        """The part of a fused step that the backward pass could not do."""
        if self.state.has_ended:
            refuse_ended(self.parameters(), "this object has")
        rate = self.state.rate or 0.0
        with torch.no_grad():
            moved: list[Tensor] = []
            gradients: list[Tensor] = []
            for leaf in self._parameters.values():
                if leaf.grad is not None:
                    moved.append(leaf)
                    gradients.append(leaf.grad)
                    leaf.grad = None
            if moved:
                foreach_sub_(moved, gradients, alpha=rate)

    def parameters(self) -> Iterator[nn.Parameter]:
        """The trained slices, for any optimizer that treats every coordinate alone."""
        return iter(self._parameters.values())

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """The trained slices with names such as ``fc1.weight[3:7]``."""
        return iter(self._parameters.items())

    @property
    def num_trained(self) -> int:
        return self.assignment.num_trained

    # After training.

    def update(self, num_examples: int = 1, origin: Origin | None = None) -> ClientUpdate:
        """The change of the trained slices, in the plan's order; ``origin`` names the client."""
        change = change_since(self._old_values().clone(), self._slices())
        if self.assignment.local:
            parts, local = self.assignment.trained_parts, self.assignment.local
            change = torch.cat(
                [change[p.start : p.stop] for p in parts if p.tensor.name not in local]
            )
        norm = update_norm(change, self.assignment)
        values = change.float().numpy(force=True)
        return ClientUpdate(values, num_examples, norm, origin=origin)

    def restore(self) -> None:
        """Reset the slices to their values at the start of the block."""
        old, start = self._old_values(), 0
        with torch.no_grad():
            for view in self._slices():
                view.copy_(old[start : start + view.numel()].view_as(view))
                start += view.numel()

    def _old_values(self) -> Tensor:
        if self._before is None:
            raise CutError(
                "update() and restore() need the old values: enter train_only without "
                "keep_old=False."
            )
        return self._before

    def _values(self) -> Tensor:
        """All trained slices as one flat copy."""
        values = [view.detach().reshape(-1) for view in self._slices()]
        return torch.cat(values) if values else torch.empty(0)

    def _slices(self) -> Iterator[Tensor]:
        return (view for *_, views in self._views for view in views)
