"""Record one forward pass: the calls of modules of a known kind, and the autograd graph.

All parameters and inputs require gradients during the pass, so that the graph is complete. The
outputs of modules of a known kind are looked up in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import is_dataclass
from typing import Any

import torch
import torch.utils.checkpoint
from torch import Tensor, nn

from fedplt.cutting.module_kinds import NORMALIZATION
from fedplt.errors import CutError
from fedplt.kernels import call_model, has_kernel, has_running_statistics, mode, outputs_on_axis_1


def traces(model: nn.Module, example: Any) -> list[Trace]:
    """The model in evaluation and in training mode, the one that uses more parameters first.

    A model that cannot be run like this in training mode (it needs targets, or larger batches for
    its normalization layers) is recorded in evaluation mode alone.
    """
    found = [Trace(model, example)]
    try:
        found.append(Trace(model, example, training=True))
    except Exception:  # the user's model may raise anything
        return found
    return found if found[1].used() <= found[0].used() else found[::-1]


class Trace:
    """The record of one forward pass."""

    def __init__(self, model: nn.Module, example: Any, *, training: bool = False) -> None:
        self.modules: dict[str, nn.Module] = dict(model.named_modules())
        self.parameters = {id(p): name for name, p in model.named_parameters()}
        self.outputs: dict[Any, str] = {}  # autograd node of a module's output -> its name
        self.inputs: dict[str, list[Any]] = {}  # name -> autograd nodes of its inputs, per call
        self.dimensions: dict[str, int] = {}
        self.positions: dict[str, list[float]] = {}  # per example, per call
        self._calls: list[tuple[Any, Any]] = []  # nodes of a module's input and output
        first = next((tensor for tensor in tensors_in(example) if tensor.ndim), None)
        self.batch = 1 if first is None else max(1, len(first))
        handles = []
        for name, module in self.modules.items():
            if is_known(module):
                handles += [
                    module.register_forward_pre_hook(self._note_input(name), with_kwargs=True),
                    module.register_forward_hook(
                        self._note_output(name), with_kwargs=True, prepend=True
                    ),
                ]
        try:
            with (
                _unchanged_buffers(model),
                mode(model, training=training),
                _all_trainable(model),
                torch.inference_mode(False),
                torch.enable_grad(),
                torch.random.fork_rng(devices=[]),
                _without_checkpoints(),
            ):
                result = call_model(model, _differentiable(example))
        finally:
            for handle in handles:
                handle.remove()
        self._keep_alive = result  # nodes live as long as their graph
        roots = [tensor.grad_fn for tensor in tensors_in(result)]
        if not any(root is not None for root in roots):
            raise CutError(
                f"the model gave a {type(result).__name__} without a tensor that depends on its "
                "parameters, so what they do cannot be seen. Return tensors, or tuples, "
                "dictionaries or dataclasses of them, computed with gradients."
            )
        self.nodes = _reachable(roots)
        self.inside = {
            node
            for given, made in self._calls
            for node in _reachable([made], stop=given)
            if not _is_parameter(node)
        }

    def _note_input(self, name: str) -> Any:
        def hook(module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
            x = _only_input(inputs, named)
            self.inputs.setdefault(name, []).append(_node(x))
            self.positions.setdefault(name, []).append(0.0)  # a call may be broken off
            self.dimensions[name] = x.ndim

        return hook

    def _note_output(self, name: str) -> Any:
        def hook(
            module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any], output: Tensor
        ) -> None:
            if output.grad_fn is not None:
                self.outputs[output.grad_fn] = name
                self._calls.append((self.inputs[name][-1], output.grad_fn))
            applied = _positions(module, _only_input(inputs, named), output) / self.batch
            self.positions[name][-1] = applied

        return hook

    def sources(self, node: Any) -> set[str]:
        """The modules and parameters a node depends on without another module in between."""
        found = set()
        for reached in _reachable([node], stop_at=self.outputs):
            if reached in self.outputs:
                found.add(self.outputs[reached])
            elif _is_parameter(reached) and id(reached.variable) in self.parameters:
                found.add(self.parameters[id(reached.variable)])
        return found

    def used(self) -> set[int]:
        """Identities of the parameters that the output depends on."""
        return {id(node.variable) for node in self.nodes if _is_parameter(node)}

    def used_elsewhere(self) -> set[int]:
        """Identities of parameters that are used outside of modules of a known kind."""
        return {
            id(parent.variable)
            for node in self.nodes
            if node not in self.inside
            for parent, _ in node.next_functions
            if parent is not None and _is_parameter(parent)
        }


def is_known(module: nn.Module) -> bool:
    """Whether the module's own forward is the only thing that happens in it."""
    if isinstance(module, NORMALIZATION):
        return "forward" not in vars(module)
    return has_kernel(module)


