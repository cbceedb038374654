"""Backward passes that a model or a training loop starts inside a ``train_only`` block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd import _make_grads
from torch.autograd.graph import _engine_run_backward
from torch.overrides import TorchFunctionMode

from fedplt.client.asked_gradients import asked_gradients
from fedplt.client.refusals import explained_errors, refuse_ended, refuse_lost_gradient
from fedplt.client.slices import TrainableSlices
from fedplt.errors import CutError, GradientError


class BackwardPasses:
    """What ``backward`` and ``torch.autograd.grad`` do instead of torch's own."""

    def __init__(self, part: TrainableSlices, mode: TorchFunctionMode) -> None:
        self.part, self.mode = part, mode

    def backward(self, tensor: Tensor, *args: Any, **kwargs: Any) -> None:
        names = ("gradient", "retain_graph", "create_graph", "inputs")
        given = dict(zip(names, args, strict=False)) | kwargs
        self.autograd_backward(
            tensor,
            given.get("gradient"),
            given.get("retain_graph"),
            given.get("create_graph", False),
            inputs=given.get("inputs"),
        )

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
            torch.autograd.backward(tensors, gradients)  # torch's own words about it
        filled = _make_grads(tensors, tuple(gradients), is_grads_batched=False)
        keep = bool(create_graph if retain_graph is None else retain_graph)
        # Not torch.autograd.backward: it would ask this mode again. The mode is active, because
        # operations that are computed again in the backward pass must be seen, too.
        state = self.part.state
        state.depth += 1
        try:
            with self._looked_at(inputs is not None), explained_errors(), self.mode:
                _engine_run_backward(
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
        planned = [self.part.slices_of(t) for t in _listed(inputs) if isinstance(t, Tensor)]
        names = [slices.name for slices in planned if slices is not None]
        refuse_ended(_listed(inputs), "torch.autograd.grad was given")
        if names:
            raise CutError(
                f"torch.autograd.grad with respect to {names[0]} while slices of it are trained: "
                "ask for part.parameters(), or call backward() and read .grad. Inside of a model "
                "or loss, torch.func.grad gives the whole gradient."
            )
        if not all(t.requires_grad for t in _listed(inputs) if isinstance(t, Tensor)):
            raise GradientError(
                "torch.autograd.grad with respect to a tensor that needs no gradient: this client "
                "trains nothing that it depends on. Take the gradient with respect to "
                "tensor.detach().requires_grad_(), or let all clients train a layer below (always)."
            )
        step, self.part.state.is_step = self.part.state.is_step, False
        given = _listed(outputs), _listed(inputs), _listed(grad_outputs)
        try:
            with self._looked_at(True), explained_errors(), self.mode:
                return asked_gradients(self.part.slices.values(), *given, *args, **kwargs)
        finally:
            self.part.state.is_step = step

    @contextmanager
    def _looked_at(self, looked: bool) -> Iterator[None]:
        """Inside the block, gradients of activations are computed in full."""
        state = self.part.state
        before = state.may_leave_out
        state.may_leave_out = before and not looked
        try:
            yield
        finally:
            state.may_leave_out = before

    def _with_parameters(self, inputs: Any) -> list[Tensor]:
        """A parameter stands for its slices and they for it: gradients come on both ways.

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
