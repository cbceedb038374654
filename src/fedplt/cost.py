"""What training costs: exact FLOPs of what really runs, the paper's model, bytes as really sent.

Exact FLOPs count multiplications and additions of matrix products and convolutions, as torch's own
counter does. A backward pass has two halves: gradients of the weights, which shrink with the
ratio, and gradients of the inputs, which flow through every layer above the lowest trained one
(just above it, only for the columns that feed its trained rows).

The paper's model charges ``(alpha + beta * ratio)`` per parameter and example: its whole backward
pass scales with the ratio (``docs/errata.md``, 2). The two are never printed as one another.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from fedplt.errors import CutError
from fedplt.layers import Layers, ModuleFlow, Ranges, TensorSpec, dotted
from fedplt.plan import Assignment

FORWARD_FLOPS_PER_PARAMETER = 2
"""The paper's alpha, per example."""
BACKWARD_FLOPS_PER_PARAMETER = 4
"""The paper's beta, per example."""
BYTES_PER_NUMBER = 4


@dataclass(frozen=True)
class Flops:
    """FLOPs per example."""

    forward: int
    input_gradients: int
    weight_gradients: int

    @property
    def total(self) -> int:
        return self.forward + self.input_gradients + self.weight_gradients


def exact_flops(assignment: Assignment) -> Flops:
    """FLOPs that training this assignment takes per example."""
    by_module = module_flops(assignment).values()
    return Flops(
        sum(flops.forward for flops in by_module),
        sum(flops.input_gradients for flops in by_module),
        sum(flops.weight_gradients for flops in by_module),
    )


def module_flops(assignment: Assignment) -> dict[str, Flops]:
    """The same for each module with a weight matrix, by name."""
    assignment = assignment.dense  # a sub-model's products are as small as it is
    layers = assignment.layers
    if not layers.flow:
        raise CutError("costs need the flow of data: cut the model with an example input.")
    weights = {tensor.name: (index, tensor) for _, index, tensor in layers.placed}
    trained = {
        module.name: assignment.slices[weights[_own(module, weights)][0]]
        for module in layers.flow
        if _own(module, weights) in weights
    }
    needs = _need_input_gradients(layers, trained)
    result = {}
    for module in layers.flow:
        entry = weights.get(dotted(module.name, "weight"))
        if entry is None or len(entry[1].shape) < 2:
            continue  # norms: no matrix product
        index, weight = entry
        whole = 2 * module.positions * weight.num_elements
        rows = sum(len(part) for part in assignment.slices[index]) / layers[index].num_sublayers
        gradient_rows = 1.0 if module.whole_gradient and rows else rows
        columns = _needed_columns(module, layers, trained, needs) if needs[module.name] else 0.0
        result[module.name] = Flops(whole, round(whole * columns), round(whole * gradient_rows))
    return result


def _own(module: ModuleFlow, tensors: dict[str, tuple[int, TensorSpec]]) -> str:
    """A tensor that tells which layer a module belongs to."""
    names = (dotted(module.name, key) for key in ("weight", "bias", "running_mean"))
    return next((name for name in names if name in tensors), "")


def _need_input_gradients(layers: Layers, trained: dict[str, Ranges]) -> dict[str, bool]:
    """Which modules have something trained above them in the flow (flow order is call order)."""
    needs: dict[str, bool] = {}
    for module in layers.flow:
        needs[module.name] = any(
            needs.get(parent, False) or bool(trained.get(parent)) for parent in module.parents
        )
    return needs


def _needed_columns(
    module: ModuleFlow, layers: Layers, trained: dict[str, Ranges], needs: dict[str, bool]
) -> float:
    """Fraction of a module's input columns whose gradient is computed."""
    feeder = module.feeder
    if feeder is None or needs[feeder] or not trained.get(module.name) or not trained.get(feeder):
        return 1.0
    if module.whole_gradient or any(trained.get(norm) != trained[feeder] for norm in module.norms):
        return 1.0
    weight = dotted(feeder, "weight")
    index = next(index for _, index, tensor in layers.placed if tensor.name == weight)
    total: int = layers[index].num_sublayers
    return sum(len(part) for part in trained[feeder]) / total


def paper_flops_of(assignment: Assignment, num_examples: int) -> float:
    """The same for an assignment; a sub-model's forward pass is as small as it is."""
    held = assignment.dense
    return paper_flops(held.layers.size, held.ratio, num_examples)


def paper_flops(num_parameters: int, ratio: float, num_examples: int) -> float:
    r"""The paper's :math:`(\alpha + \beta r)\,\tau P`, with :math:`\tau` counted in examples."""
    per_parameter = FORWARD_FLOPS_PER_PARAMETER + BACKWARD_FLOPS_PER_PARAMETER * ratio
    return per_parameter * num_parameters * num_examples


def download_bytes(assignment: Assignment) -> int:
    """Size of what a client is sent, the model it holds, as one safetensors array."""
    tensors = (tensor for _, _, tensor in assignment.dense.layers.placed)
    return safetensors_bytes(
        "model", sum(t.num_elements for t in tensors if t.name not in assignment.local)
    )


def safetensors_bytes(name: str, numbers: int, metadata: dict[str, str] | None = None) -> int:
    """Size of one flat float32 array in safetensors, header and padding included."""
    size = numbers * BYTES_PER_NUMBER
    header: dict[str, object] = {"__metadata__": metadata} if metadata else {}
    header[name] = {"dtype": "F32", "shape": [numbers], "data_offsets": [0, size]}
    length = len(json.dumps(header, separators=(",", ":")).encode())
    return 8 + -(-length // 8) * 8 + size