def tensors_in(value: Any) -> Iterator[Tensor]:
    """All tensors in nested tuples, lists and dictionaries (a transformers output is one)."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors_in(item)
    elif is_dataclass(value):
        yield from tensors_in(vars(value))


def _differentiable(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().requires_grad_().clone() if value.is_floating_point() else value
    if isinstance(value, Mapping):
        return {key: _differentiable(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [_differentiable(item) for item in value]
    return value


def _node(tensor: Tensor) -> Any:
    """The autograd node of a tensor; a parameter has one, too."""
    if tensor.grad_fn is not None or not tensor.requires_grad:
        return tensor.grad_fn
    with torch.enable_grad():
        made: Any = tensor.view_as(tensor).grad_fn
    return made.next_functions[0][0]


@contextmanager
def _unchanged_buffers(model: nn.Module) -> Iterator[None]:
    """Inside the block, buffers are copies: a forward pass cannot change the originals."""
    old = [
        (module, key, buffer)
        for module in model.modules()
        for key, buffer in module._buffers.items()
    ]
    copies: dict[int, Tensor] = {}
    try:
        for module, key, buffer in old:
            if buffer is not None:
                module._buffers[key] = copies.setdefault(id(buffer), buffer.clone())
        yield
    finally:
        for module, key, buffer in old:
            module._buffers[key] = buffer


@contextmanager
def _without_checkpoints() -> Iterator[None]:
    """Inside the block, what is checkpointed is computed once.

    Reentrant checkpoints compute in the backward pass alone: the graph would hide them. Others
    compute again when somebody looks into the graph, which may change buffers.
    """

    def apply(function: Any, preserve: Any, *args: Any) -> Any:
        return function(*args)

    def generator(*args: Any, **kwargs: Any) -> Iterator[None]:
        yield  # torch calls the function here

    module: Any = torch.utils.checkpoint
    old = module._checkpoint_without_reentrant_generator
    module.CheckpointFunction.apply = apply
    module._checkpoint_without_reentrant_generator = generator
    try:
        yield
    finally:
        del module.CheckpointFunction.apply  # the class's own is inherited
        module._checkpoint_without_reentrant_generator = old


@contextmanager
def _all_trainable(model: nn.Module) -> Iterator[None]:
    frozen = [p for p in model.parameters() if not p.requires_grad and p.is_floating_point()]
    for parameter in frozen:
        parameter.requires_grad_()
    try:
        yield
    finally:
        for parameter in frozen:
            parameter.requires_grad_(False)


def _reachable(roots: list[Any], stop: Any = None, stop_at: Any = ()) -> dict[Any, None]:
    """All nodes behind these: not ``stop`` and beyond, not beyond nodes in ``stop_at``."""
    found: dict[Any, None] = {}
    todo = list(roots)
    while todo:
        node = todo.pop()
        if node is None or node is stop or node in found:
            continue
        found[node] = None
        if node not in stop_at:
            todo += [parent for parent, _ in node.next_functions]
    return found


def _is_parameter(node: Any) -> bool:
    return hasattr(node, "variable")


def _only_input(inputs: tuple[Any, ...], named: dict[str, Any]) -> Tensor:
    tensor: Tensor = inputs[0] if inputs else next(iter(named.values()))
    return tensor


def _positions(module: Any, x: Tensor, y: Tensor) -> float:
    """How often a module's weight was applied: once per output pixel or token."""
    if isinstance(module, nn.Embedding):
        return 0.0  # a lookup is not a matrix product
    if getattr(module, "transposed", False):
        return x.numel() / int(module.in_channels)
    return y.numel() / max(1, width(module))


def width(module: Any) -> int:
    """Outputs of a module, or channels of a normalization layer (0 if it has no tensors)."""
    weight = getattr(module, "weight", None)
    if isinstance(weight, Tensor):
        return int(weight.shape[1 if outputs_on_axis_1(module) else 0])
    return len(module.running_mean) if has_running_statistics(module) else 0
