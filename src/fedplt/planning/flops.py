"""The costs of training: exact FLOPs, and FLOPs by the paper's model.

Exact FLOPs count multiplications and additions of matrix products and convolutions, as torch's own
counter does. A backward pass has two halves: weight gradients, which shrink with the ratio, and
input gradients, which flow through every layer above the lowest trained one (just above it, only
for the columns that its trained rows feed).

The paper's model counts ``(alpha + beta * ratio)`` per parameter and example: its whole backward
pass scales with the ratio (``docs/errata.md``, 2). Output always names the one it shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fedplt.errors import CutError
from fedplt.planning.assignment import Assignment
from fedplt.planning.layers import Layers, ModuleFlow, Ranges

FORWARD_FLOPS_PER_PARAMETER = 2
"""The paper's alpha, per example."""
BACKWARD_FLOPS_PER_PARAMETER = 4
"""The paper's beta, per example."""


class Flops(NamedTuple):
    """FLOPs per example."""

    forward: int
    input_gradients: int
    weight_gradients: int

    @property
    def total(self) -> int:
        return sum(self)


def exact_flops(assignment: Assignment) -> Flops:
    """FLOPs of training this assignment, per example."""
    calls = [flops for _, flops in module_flops(assignment)]
    return Flops(*map(sum, zip(*calls, _product_flops(assignment), strict=True)))


def module_flops(assignment: Assignment) -> list[tuple[str, Flops]]:
    """Name and FLOPs of each call of a module of a known kind with a weight matrix."""
    held = assignment.on_client  # a sub-model has smaller matrix products
    layers = held.layers
    if not layers.is_traced:
        raise CutError("costs need the flow of data: cut the model with an example input.")
    trained = _trained(held)
    needs = _need_input_gradients(layers, trained)
    sizes = {tensor.name: tensor.num_elements for tensor in layers.tensors}
    result = []
    for module in layers.flow:
        if module.weight is None:
            continue  # normalization layers: no matrix product
        whole = 2 * module.positions * sizes.get(module.weight, module.weight_size)
        rows = _fraction(trained.get(module.weight))
        columns = _needed_columns(module, trained, needs)
        call = Flops(round(whole), round(whole * columns), round(whole * rows))
        result.append((module.name, call))
    return result


Trained = dict[str, tuple[Ranges, int]]
"""By module and tensor with trained sub-layers: these, and the layer's number of sub-layers."""


def _trained(assignment: Assignment) -> Trained:
    result: Trained = {}
    layers = assignment.layers
    for placed in layers.placed:
        slices = assignment.slices[placed.layer_index]
        if slices:
            entry = (slices, layers[placed.layer_index].num_sublayers)
            result[placed.tensor.name] = result[placed.tensor.module] = entry
    for module in layers.flow:  # a tied weight is trained with the module that owns it
        if module.weight in result:
            result.setdefault(module.name, result[module.weight])
    return result


def _fraction(entry: tuple[Ranges, int] | None) -> float:
    return sum(len(part) for part in entry[0]) / entry[1] if entry else 0.0


def _need_input_gradients(layers: Layers, trained: Trained) -> dict[str, bool]:
    """Per module, whether something trained lies upstream of it, in any call."""
    needs = dict.fromkeys((module.name for module in layers.flow), False)
    changed = True
    while changed:  # one pass, unless a module is called again later
        changed = False
        for module in layers.flow:
            if not needs[module.name] and _depends(module.parents, trained, needs):
                needs[module.name] = changed = True
    return needs


def _depends(sources: Sequence[str], trained: Trained, needs: dict[str, bool]) -> bool:
    return any(needs.get(source, False) or source in trained for source in sources)


def _needed_columns(module: ModuleFlow, trained: Trained, needs: dict[str, bool]) -> float:
    """Fraction of a module's input columns whose gradient is computed."""
    if not _depends(module.parents, trained, needs):
        return 0.0
    feeder = trained.get(f"{module.feeder}.weight")
    if feeder is None or needs.get(module.feeder or ""):
        return 1.0
    if module.name in trained and module.weight not in trained:  # only its bias: no kernel
        return 1.0
    if any(trained.get(norm) != feeder for norm in module.norms):
        return 1.0
    return _fraction(feeder)


def _product_flops(assignment: Assignment) -> Flops:
    """FLOPs of matrix products outside modules of a known kind."""
    layers, trained = assignment.layers, _trained(assignment)
    needs = _need_input_gradients(layers, trained)
    forward = inputs = weights = 0.0
    for product in layers.products:
        forward += product.flops
        wanted = [_depends(sources, trained, needs) for sources in product.operands]
        if product.joint:
            inputs += product.flops * product.joint * any(wanted)
        elif product.sliced:
            inputs += product.flops * sum(wanted[:-1])
            weights += product.flops * _fraction(trained.get(product.sliced))
        else:
            inputs += product.flops * sum(wanted)
    return Flops(round(forward), round(inputs), round(weights))


def paper_flops_of(assignment: Assignment, num_examples: int) -> float:
    r"""The paper's :math:`(\alpha + \beta r)\,\tau P`, with :math:`\tau` counted in examples.

    A sub-model also has a smaller forward pass.
    """
    held = assignment.on_client
    per_parameter = FORWARD_FLOPS_PER_PARAMETER + BACKWARD_FLOPS_PER_PARAMETER * held.ratio
    return per_parameter * held.layers.size * num_examples
