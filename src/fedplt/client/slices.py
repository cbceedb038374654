"""The trained slices of a model: the optimizer's parameters, and the source of the update."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from fedplt.client.update import ClientUpdate, change_since, update_norm
from fedplt.errors import CutError
from fedplt.kernels import (
    Caught,
    Rows,
    Slices,
    TrainedRows,
    axis_first,
    forward_of,
    has_hooks,
    has_running_statistics,
)
from fedplt.planning import Assignment, TensorSpec, split_name


class TrainableSlices:
    """The trained slices of a model: parameters for an optimizer, and their update."""

    def __init__(self, model: nn.Module, assignment: Assignment, *, keep_old: bool = True) -> None:
        if assignment.on_client is not assignment:
            raise CutError(
                "this client trains a smaller model, not a slice of this one: build it with "
                "assignment.build(fedplt.HeldModels(model, fedplt.bind_state(model, plan.layers))) "
                "and train assignment.on_client in it."
            )
        self.assignment = assignment.on_client
        self._views: list[tuple[Tensor, int, list[Tensor]]] = []
        """Each tensor with trained slices, its axis and the slices, in the update's order."""
        self._parameters: dict[str, nn.Parameter] = {}
        self.slices: dict[int, Slices] = {}  # keyed by id(parameter): it may be tied
        self.modules: dict[str, TrainedRows] = {}
        self._rate = 0.0
        statistics: dict[str, Rows] = {}
        for tensor, rows in self.assignment.trained_rows:
            self._take(model, tensor, rows)
            if tensor.is_buffer:
                statistics[tensor.module] = rows
        kept = {  # statistics that stay on the client: it updates all of their rows
            tensor.module: ((0, tensor.num_rows),)
            for tensor in assignment.layers.tensors
            if tensor.is_buffer and tensor.name in assignment.local
        }
        owners = Counter(id(p) for module in model.modules() for p in _own(module).values())
        for name, module in model.named_modules():
            rows = statistics.get(name, ())
            trained = self._trained_rows(module, rows, kept.get(name, rows))
            if trained is not None:
                trained.is_fusable = all(owners[id(p)] == 1 for p in _own(module).values())
                self.modules[name] = trained
        self._connect(model)
        self._before = self._values() if keep_old else None

    def _take(self, model: nn.Module, tensor: TensorSpec, rows: Rows) -> None:
        parameter = _tensor_of(model, tensor.name)
        if parameter is None or tuple(parameter.shape) != tensor.shape:
            there = "missing" if parameter is None else f"of shape {tuple(parameter.shape)}"
            raise CutError(
                f"{tensor.name} is {there} in this model and of shape {tensor.shape} in the plan: "
                "the plan was made for another model."
            )
        whole = axis_first(parameter.detach(), tensor.axis)
        # Rows must be dense: fused optimizers ignore strides.
        is_moved = bool(tensor.axis) and not whole.is_contiguous()
        if is_moved:
            whole = whole.contiguous()
            parameter.data = whole.movedim(0, tensor.axis)
        all_rows = rows == ((0, tensor.num_rows),)
        views = [whole] if all_rows else [whole[start:stop] for start, stop in rows]
        self._views.append((parameter, tensor.axis, views))
        if not tensor.is_buffer:
            leaves = [nn.Parameter(view) for view in views]
            slices = Slices(parameter, tensor.axis, rows, views, leaves, is_moved)
            self.slices[id(parameter)] = slices
            for leaf, (start, stop) in zip(leaves, rows, strict=True):
                self._parameters[f"{tensor.name}[{start}:{stop}]"] = leaf

    def release(self) -> None:
        """Restore the memory layout of all parameters; called at the end of the block."""
        for place, (parameter, axis, views) in enumerate(self._views):
            slices = self.slices.get(id(parameter))
            if slices is not None and slices.is_moved:
                parameter.data = parameter.data.contiguous()
                whole = axis_first(parameter.detach(), axis)
                new = [whole[start:stop] for start, stop in slices.rows]
                self._views[place] = (parameter, axis, new)
                assert len(new) == len(views)

    def _trained_rows(self, module: nn.Module, rows: Rows, statistics: Rows) -> TrainedRows | None:
        """The input of this module's forward in :mod:`fedplt.kernels`; None if it has none."""
        if forward_of(module) is None:
            return None
        if has_running_statistics(module):
            return TrainedRows(rows, statistics=statistics)
        own = _own(module)
        found = {key: self.slices[id(p)] for key, p in own.items() if id(p) in self.slices}
        if "weight" not in found or len({slices.rows for slices in found.values()}) > 1:
            return None
        return TrainedRows(
            found["weight"].rows,
            tensors={
                key: found[key].whole if key in found else p.detach() for key, p in own.items()
            },
            views={key: slices.views for key, slices in found.items()},
            leaves={key: slices.leaves for key, slices in found.items()},
        )

    def caught(self, module: nn.MultiheadAttention) -> Caught:
        """The weights of an attention module whose matrix products are intercepted."""
        result: Caught = {}
        pairs = (
            (module.in_proj_weight, module.in_proj_bias),
            (module.out_proj.weight, module.out_proj.bias),
        )
        for weight, bias in pairs:
            slices = self.slices.get(id(weight))
            if slices is None or weight is None:
                continue
            trained = TrainedRows(slices.rows, {"weight": slices.whole}, is_fusable=False)
            trained.leaves["weight"] = slices.leaves
            if bias is not None:
                trained.tensors["bias"] = bias.detach()
                if id(bias) in self.slices:
                    trained.leaves["bias"] = self.slices[id(bias)].leaves
            result[id(weight)] = (weight, trained)
        return result

    def _connect(self, model: nn.Module) -> None:
        """Link each module to the one that feeds it: its input gradient may need few columns."""
        hooked = any(has_hooks(module) for module in model.modules())
        for flow in self.assignment.layers.flow:
            consumer, feeder = self.modules.get(flow.name), self.modules.get(flow.feeder or "")
            if consumer is not None and flow.used_elsewhere:
                consumer.is_fusable = False
            if consumer is None or feeder is None or flow.feeder is None or hooked:
                continue  # a hook may change what flows between them
            norms = [self.modules.get(name) for name in flow.norms]
            if all(norm is not None and norm.rows == feeder.rows for norm in norms):
                consumer.feeder, consumer.columns_per_channel = feeder, flow.columns

    def fuse_sgd(self, learning_rate: float) -> None:
        """Apply plain SGD during the backward pass: no gradient buffers, no optimizer pass.

        A training step is then one forward pass, one backward pass and :meth:`step`, which updates
        what the backward pass cannot: modules called more than once per forward pass, tied
        weights, and module kinds without a forward in :mod:`fedplt.kernels`.
        """
        self._rate = learning_rate
        for trained in self.modules.values():
            trained.rate = learning_rate if trained.is_fusable else None

    def begin_forward(self) -> None:
        for trained in self.modules.values():
            trained.calls = 0

    def step(self) -> None:
        """Update the parameters that the fused backward pass could not update."""
        with torch.no_grad():
            for leaf in self._parameters.values():
                if leaf.grad is not None:
                    leaf.sub_(leaf.grad, alpha=self._rate)
                    leaf.grad = None

    def parameters(self) -> Iterator[nn.Parameter]:
        """The trained slices, for any optimizer that treats each coordinate independently."""
        return iter(self._parameters.values())

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """The trained slices with names such as ``fc1.weight[3:7]``."""
        return iter(self._parameters.items())

    @property
    def num_trained(self) -> int:
        return self.assignment.num_trained

    def update(self, num_examples: int = 1) -> ClientUpdate:
        """The change of the trained slices since the block was entered, in the plan's order."""
        assert self._before is not None
        change = change_since(self._before.clone(), self._slices())
        if self.assignment.local:
            change = torch.cat([change[start:stop] for start, stop in self._shared_segments()])
        norm = update_norm(change, self.assignment)
        return ClientUpdate(change.float().numpy(force=True), num_examples, norm)

    def _shared_segments(self) -> list[tuple[int, int]]:
        """Segments of the update that are sent: those that do not stay on the client."""
        segments, start = [], 0
        for tensor, rows in self.assignment.trained_rows:
            stop = start + sum(end - begin for begin, end in rows) * tensor.row_size
            if tensor.name not in self.assignment.local:
                segments.append((start, stop))
            start = stop
        return segments

    def restore(self) -> None:
        """Set the slices back to the values they had when the block was entered."""
        assert self._before is not None
        start = 0
        with torch.no_grad():
            for view in self._slices():
                view.copy_(self._before[start : start + view.numel()].view_as(view))
                start += view.numel()

    def _values(self) -> Tensor:
        """All trained slices as one flat copy."""
        if not self._views:
            return torch.empty(0)
        with torch.no_grad():
            return torch.cat([view.reshape(-1) for view in self._slices()])

    def _slices(self) -> Iterator[Tensor]:
        return (view for _, _, views in self._views for view in views)


def _tensor_of(model: nn.Module, name: str) -> Any:
    owner, key = split_name(name)
    try:
        return getattr(model.get_submodule(owner), key)
    except AttributeError:
        return None


def _own(module: nn.Module) -> dict[str, nn.Parameter]:
    return dict(module.named_parameters(recurse=False))
