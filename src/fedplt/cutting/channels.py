"""How channels flow between modules: which layer feeds a normalization layer or another layer.

With an example input, walk back through the autograd graph of a forward pass: from a module's input
through operations that keep channels apart, to its feeder. Without one, a normalization layer's
feeder is the module registered just before it, if it is as wide; the flow between layers is
unknown. :func:`products` finds matrix products outside of modules of a known kind: attention,
recurrent layers, custom code.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

from torch import Tensor, nn

from fedplt.cutting.operations import (
    CHANNELED,
    ELEMENTWISE,
    FEEDING,
    NORMALIZATION,
    PER_CHANNEL_NORMALIZATION,
    POOLING,
    RESHAPE,
    TRANSPOSE,
    autograd_name,
    is_autograd_node,
)
from fedplt.cutting.trace import Trace, is_parameter, width
from fedplt.kernels import TrainedRows
from fedplt.planning import Layers, ModuleFlow, Product, dotted

_PASSED = (ELEMENTWISE, POOLING, RESHAPE, TRANSPOSE)
"""Operations that may be between a normalization layer and its feeder."""


def feeders_by_registration(model: nn.Module) -> dict[str, str]:
    """Normalization layer -> the module registered just before it, if they are equally wide."""
    result: dict[str, str] = {}
    previous: tuple[str, int] | None = None
    for name, module in model.named_modules():
        if isinstance(module, NORMALIZATION):
            if previous and width(module) and previous[1] == width(module):
                result[name] = previous[0]
            previous = None
        elif next(module.parameters(recurse=False), None) is not None:
            previous = (name, width(module)) if isinstance(module, FEEDING) else None
    return result


def feeders(trace: Trace) -> dict[str, str]:
    """Normalization layer -> the one module of the same width that computes its input."""
    result = {}
    for name, nodes in trace.inputs.items():
        if not isinstance(trace.modules[name], NORMALIZATION):
            continue
        source, *others = {_feeder(trace, node) for node in nodes}
        wide = 0 if others or not source else width(trace.modules[source])
        if source and wide and wide == width(trace.modules[name]):
            result[name] = source
    return result


def _feeder(trace: Trace, node: Any) -> str | None:
    while node is not None:
        name = trace.outputs.get(node)
        if name is not None and not isinstance(trace.modules[name], NORMALIZATION):
            return name if isinstance(trace.modules[name], FEEDING) else None
        if name is None and not is_autograd_node(node, *_PASSED):
            return None  # a residual sum, a concatenation, an unknown operation
        node = _first_input(node)
    return None


def flow(traces: Sequence[Trace]) -> tuple[ModuleFlow, ...]:
    """All calls of modules of a known kind, in the order of each module's first call.

    A feeder counts only if all traces (training and evaluation mode) agree on it.
    """
    first, *others = (list(_flow_of(trace)) for trace in traces)
    path = attrgetter("name", "feeder", "columns", "norms")
    for other in others:
        known = set(map(path, other))
        elsewhere = {module.name for module in other if module.used_elsewhere}
        for index, module in enumerate(first):
            found = module
            if path(module) not in known:
                found = replace(module, feeder=None, columns=1, norms=())
            used = module.used_elsewhere or module.name in elsewhere
            first[index] = replace(found, used_elsewhere=used)
    return tuple(first)


def _flow_of(trace: Trace) -> Iterator[ModuleFlow]:
    elsewhere = trace.used_elsewhere()
    for name, nodes in trace.inputs.items():
        module, path = trace.modules[name], None
        if len(nodes) == 1 and isinstance(module, CHANNELED):
            path = _channel_path(trace, name, nodes[0])
        feeder, columns, norms = path or (None, 1, ())
        weight: Any = getattr(module, "weight", None)
        has_matrix = isinstance(weight, Tensor) and weight.ndim > 1
        is_matrix = has_matrix and not isinstance(module, NORMALIZATION)
        for node, positions in zip(nodes, trace.positions[name], strict=True):
            yield ModuleFlow(
                name=name,
                positions=int(positions) if positions == int(positions) else positions,
                parents=tuple(sorted(trace.sources(node))),
                feeder=feeder,
                columns=columns,
                norms=norms,
                # A weight that is a buffer is used, but never trained.
                weight=trace.parameters.get(id(weight), dotted(name, "weight"))
                if is_matrix
                else None,
                weight_size=weight.numel() if is_matrix else 0,
                used_elsewhere=any(id(p) in elsewhere for p in module.parameters(recurse=False)),
            )


Path = tuple[str, int, tuple[str, ...]]
"""A module's feeder, its columns per feeder channel, and the normalization layers between."""


