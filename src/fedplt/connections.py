"""How data flows between modules: which layer feeds a norm, and what lies above what.

With an example input, the autograd graph of one forward pass answers: walk back from a module's
input through operations that act on each channel alone, to the module whose output it was. Without
an example, the module registered just before a norm is taken as its feeder if its width matches,
and nothing is said about the flow between layers.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from fedplt.layers import ModuleFlow
from fedplt.state import evaluation_mode

Kinds = tuple[type[nn.Module], ...]

PER_CHANNEL_NORMS: Kinds = (
    nn.modules.batchnorm._BatchNorm,
    nn.modules.instancenorm._InstanceNorm,
)
NORMS: Kinds = (*PER_CHANNEL_NORMS, nn.LayerNorm, nn.GroupNorm)

_ELEMENTWISE = (
    "Relu", "LeakyRelu", "Gelu", "Silu", "Tanh", "Sigmoid", "Elu", "Hardtanh", "Hardswish",
    "Clone", "NativeDropout",
)  # fmt: skip
_POOLING = ("MaxPool", "AvgPool", "AdaptiveAvgPool", "AdaptiveMaxPool")
_RESHAPING = ("View", "UnsafeView", "ReshapeAlias")
_TURNING = ("Transpose", "Permute")


def connections(
    model: nn.Module, cuttable: Kinds, example: Any = None
) -> tuple[dict[str, str], tuple[ModuleFlow, ...]]:
    """The feeder of every norm that has a unique one, and the flow through all modules."""
    if example is None:
        return _by_registration(model, cuttable), ()
    trace = _Trace(model, cuttable, example)
    return trace.feeders(), trace.flow()


def _by_registration(model: nn.Module, cuttable: Kinds) -> dict[str, str]:
    result: dict[str, str] = {}
    previous: tuple[str, int] | None = None
    for name, module in model.named_modules():
        if isinstance(module, cuttable):
            previous = (name, _width(module))
        elif isinstance(module, NORMS) and _width(module):
            if previous and previous[1] == _width(module):
                result[name] = previous[0]
            previous = None
    return result


class _Trace:
    """Who produced what in one forward pass."""

    def __init__(self, model: nn.Module, cuttable: Kinds, example: Any) -> None:
        self.modules: dict[str, nn.Module] = dict(model.named_modules())
        self.cuttable = cuttable
        self.outputs: dict[Any, str] = {}  # autograd node of a module's output -> its name
        self.inputs: dict[str, list[Any]] = {}  # name -> autograd nodes of its inputs, per call
        self.dimensions: dict[str, int] = {}
        self.positions: dict[str, int] = {}
        handles = []
        for name, module in self.modules.items():
            if isinstance(module, cuttable) or isinstance(module, NORMS):  # noqa: SIM101 (mypy)
                handles.append(
                    module.register_forward_pre_hook(self._note_input(name), with_kwargs=True)
                )
                handles.append(module.register_forward_hook(self._note_output(name)))
        try:
            # In evaluation mode a forward pass leaves no trace in running statistics.
            with evaluation_mode(model), torch.enable_grad(), torch.random.fork_rng(devices=[]):
                self.result = model(example)  # kept: nodes live as long as their graph
        finally:
            for handle in handles:
                handle.remove()

    def _note_input(self, name: str) -> Any:
        def hook(module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
            x = inputs[0] if inputs else named["input"]
            self.inputs.setdefault(name, []).append(x.grad_fn)
            self.dimensions[name] = x.ndim

        return hook

    def _note_output(self, name: str) -> Any:
        def hook(module: nn.Module, inputs: Any, output: torch.Tensor) -> None:
            if output.grad_fn is not None:
                self.outputs[output.grad_fn] = name
            elements = output.numel() // (len(output) * max(1, _width(module)))
            self.positions[name] = self.positions.get(name, 0) + elements

        return hook

    def feeders(self) -> dict[str, str]:
        """Norm -> the one cuttable module, as wide as the norm, that its input comes from."""
        result = {}
        for name, nodes in self.inputs.items():
            if not isinstance(self.modules[name], NORMS):
                continue
            sources = {self._feeder(node) for node in nodes}
            source = next(iter(sources))
            if len(sources) == 1 and source:
                width = _width(self.modules[name])
                if width and width == _width(self.modules[source]):
                    result[name] = source
        return result

    def _feeder(self, node: Any) -> str | None:
        while node is not None:
            name = self.outputs.get(node)
            if name is not None and isinstance(self.modules[name], self.cuttable):
                return name
            if name is None and not _is(node, *_ELEMENTWISE, *_POOLING, *_RESHAPING, *_TURNING):
                return None  # a residual sum, a concatenation, an unknown operation
            node = _first_input(node)
        return None

    def flow(self) -> tuple[ModuleFlow, ...]:
        """All modules that were called, in the order of their first call."""
        return tuple(self._flow(name, nodes) for name, nodes in self.inputs.items())

    def _flow(self, name: str, nodes: list[Any]) -> ModuleFlow:
        parents = sorted({parent for node in nodes for parent in self._parents(node)})
        module = self.modules[name]
        channels = None
        if len(nodes) == 1 and isinstance(module, self.cuttable):
            channels = self._channels_from(name, nodes[0])
        feeder, columns, norms = channels or (None, 1, ())
        whole = getattr(module, "groups", 1) != 1
        return ModuleFlow(name, self.positions[name], tuple(parents), feeder, columns, norms, whole)

    def _parents(self, node: Any) -> set[str]:
        """The modules whose outputs a node depends on without another module in between."""
        found, seen, todo = set(), set(), [node]
        while todo:
            node = todo.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            if node in self.outputs:
                found.add(self.outputs[node])
            else:
                todo += [parent for parent, _ in node.next_functions]
        return found

    def _channels_from(self, consumer: str, node: Any) -> tuple[str, int, tuple[str, ...]] | None:
        """The feeder of a module, columns per channel, and the norms on the way."""
        norms: list[str] = []
        shape: list[int] | None = None  # of the activation before a flatten
        pooled = False
        while node is not None:
            name = self.outputs.get(node)
            if name is not None and isinstance(self.modules[name], self.cuttable):
                columns = self._columns(name, consumer, shape, norms, pooled)
                return (name, columns, tuple(norms)) if columns else None
            if name is not None and isinstance(self.modules[name], PER_CHANNEL_NORMS):
                norms.append(name)
            elif _is(node, *_POOLING):
                pooled = True
            elif _is(node, *_RESHAPING) and shape is None:
                shape = list(getattr(node, "_saved_self_sym_sizes", []))
            elif name is not None or not _is(node, *_ELEMENTWISE):
                return None
            node = _first_input(node)
        return None

    def _columns(
        self, producer: str, consumer: str, shape: list[int] | None, norms: list[str], pooled: bool
    ) -> int | None:
        """Inputs of the consumer per channel of the producer, if they lie channel by channel.

        A convolution's channels are axis 1, a Linear's outputs the last axis; only what keeps
        them there is let through, and None means that it is not certain.
        """
        width = _width(self.modules[producer])
        weight: Any = self.modules[consumer].weight
        taken = int(weight.shape[1])
        from_linear, to_linear = (
            isinstance(self.modules[name], nn.Linear) for name in (producer, consumer)
        )
        if any(_width(self.modules[norm]) != width for norm in norms):
            return None
        if from_linear and to_linear:
            # Pooling mixes along the last axis, and so do norms unless it is also axis 1.
            mixed = pooled or any(self.dimensions[norm] != 2 for norm in norms)
            return 1 if shape is None and not mixed and taken == width else None
        if not from_linear and not to_linear:
            return 1 if shape is None and taken == width else None
        if from_linear or shape is None or self.dimensions[consumer] != 2 or shape[1] != width:
            return None
        # (batch, channels, ...) flattened: channel c lies at c * rest to (c + 1) * rest - 1.
        rest = math.prod(shape[2:])
        return rest if len(shape) >= 3 and taken == width * rest else None


def _is(node: Any, *kinds: str) -> bool:
    """Whether an autograd node belongs to one of these operations (``MaxPool`` has variants)."""
    name = type(node).__name__
    return any(
        name.startswith((f"{kind}Backward", f"{kind}1", f"{kind}2", f"{kind}3")) for kind in kinds
    )


def _first_input(node: Any) -> Any:
    return next((parent for parent, _ in node.next_functions if parent is not None), None)


def _width(module: nn.Module) -> int:
    """Outputs of a cuttable module; channels of a norm module (0 if it has no tensors)."""
    weight = getattr(module, "weight", None)
    if isinstance(weight, torch.Tensor):
        return int(weight.shape[0])
    mean = getattr(module, "running_mean", None)
    return int(mean.shape[0]) if isinstance(mean, torch.Tensor) else 0
