"""The self-check of clients that hold sub-models.

A step of a sub-model is compared with a step of the whole model in which all other rows and columns
are zero: their units output zeros and get no gradient. This is exact if every unit is computed
independently. If units are mixed, as in a LayerNorm, there is no such reference: the sub-model is
then compared with itself, trained without a ``train_only`` block, and the report has a note.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn

from fedplt.client.local_training import scaled
from fedplt.client.self_check.reference_step import (
    Difference,
    LossOf,
    ReferenceStep,
    differences,
    partial_step,
    reference_step,
)
from fedplt.client.submodels import HeldModels, held_units
from fedplt.cutting import traced
from fedplt.kernels import bind_state, named_tensors, put, take
from fedplt.models import call_model
from fedplt.planning import LocalRecipe, SubmodelAssignment
from fedplt.torch_internals import DropoutBase

NO_REFERENCE = (
    "there is no exact reference for sub-models of this model, so each was compared only with "
    "itself, trained without a block: "
)
SAME = 1e-9


class SubmodelCheck:
    """Compares sub-models of one model."""

    def __init__(self, model: nn.Module, inputs: Any, loss: LossOf, recipe: LocalRecipe) -> None:
        self.model = copy.deepcopy(model)
        self.inputs, self.loss, self.recipe = inputs, loss, recipe
        for module in self.model.modules():
            if isinstance(module, DropoutBase):  # a smaller model draws other numbers
                module.p = 0.0

    def compare(self, assignment: SubmodelAssignment) -> tuple[list[Difference], str]:
        """The differences, and why the whole model cannot be the reference (empty if it can)."""
        reason = self._mixing(assignment)
        if not reason:
            found, reason = self._with_whole(assignment)
            if not reason:
                return found, ""
        reference = self._reference(self._small(assignment), assignment)
        return self._differences(reference, assignment), NO_REFERENCE + reason

    def _with_whole(self, assignment: SubmodelAssignment) -> tuple[list[Difference], str]:
        whole = copy.deepcopy(self.model)
        if assignment.spaces.pads:
            whole = _with_masked_pads(traced(whole), assignment)
        state = bind_state(whole, assignment.layers)
        held = take(state, assignment.received)
        put(state.zero_(), assignment.received, held)
        reference = self._reference(whole, assignment)
        if not all(bool(gradient.isfinite().all()) for gradient in reference.gradients.values()):
            return [], "zeros for what is not held give numbers that are not finite."
        found = self._differences(_held_part(reference, assignment), assignment)
        is_same = all(entry.error < SAME for entry in found)
        if not is_same and self._is_random():
            return [], "its forward pass is random, and a smaller model draws other numbers."
        return found, ""

    def _reference(self, model: nn.Module, assignment: SubmodelAssignment) -> ReferenceStep:
        with scaled(model, assignment, self.recipe):
            return reference_step(model, self.inputs, self.loss)

    def _differences(
        self, reference: ReferenceStep, assignment: SubmodelAssignment
    ) -> list[Difference]:
        small = self._small(assignment)
        with scaled(small, assignment, self.recipe):
            part = assignment.on_client
            after = partial_step(small, self.inputs, self.loss, part, reference.rate)
        return differences(reference, after, assignment)

    def _small(self, assignment: SubmodelAssignment) -> nn.Module:
        whole = copy.deepcopy(self.model)
        held = HeldModels(whole, bind_state(whole, assignment.layers))
        return held.smaller(assignment).module.train()

    def _mixing(self, assignment: SubmodelAssignment) -> str:
        """A note if a LayerNorm mixes held units with others; else empty."""
        pairs = zip(assignment.layers.tensors, assignment.on_client.layers.tensors, strict=True)
        cut = {whole.module for whole, held in pairs if held.num_rows < whole.num_rows}
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


def _held_part(reference: ReferenceStep, assignment: SubmodelAssignment) -> ReferenceStep:
    """The part of the whole model's step that the sub-model holds."""
    flat = take(torch.arange(assignment.layers.state_size), assignment.received)
    positions = named_tensors(assignment.on_client.layers, flat)
    offsets = {placed.tensor.name: placed.offset for placed in assignment.layers.placed}

    def held(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return tensors | {
            name: tensors[name].flatten()[place - offsets[name]]
            for name, place in positions.items()
            if name in tensors
        }

    return replace(
        reference,
        old=held(reference.old),
        new=held(reference.new),
        gradients=held(reference.gradients),
    )


class _HeldUnits(nn.Module):
    """Sets channels that are not held to zero."""

    def __init__(self, mask: Tensor) -> None:
        super().__init__()
        self.mask = mask

    def forward(self, x: Tensor) -> Tensor:
        return x * self.mask.to(x).view(1, -1, *[1] * (x.ndim - 2))


def _with_masked_pads(model: fx.GraphModule, assignment: SubmodelAssignment) -> fx.GraphModule:
    """Mask shortcuts that pad channels: they add units of one space to those of another."""
    graph, nodes = model.graph, {node.name: node for node in model.graph.nodes}
    for pad in assignment.spaces.pads:
        node, name = nodes[pad.name], f"{pad.name}_held"
        inputs = held_units(assignment, pad.inputs, pad.num_inputs)
        outputs = held_units(assignment, pad.outputs, pad.num_outputs)
        mask = torch.zeros(pad.num_outputs)
        mask[np.intersect1d(inputs, outputs)] = 1
        model.add_module(name, _HeldUnits(mask))
        with graph.inserting_after(node):
            new = graph.call_module(name, (node,))
        node.replace_all_uses_with(new, delete_user_cb=lambda user, new=new: user is not new)
    model.recompile()
    return model