def _channel_path(trace: Trace | ChannelPaths, consumer: str, node: Any) -> Path | None:
    """The path on which channels reach a module's input ``node`` without being mixed."""
    norms: list[str] = []
    flat: list[str] = []  # normalization layers after a flatten
    shape: list[int] | None = None  # of the activation before a flatten
    pooled: set[int] = set()  # dimensions of pooling
    while node is not None:
        name = trace.outputs.get(node)
        if name is not None and isinstance(trace.modules[name], CHANNELED):
            columns = _columns(trace, name, consumer, shape, norms, flat, pooled)
            return (name, columns, tuple(norms)) if columns else None
        if name is not None and isinstance(trace.modules[name], PER_CHANNEL_NORMALIZATION):
            norms.append(name)
        elif is_autograd_node(node, POOLING):
            pooled.add(next(int(c) for c in autograd_name(node) if c.isdigit()))
        elif is_autograd_node(node, RESHAPE) and shape is None and not pooled:
            flat = list(norms)
            shape = list(getattr(node, "_saved_self_sym_sizes", []))
        elif name is not None or not is_autograd_node(node, ELEMENTWISE):
            return None
        node = _first_input(node)
    return None


def _columns(
    trace: Trace | ChannelPaths,
    producer: str,
    consumer: str,
    shape: list[int] | None,
    norms: list[str],
    flat: list[str],
    pooled: set[int],
) -> int | None:
    """Inputs of the consumer per channel of the producer, if they lie channel by channel.

    A convolution's channels are axis 1 of a batch, a Linear's outputs the last axis. None if some
    operation between the two might move them.
    """
    wide = width(trace.modules[producer])
    weight: Any = trace.modules[consumer].weight
    taken = int(weight.shape[1])
    from_linear, to_linear = (
        isinstance(trace.modules[name], nn.Linear) for name in (producer, consumer)
    )
    if any(width(trace.modules[norm]) != wide for norm in norms):
        return None
    if from_linear:
        # Pooling mixes along the last axis; so does normalization, unless that is also axis 1.
        mixed = bool(pooled) or any(trace.dimensions[norm] != 2 for norm in norms)
        return 1 if to_linear and shape is None and not mixed and taken == wide else None
    producing: Any = trace.modules[producer]
    batched = len(producing.kernel_size) + 2
    if pooled - {batched - 2} or trace.dimensions[producer] != batched:
        return None  # pooling over other dimensions mixes channels; one example has no batch axis
    if any(trace.dimensions[norm] != (2 if norm in flat else batched) for norm in norms):
        return None
    if not to_linear:
        same = trace.dimensions[consumer] == batched
        return 1 if same and shape is None and taken == wide else None
    # (batch, channels, ...) flattened: channel c becomes c * rest to (c + 1) * rest - 1.
    rest = 0 if shape is None or len(shape) < 3 else math.prod(shape[2:])
    fits = trace.dimensions[consumer] == 2 and taken == wide * rest
    return rest if rest and fits and shape is not None and shape[1] == wide else None


def _first_input(node: Any) -> Any:
    return next((parent for parent, _ in node.next_functions if parent is not None), None)


class ChannelPaths:
    """Checks in every forward pass that channels reach a layer unpermuted from its feeder.

    If the feeder is the lowest trained layer, only the columns of its trained rows need a gradient.
    The paths come from an example input; the autograd graph of the current input shows whether it
    took the same path.
    """

    def __init__(self, model: nn.Module, layers: Layers) -> None:
        self.modules: dict[str, nn.Module] = dict(model.named_modules())
        self.outputs: dict[Any, str] = {}
        """Autograd node of a module's last output -> its name."""
        self.dimensions: dict[str, int] = {}
        """Number of dimensions of a module's last input."""
        self._paths: dict[int, tuple[str, Path]] = {}  # by the identity of the consumer's weight
        self._names: dict[int, str] = {}  # by identity: tensors of feeders and norms
        for flow in layers.flow:
            weight = getattr(self.modules.get(flow.name), "weight", None)
            if flow.feeder is None or weight is None:
                continue
            self._paths[id(weight)] = flow.name, (flow.feeder, flow.columns, flow.norms)
            for name in (flow.feeder, *flow.norms):
                for key in ("weight", "running_mean"):
                    tensor = getattr(self.modules[name], key, None)
                    if tensor is not None:
                        self._names[id(tensor)] = name

    def path_to(self, weight: Tensor) -> tuple[str, Path] | None:
        """The name of the module with this weight, and the path to it."""
        return self._paths.get(id(weight))

    def note_output(self, args: tuple[Any, ...], result: Any) -> None:
        """Note the output of a feeder, or of a normalization layer on a path."""
        names = self._names
        if not names:
            return
        name = None
        for arg in args[1:4]:  # no generator: called for every operation
            if id(arg) in names:
                name = names[id(arg)]
                break
        if name is None or not isinstance(result, Tensor) or result.grad_fn is None:
            return
        self.outputs = {node: other for node, other in self.outputs.items() if other != name}
        self.outputs[result.grad_fn] = name
        self.dimensions[name] = args[0].ndim

    def is_unpermuted(self, trained: TrainedRows, input: Tensor) -> bool:
        """Whether this input took the same path as the example."""
        name, path = self._paths.get(id(trained.slices[0].parameter), ("", None))
        if path is None or input.grad_fn is None:
            return False
        self.dimensions[name] = input.ndim
        return _channel_path(self, name, input.grad_fn) == path


