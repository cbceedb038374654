"""The self-check of clients that hold sub-models.

A step of a sub-model is compared with one of the whole model in which every row and column that is
not held is zero: such units output zeros, and get no gradient. That is exact where every unit is
computed alone. Where units are mixed, as in a LayerNorm, there is no such reference; the sub-model
is then compared with itself, trained without a block, and the report has a note.
"""

from __future__ import annotations

import copy
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, fx, nn

from fedplt.client.local_training import scaled
from fedplt.client.self_check.reference_step import (
    Difference,
    LossOf,
    ReferenceStep,
    differences,
    named_tensors,
    partial_step,
    reference_step,
)
from fedplt.client.submodels import HeldModels
from fedplt.cutting import traced
from fedplt.kernels import bind_state
from fedplt.models import call_model
from fedplt.planning import Layers, LocalRecipe, SubmodelAssignment
from fedplt.torch_internals import DropoutBase

NO_REFERENCE = (
    "there is no exact reference for sub-models of this model, so each was compared only with "
    "itself, trained without a block: "
)
SAME = 1e-9


class SubmodelCheck:
    """Compares sub-models of one model."""

    def __init__(
        self, model: nn.Module, layers: Layers, inputs: Any, loss: LossOf, recipe: LocalRecipe
    ) -> None:
        whole = copy.deepcopy(model)
        for module in whole.modules():
            if isinstance(module, DropoutBase):  # a smaller model draws other numbers
                module.p = 0.0
        self.model, self.layers, self.inputs, self.loss = whole, layers, inputs, loss
        self.recipe = recipe
        resident = copy.deepcopy(whole)
        self._held = HeldModels(resident, bind_state(resident, layers))

    def compare(self, assignment: SubmodelAssignment) -> tuple[list[Difference], str]:
        """The differences, and why the whole model is no reference (empty: it is one)."""
        reason = self._mixing(assignment)
        if not reason:
            found, reason = self._with_whole(assignment)
            if not reason:
                return found, ""
        return self._with_itself(assignment), NO_REFERENCE + reason

    def _with_whole(self, assignment: SubmodelAssignment) -> tuple[list[Difference], str]:
        whole = copy.deepcopy(self._graph if assignment.spaces.pads else self.model)
        _zero(whole, assignment)
        if isinstance(whole, fx.GraphModule):
            _mask_pads(whole, assignment)
        around = partial(self._scaled, assignment)
        reference = reference_step(whole, self.inputs, self.loss, around)
        if not all(bool(gradient.isfinite().all()) for gradient in reference.gradients.values()):
            return [], "zeros for what is not held give numbers that are not finite."
        found = self._compare(_held_part(reference, assignment), assignment)
        is_same = all(entry.error < SAME for entry in found)
        if not is_same and self._is_random():
            return [], "its forward pass is random, and a smaller model draws other numbers."
        return found, ""

    @cached_property
    def _graph(self) -> fx.GraphModule:
        return traced(self.model)

    def _with_itself(self, assignment: SubmodelAssignment) -> list[Difference]:
        small = copy.deepcopy(self._held.smaller(assignment).module).train()
        around = partial(self._scaled, assignment)
        return self._compare(reference_step(small, self.inputs, self.loss, around), assignment)

    def _compare(
        self, reference: ReferenceStep, assignment: SubmodelAssignment
    ) -> list[Difference]:
        small, around = self._held.smaller(assignment).module, partial(self._scaled, assignment)
        after = partial_step(
            small.train(), self.inputs, self.loss, assignment.on_client, reference.rate, around
        )
        return differences(reference, after, assignment)

    def _scaled(
        self, assignment: SubmodelAssignment, module: nn.Module
    ) -> AbstractContextManager[None]:
        return scaled(module, assignment, self.recipe)

    def _mixing(self, assignment: SubmodelAssignment) -> str:
        """The LayerNorm over units of which some are not held, in words; else empty."""
        cut = {
            tensor.module
            for tensor in self.layers.tensors
            if _is_cut(assignment, assignment.spaces.by_tensor[tensor.name].rows)
        }
        for name, module in self.model.named_modules():
            if isinstance(module, nn.LayerNorm) and name in cut:
                return f"{name} (LayerNorm) mixes units that a client holds with others."
        return ""

    def _is_random(self) -> bool:
        results = []
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            for seed in (0, 1):
                torch.manual_seed(seed)
                results.append(self.loss(call_model(copy.deepcopy(self.model), self.inputs)))
        return not torch.equal(*results)


