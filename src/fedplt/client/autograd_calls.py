"""``backward``, ``torch.autograd.grad`` and gradient hooks inside a ``train_only`` block.

A slice's gradient has two sources. Kernels compute it for the slice alone. Where torch itself uses
the parameter (normalization layers, second derivatives), it is cut out of the full gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from fedplt.client.refusals import explained_errors, refuse_ended, refuse_lost_gradient
from fedplt.client.slices import TrainableSlices
from fedplt.errors import CutError, GradientError
from fedplt.kernels import axis_first, is_frozen, require_gradient
from fedplt.torch_internals import DisableTorchFunction, make_grads, run_backward


class AutogradCalls:
    """Replacements of these torch functions inside the block."""

    def __init__(
        self, part: TrainableSlices, mode: TorchFunctionMode, required: dict[int, bool]
    ) -> None:
        """``required``: ``id(parameter)`` -> whether it required a gradient before the block."""
        self.part, self.mode, self.required = part, mode, required

    def backward(self, tensor: Tensor, gradient: Any = None, *args: Any, **kwargs: Any) -> None:
        self.autograd_backward(tensor, gradient, *args, **kwargs)

    def autograd_backward(
        self,
        tensors: Any,
        grad_tensors: Any = None,
        retain_graph: bool | None = None,
        create_graph: bool = False,
        inputs: Any = None,
    ) -> None:
        wanted = () if inputs is None else tuple(self._with_parameters(inputs))
        tensors, gradients = _listed(tensors), _listed(grad_tensors)
        gradients += [None] * (len(tensors) - len(gradients))
        if not any(tensor.requires_grad for tensor in tensors):
            refuse_lost_gradient(self.part.slices.values())
            return  # this client trains nothing that this batch uses
        if not all(tensor.requires_grad for tensor in tensors):
            torch.autograd.backward(tensors, gradients)  # raises torch's own error
        filled = make_grads(tensors, tuple(gradients), is_grads_batched=False)
        keep = bool(create_graph if retain_graph is None else retain_graph)
        # Not torch.autograd.backward, which would call this mode again. The mode stays active: it
        # must see operations that checkpoints run again in the backward pass.
        state = self.part.state
        state.depth += 1
        try:
            with self._all_columns(inputs is not None), explained_errors(), self.mode:
                run_backward(
                    tuple(tensors), filled, keep, bool(create_graph), wanted,
                    allow_unreachable=True, accumulate_grad=True,
                )  # fmt: skip
        finally:
            state.depth -= 1
        if not keep and not state.depth:
            self.part.forget_uses()

    def grad(
        self, outputs: Any, inputs: Any, grad_outputs: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        outputs, inputs, grad_outputs = _listed(outputs), _listed(inputs), _listed(grad_outputs)
        planned = [self.part.slices_of(t) for t in inputs if isinstance(t, Tensor)]
        names = [slices.name for slices in planned if slices is not None]
        refuse_ended(inputs, "torch.autograd.grad was given")
        if names:
            raise CutError(
                f"torch.autograd.grad with respect to {names[0]} while slices of it are trained: "
                "ask for part.parameters(), or call backward() and read .grad. Inside of a model "
                "or loss, torch.func.grad gives the whole gradient."
            )
        if not all(t.requires_grad for t in inputs if isinstance(t, Tensor)):
            raise GradientError(
                "torch.autograd.grad with respect to a tensor that needs no gradient: this client "
                "trains nothing that it depends on. Take the gradient with respect to "
                "tensor.detach().requires_grad_(), or let all clients train a layer below (always)."
            )
        step, self.part.state.is_step = self.part.state.is_step, False
        try:
            with self._all_columns(True), explained_errors(), self.mode:
                return self._gradients(outputs, inputs, grad_outputs, *args, **kwargs)
        finally:
            self.part.state.is_step = step

    def _gradients(
        self,
        outputs: list[Any],
        inputs: list[Any],
        grad_outputs: list[Any],
        retain_graph: bool | None = None,
        create_graph: bool = False,
        only_inputs: bool = True,
        allow_unused: bool | None = None,
        is_grads_batched: bool = False,
        materialize_grads: bool = False,
    ) -> tuple[Tensor | None, ...]:
        """``torch.autograd.grad`` whose inputs may be slices."""
        owners = {
            id(leaf): (slices, rows)
            for slices in self.part.slices.values()
            for leaf, rows in zip(slices.leaves, slices.rows, strict=True)
        }
        sliced = [owners[id(tensor)][0] for tensor in inputs if id(tensor) in owners]
        parameters = list({id(slices): slices.parameter for slices in sliced}.values())
        wanted = [*inputs, *parameters]
        if is_grads_batched:
            with DisableTorchFunction():
                found = torch.autograd.grad(
                    outputs, wanted, grad_outputs, retain_graph, create_graph,
                    allow_unused=True, is_grads_batched=True,
                )  # fmt: skip
        else:
            grad_outputs += [None] * (len(outputs) - len(grad_outputs))
            found = run_backward(
                tuple(outputs),
                make_grads(outputs, tuple(grad_outputs), is_grads_batched=False),
                bool(create_graph if retain_graph is None else retain_graph),
                bool(create_graph),
                tuple(wanted),
                allow_unreachable=True,
                accumulate_grad=False,
            )
        result = list(found[: len(inputs)])
        of_parameter = {id(p): g for p, g in zip(parameters, found[len(inputs) :], strict=True)}
        for index, tensor in enumerate(inputs):
            if id(tensor) in owners:
                slices, (start, stop) = owners[id(tensor)]
                other = of_parameter[id(slices.parameter)]
                if other is not None:
                    moved = axis_first(other, slices.axis + is_grads_batched)
                    part = moved if tensor.ndim == 0 else moved[start:stop]
                    result[index] = part if result[index] is None else result[index] + part
            if result[index] is None and materialize_grads:
                result[index] = torch.zeros_like(tensor)
        if any(g is None and is_frozen(t) for g, t in zip(result, inputs, strict=True)):
            raise GradientError(
                "torch.autograd.grad with respect to a tensor that was used before the model read "
                "its requires_grad: this client trains nothing that it depends on. Read "
                "requires_grad before the tensor is used, or let all clients train a layer below "
                "(always)."
            )
        if not allow_unused and any(gradient is None for gradient in result):
            raise RuntimeError(
                "One of the differentiated Tensors appears to not have been used in the graph. Set "
                "allow_unused=True if this is the desired behavior."
            )
        return tuple(result)

    def register_hook(self, function: Callable[..., Any], tensor: Tensor, hook: Any) -> Any:
        """``function``: torch's own, with or without ``post_accumulate_grad``."""
        slices = self.part.slices_of(tensor)
        if slices is not None and slices.is_recorded:
            raise CutError(
                f"a hook on the gradient of {slices.name} was registered after the forward pass "
                "that used it, whose gradients go to its slices. Register it before the forward "
                "pass."
            )
        self.part.note_hook(tensor)
        require_gradient(tensor)
        # An untrained parameter has no gradient inside the block: its hooks run after it.
        is_untrained = not tensor.requires_grad and self.required.get(id(tensor), False)
        if is_untrained:
            tensor.requires_grad_()
        handle = function(tensor, hook)
        if is_untrained:
            tensor.requires_grad_(False)
        elif not tensor.is_leaf:
            self.part.state.may_skip_columns = False
        return handle

    @contextmanager
    def _all_columns(self, wanted: bool) -> Iterator[None]:
        """Inside the block, gradients of activations are computed in full, if wanted."""
        state = self.part.state
        before = state.may_skip_columns
        state.may_skip_columns = before and not wanted
        try:
            yield
        finally:
            state.may_skip_columns = before

    def _with_parameters(self, inputs: Any) -> list[Tensor]:
        """The inputs; with a slice also its parameter, and with a parameter also its slices.

        Parameters that this client does not train have no gradient.
        """
        wanted = [tensor for tensor in _listed(inputs) if not self.part.is_untrained(tensor)]
        refuse_ended(wanted, "backward() was given")
        identities = {id(tensor) for tensor in wanted}
        for slices in self.part.slices.values():
            own = [slices.parameter, *slices.leaves]
            if any(id(tensor) in identities for tensor in own):
                wanted += [tensor for tensor in own if id(tensor) not in identities]
        return wanted


def _listed(value: Any) -> list[Any]:
    """One tensor, several, or none, as a list."""
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, Tensor):
        return [value]
    return [] if value is None else list(value)