RECOMPUTING = 2.5
"""Fused attention makes two products forward and five backward."""


def products(trace: Trace) -> tuple[Product, ...]:
    """Products outside of known modules, with the modules and parameters of their operands."""
    intercepted = _intercepted_in_attention(trace)
    result = []
    for node in trace.nodes:
        counted = None if node in trace.inside else _count(node)
        if counted is None:
            continue
        flops, indices, joint = counted
        operands = [node.next_functions[index][0] for index in indices]
        sources = tuple(tuple(sorted(trace.sources(operand))) for operand in operands)
        weight = _transposed_parameter(operands[-1])
        sliced = trace.parameters.get(id(weight)) if id(weight) in intercepted else None
        result.append(Product(flops / trace.batch, sources, sliced, joint))
    return tuple(result)


def _count(node: Any) -> tuple[float, tuple[int, ...], float] | None:
    """FLOPs of a product, positions of its operands, and the cost of its gradients if joint."""
    kind = autograd_name(node).partition("Backward")[0]
    if kind in ("Mm", "Addmm", "Bmm", "Baddbmm"):
        added = kind in ("Addmm", "Baddbmm")  # to the product of operands 1 and 2
        if kind in ("Mm", "Addmm"):
            inner = node._saved_mat2_sym_sizes[0]  # (inner, columns)
        else:
            left, right = ("batch1", "batch2") if added else ("self", "mat2")
            saved = getattr(node, f"_saved_{left}")
            inner = (getattr(node, f"_saved_{right}").mT if saved is None else saved).shape[2]
        return 2.0 * math.prod(_output_shape(node)) * inner, (added, added + 1), 0.0
    if kind.startswith("ScaledDotProduct"):
        query, key, value = (getattr(node, f"_saved_{name}") for name in ("query", "key", "value"))
        pairs = math.prod(query.shape[:-1]) * key.shape[-2]
        return 2.0 * pairs * (query.shape[-1] + value.shape[-1]), (0, 1, 2), RECOMPUTING
    if kind == "Convolution" and node._saved_weight is not None:
        x, weight = node._saved_input, node._saved_weight
        pixels = x.shape if node._saved_transposed else _output_shape(node)
        return 2.0 * weight.numel() * pixels[0] * math.prod(pixels[2:]), (0, 1), 0.0
    if kind == "MkldnnRnnLayer":
        steps, size = node._saved_input.shape[:2]
        weights = node._saved_weight0.numel() + node._saved_weight1.numel()
        return 2.0 * steps * size * weights, tuple(range(len(node.next_functions))), 2.0
    return None


def _output_shape(node: Any) -> tuple[int, ...]:
    """Shape of the output of the operation that made this node."""
    return tuple(node._input_metadata[0].shape)


def _transposed_parameter(node: Any) -> Any:
    """The parameter of a node that is a parameter or its transpose."""
    while autograd_name(node).startswith("TBackward"):
        node = node.next_functions[0][0]
    return node.variable if is_parameter(node) else None


def _intercepted_in_attention(trace: Trace) -> set[int]:
    """Weights whose products :mod:`fedplt.kernels.dispatch` computes."""
    return {
        id(weight)
        for module in trace.modules.values()
        if isinstance(module, nn.MultiheadAttention)
        if type(module).forward is nn.MultiheadAttention.forward
        for weight in (module.in_proj_weight, module.out_proj.weight)
    }
