"""Record one forward pass: the calls of modules of a known kind, and the autograd graph.

All parameters and inputs require gradients during the pass, so that the graph is complete. The
outputs of modules of a known kind are looked up in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fedplt.cutting.operations import NORMALIZATION
from fedplt.data import map_tensors, tensors_in
from fedplt.errors import CutError, ExampleError, FedpltError
from fedplt.kernels import has_kernel, has_running_statistics, outputs_on_axis_1
from fedplt.models import call_model, model_mode
from fedplt.torch_internals import AccumulateGrad, checkpoints_disabled, compiled_code_disabled


@contextmanager
def _example_errors() -> Iterator[None]:
    """Explain what may be wrong with the example input."""
    try:
        yield
    except FedpltError:
        raise
    except Exception as error:  # the user's model may raise anything
        raise ExampleError(
            f"the model cannot be run on the example input: {type(error).__name__}: {error}\n"
            "Give a batch as the model takes it: a tensor, a tuple (by position) or a dictionary "
            "(by name)."
        ) from error


@contextmanager
def _unchanged_tensors(model: nn.Module) -> Iterator[None]:
    """Inside the block, all tensors are copies, and all parameters require gradients.

    Buffers are replaced, not only their data: a write in the forward pass adds them to the graph.
    """
    scripted = [module for module in model.modules() if isinstance(module, torch.jit.ScriptModule)]
    old = [
        (module, key, buffer)
        for module in model.modules()
        if module not in scripted  # their buffers cannot be replaced
        for key, buffer in module._buffers.items()
    ]
    tensors = [*model.parameters(), *(b for s in scripted for b in s.buffers(recurse=False))]
    data = [(tensor, tensor.data) for tensor in tensors]
    frozen = [p for p in model.parameters() if not p.requires_grad and p.is_floating_point()]
    copies: dict[int, Tensor] = {}
    try:
        for module, key, buffer in old:
            if buffer is not None:
                module._buffers[key] = copies.setdefault(id(buffer), buffer.clone())
        for tensor, original in data:
            tensor.data = original.clone()
        for parameter in frozen:
            parameter.requires_grad_()
        yield
    finally:
        for parameter in frozen:
            parameter.requires_grad_(False)
        for module, key, buffer in old:
            module._buffers[key] = buffer
        for tensor, original in data:
            tensor.data = original


def traces(model: nn.Module, example: Any) -> list[Trace]:
    """Traces in evaluation and in training mode, the one that uses more parameters first.

    A model that runs in only one mode (it needs targets, or larger batches for its normalization
    layers) is traced in that mode.
    """
    _initialize(model, example)
    found, problems = [], []
    for training in (False, True):
        try:
            found.append(Trace(model, example, training=training))
        except CutError as error:
            problems.append(error)
    if not found:
        raise problems[0]
    return found if found[-1].used() <= found[0].used() else found[::-1]


def _initialize(model: nn.Module, example: Any) -> None:
    """Lazy modules get their shapes from the first input."""
    lazy = [*model.parameters(), *model.buffers()]
    if any(nn.parameter.is_lazy(tensor) for tensor in lazy):
        with _example_errors(), model_mode(model, training=False), torch.no_grad():
            call_model(model, example)


class Trace:
    """The record of one forward pass."""

    def __init__(self, model: nn.Module, example: Any, *, training: bool = False) -> None:
        self.modules: dict[str, nn.Module] = dict(model.named_modules())
        self.outputs: dict[Any, str] = {}  # autograd node of a module's output -> its name
        self.inputs: dict[str, list[Any]] = {}  # name -> autograd nodes of its inputs, per call
        self.dimensions: dict[str, int] = {}
        self.positions: dict[str, list[float]] = {}  # per example, per call
        self._calls: list[tuple[Any, Any]] = []  # nodes of a module's input and output
        first = next((tensor for tensor in tensors_in(example) if tensor.ndim), None)
        self.batch = 1 if first is None else max(1, first.size(0))
        self._names = {id(module): name for name, module in self.modules.items()}
        with (  # the complete graph; the model is left as it was
            ExitStack() as hooks,
            _example_errors(),
            torch.inference_mode(False),
            _unchanged_tensors(model),
            model_mode(model, training=training),
            torch.enable_grad(),
            torch.random.fork_rng(devices=[]),
            checkpoints_disabled(),
            compiled_code_disabled(),
        ):
            for module in filter(is_known, self.modules.values()):
                hook = module.register_forward_hook(self, with_kwargs=True, prepend=True)
                hooks.enter_context(hook)
            result = call_model(model, map_tensors(example, _differentiable))
        self._keep_alive = result  # nodes live as long as their graph
        self.modules.update(model.named_modules())  # a first pass may register some
        self.parameters = {id(p): name for name, p in model.named_parameters()}
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
            if not is_parameter(node)
        }

    def __call__(
        self, module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any], output: Tensor
    ) -> None:
        """Note a call of a module."""
        if id(module) not in self._names:  # a shallow copy, which has the same hooks
            return
        name, x = self._names[id(module)], inputs[0] if inputs else next(iter(named.values()))
        self.inputs.setdefault(name, []).append(_node(x))
        positions = _positions(self.modules[name], x, output) / self.batch
        self.positions.setdefault(name, []).append(positions)
        self.dimensions[name] = x.dim()
        if output.grad_fn is not None:
            self.outputs[output.grad_fn] = name
            self._calls.append((_node(x), output.grad_fn))

    def __reduce__(self) -> Any:
        """Copies that a module's forward makes of it are not traced."""
        return partial, (_ignore,)

    def sources(self, node: Any) -> set[str]:
        """The modules and parameters that a node depends on directly, without a module between."""
        found = set()
        for reached in _reachable([node], stop_at=self.outputs):
            if reached in self.outputs:
                found.add(self.outputs[reached])
            elif is_parameter(reached) and id(reached.variable) in self.parameters:
                found.add(self.parameters[id(reached.variable)])
        return found

    def used(self) -> set[int]:
        """Identities of the parameters that the output depends on."""
        return {id(node.variable) for node in self.nodes if is_parameter(node)}

    def used_elsewhere(self) -> set[int]:
        """Identities of parameters that are used outside of modules of a known kind."""
        return {
            id(parent.variable)
            for node in self.nodes
            if node not in self.inside
            for parent, _ in node.next_functions
            if parent is not None and is_parameter(parent)
        }


def _ignore(*call: Any) -> None: ...


def is_known(module: nn.Module) -> bool:
    """Whether calling the module runs its class's forward and nothing else."""
    if isinstance(module, NORMALIZATION):
        return "forward" not in vars(module)
    return has_kernel(module)


def _differentiable(tensor: Tensor) -> Tensor:
    return tensor.detach().requires_grad_().clone() if tensor.is_floating_point() else tensor


def _node(tensor: Tensor) -> Any:
    """The autograd node of a tensor; a parameter has one, too."""
    if tensor.grad_fn is not None or not tensor.requires_grad:
        return tensor.grad_fn
    with torch.enable_grad():
        made: Any = tensor.view_as(tensor).grad_fn
    return made.next_functions[0][0]


def _reachable(roots: list[Any], stop: Any = None, stop_at: Any = ()) -> dict[Any, None]:
    """All nodes that ``roots`` depend on, up to ``stop`` (excluded) and ``stop_at`` (included)."""
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


def is_parameter(node: Any) -> bool:
    return isinstance(node, AccumulateGrad)


def _positions(module: Any, x: Tensor, y: Tensor) -> float:
    """How often a module applied its weight: once per output pixel or token."""
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
