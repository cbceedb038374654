"""Whether what a layer takes in comes from the layer below with every channel in its place.

Where the layer below is the lowest that is trained, only the columns that feed its trained rows
need a gradient. The plan knows such pairs from an example input; whether the way between them is
the same for the input at hand is looked up in the autograd graph, in every pass.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from fedplt.cutting import channels_from
from fedplt.kernels import TrainedRows
from fedplt.planning import Layers

Way = tuple[str, int, tuple[str, ...]]
"""The feeder, the columns per channel of it, and the normalization layers in between."""


class Ways:
    """The pairs of layers of a model, and what their operations gave in this pass."""

    def __init__(self, model: nn.Module, layers: Layers) -> None:
        self.modules: dict[str, nn.Module] = dict(model.named_modules())
        self.outputs: dict[Any, str] = {}
        """Autograd node of a module's last output -> its name."""
        self.dimensions: dict[str, int] = {}
        """Of a module's last input."""
        self._ways: dict[int, tuple[str, Way]] = {}  # by the identity of the consumer's weight
        self._names: dict[int, str] = {}  # of feeders and normalization layers, by their tensors'
        for flow in layers.flow:
            weight = getattr(self.modules.get(flow.name), "weight", None)
            if flow.feeder is None or weight is None:
                continue
            self._ways[id(weight)] = flow.name, (flow.feeder, flow.columns, flow.norms)
            for name in (flow.feeder, *flow.norms):
                for key in ("weight", "running_mean"):
                    tensor = getattr(self.modules[name], key, None)
                    if tensor is not None:
                        self._names[id(tensor)] = name

    def feeder_of(self, weight: Tensor) -> tuple[Any, Way] | None:
        """The module that feeds the one with this weight, and the way between them."""
        way = self._ways.get(id(weight), ("", None))[1]
        return None if way is None else (self.modules[way[0]], way)

    def name_of(self, weight: Tensor) -> str:
        return f"{self._ways[id(weight)][0]}.weight"

    def note(self, args: tuple[Any, ...], result: Any) -> None:
        """Remember what an operation gave, if it is one of a feeder or on the way from one."""
        names = self._names
        if not names:
            return
        name = None
        for arg in args[1:4]:  # no generator: asked for every operation
            if id(arg) in names:
                name = names[id(arg)]
                break
        if name is None or not isinstance(result, Tensor) or result.grad_fn is None:
            return
        self.outputs = {node: other for node, other in self.outputs.items() if other != name}
        self.outputs[result.grad_fn] = name
        self.dimensions[name] = args[0].ndim

    def is_certain(self, trained: TrainedRows, input: Tensor) -> bool:
        """Whether the way of this input is the one that the plan knows."""
        name, way = self._ways.get(id(trained.slices[0].parameter), ("", None))
        if way is None or input.grad_fn is None:
            return False
        self.dimensions[name] = input.ndim
        return channels_from(self, name, input.grad_fn) == way