def _is_cut(assignment: SubmodelAssignment, space: int | None) -> bool:
    return space is not None and len(assignment.held[space]) < assignment.spaces.widths[space]


def _zero(model: nn.Module, assignment: SubmodelAssignment) -> None:
    """Set all rows and columns to zero that the client does not hold."""
    tensors = named_tensors(model)
    for tensor in assignment.layers.tensors:
        values, rows, columns = _by_units(tensors[tensor.name], tensor.name, assignment)
        for axis, held in ((0, rows), (1, columns)):
            missing = torch.ones(values.shape[axis], dtype=torch.bool, device=values.device)
            missing[held] = False
            values[(slice(None),) * axis + (missing,)] = 0


def _held_part(reference: ReferenceStep, assignment: SubmodelAssignment) -> ReferenceStep:
    """The part of the whole model's step that the sub-model holds."""
    shapes = {tensor.name: tensor.shape for tensor in assignment.on_client.layers.tensors}

    def held(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        result = dict(tensors)
        for name in shapes.keys() & tensors.keys():
            values, rows, columns = _by_units(tensors[name], name, assignment)
            result[name] = values[rows][:, columns].reshape(shapes[name])
        return result

    return replace(
        reference,
        old=held(reference.old),
        new=held(reference.new),
        gradients=held(reference.gradients),
    )


def _by_units(
    tensor: Tensor, name: str, assignment: SubmodelAssignment
) -> tuple[Tensor, Tensor, Tensor]:
    """A view (rows, units of columns, values of a unit), and the held rows and units."""
    units, widths = assignment.spaces.by_tensor[name], assignment.spaces.widths
    rows = torch.arange(len(tensor))
    if units.rows is not None:
        rows = torch.from_numpy(assignment.held[units.rows])
    columns, width = torch.arange(1), 1
    if units.columns is not None:
        columns = torch.from_numpy(assignment.held[units.columns])
        width = widths[units.columns]
    return tensor.view(len(tensor), width, -1), rows, columns


class _HeldUnits(nn.Module):
    """Sets channels to zero that are not held."""

    def __init__(self, mask: Tensor) -> None:
        super().__init__()
        self.mask = mask

    def forward(self, x: Tensor) -> Tensor:
        return x * self.mask.to(x).view(1, -1, *[1] * (x.ndim - 2))


def _mask_pads(model: fx.GraphModule, assignment: SubmodelAssignment) -> None:
    """Mask shortcuts that pad channels: they add units of one space to those of another."""
    graph, nodes = model.graph, {node.name: node for node in model.graph.nodes}
    for pad in assignment.spaces.pads:
        node = nodes[pad.name]
        before, after = f"{pad.name}_inputs", f"{pad.name}_outputs"
        model.add_module(before, _HeldUnits(_mask(assignment, pad.inputs, pad.num_inputs)))
        model.add_module(after, _HeldUnits(_mask(assignment, pad.outputs, pad.num_outputs)))
        with graph.inserting_before(node):
            node.replace_input_with(node.args[0], graph.call_module(before, (node.args[0],)))
        with graph.inserting_after(node):
            new = graph.call_module(after, (node,))
        node.replace_all_uses_with(new, delete_user_cb=lambda user, new=new: user is not new)
    model.recompile()


def _mask(assignment: SubmodelAssignment, space: int | None, width: int) -> Tensor:
    mask = torch.ones(width)
    if space is not None:
        mask = torch.zeros(width)
        mask[torch.from_numpy(assignment.held[space])] = 1
    return mask
