"""Which layer feeds a norm module.

With an example input, the autograd graph of one forward pass answers: walk back from the norm's
input through operations that act on each channel alone; if they lead to the output of exactly one
cuttable module with as many outputs, that module feeds the norm. Without an example, the module
registered just before the norm is taken if its outputs match.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from fedplt.state import evaluation_mode

NORMS: tuple[type[nn.Module], ...] = (
    nn.modules.batchnorm._BatchNorm,
    nn.modules.instancenorm._InstanceNorm,
    nn.LayerNorm,
    nn.GroupNorm,
)

_PER_CHANNEL = (
    "ReluBackward", "LeakyReluBackward", "GeluBackward", "SiluBackward", "TanhBackward",
    "SigmoidBackward", "EluBackward", "HardtanhBackward", "HardswishBackward",
    "MaxPool", "AvgPool", "AdaptiveAvgPool", "CloneBackward", "NativeDropoutBackward",
    "ViewBackward", "UnsafeViewBackward", "NativeBatchNormBackward",
    "TransposeBackward", "PermuteBackward",
)  # fmt: skip


def feeders(
    model: nn.Module, cuttable: tuple[type[nn.Module], ...], example: Any = None
) -> dict[str, str]:
    """Name of each norm module that has a unique feeder -> name of the feeder."""
    if example is None:
        return _by_registration(model, cuttable)
    return _by_data_flow(model, cuttable, example)


def _by_registration(model: nn.Module, cuttable: tuple[type[nn.Module], ...]) -> dict[str, str]:
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


def _by_data_flow(
    model: nn.Module, cuttable: tuple[type[nn.Module], ...], example: Any
) -> dict[str, str]:
    producers: dict[Any, str] = {}  # autograd node of a module's output -> module
    sources: dict[str, set[str | None]] = {}
    handles = []
    for name, module in model.named_modules():
        if isinstance(module, cuttable):
            handles.append(module.register_forward_hook(_note_output(name, producers)))
        elif isinstance(module, NORMS) and _width(module):
            handles.append(module.register_forward_pre_hook(_note_input(name, producers, sources)))
    try:
        # In evaluation mode a forward pass leaves no trace in running statistics.
        with evaluation_mode(model), torch.enable_grad(), torch.random.fork_rng(devices=[]):
            model(example)
    finally:
        for handle in handles:
            handle.remove()
    modules = dict(model.named_modules())
    result = {}
    for norm, feeding in sources.items():
        source = next(iter(feeding))
        if len(feeding) == 1 and source and _width(modules[source]) == _width(modules[norm]):
            result[norm] = source
    return result


def _note_output(name: str, producers: dict[Any, str]) -> Any:
    def hook(module: nn.Module, inputs: Any, output: torch.Tensor) -> None:
        producers[output.grad_fn] = name

    return hook


def _note_input(name: str, producers: dict[Any, str], sources: dict[str, set[str | None]]) -> Any:
    def hook(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        sources.setdefault(name, set()).add(_producer(inputs[0].grad_fn, producers))

    return hook


def _producer(node: Any, producers: dict[Any, str]) -> str | None:
    """The module whose output this is, through operations that keep channels apart."""
    while node is not None:
        if node in producers:
            return producers[node]
        if not any(kind in type(node).__name__ for kind in _PER_CHANNEL):
            return None  # a residual sum, a concatenation, an unknown operation
        node = next((n for n, _ in node.next_functions if n is not None), None)
    return None


def _width(module: nn.Module) -> int:
    """Outputs of a cuttable module; channels of a norm module (0 if it has no parameters)."""
    weight = getattr(module, "weight", None)
    if isinstance(weight, torch.Tensor):
        return int(weight.shape[0])
    mean = getattr(module, "running_mean", None)
    return int(mean.shape[0]) if isinstance(mean, torch.Tensor) else 0
