"""Sees every operation inside a ``train_only`` block, and lets kernels do what they can.

An operation that is called with a planned parameter itself is computed by its kernel
(:mod:`fedplt.kernels.operations`). Other uses of a planned parameter are torch's own; they are
noted, so that nothing is changed in the backward pass that is still needed there. Reading and
setting ``.grad``, ``.data`` and ``.requires_grad`` of the model's parameters does what it would do
without the block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd import _make_grads
from torch.autograd.graph import _engine_run_backward
from torch.overrides import TorchFunctionMode

from fedplt.client.slices import TrainableSlices
from fedplt.errors import CutError
from fedplt.kernels import OPERATIONS, Slices

_TENSOR: Any = Tensor
_TOLD = (
    "shape", "dtype", "device", "layout", "ndim", "is_leaf", "is_sparse", "is_nested", "is_cuda",
    "is_quantized", "is_meta", "grad_fn", "_backward_hooks", "size", "dim", "numel", "stride",
    "is_contiguous", "element_size", "is_floating_point", "is_complex", "data_ptr",
    "storage_offset", "__len__", "nelement", "__hash__", "ndimension",
)  # fmt: skip
_HARMLESS = {
    found if callable(found := getattr(_TENSOR, name)) else found.__get__
    for name in _TOLD
    if hasattr(_TENSOR, name)
}
"""What tells about a tensor without using its numbers."""
_OBSERVING = {Tensor.register_hook, Tensor.retain_grad}
_GET_GRAD, _SET_GRAD = _TENSOR.grad.__get__, _TENSOR.grad.__set__
_GET_DATA, _SET_DATA = _TENSOR.data.__get__, _TENSOR.data.__set__
_GET_REQUIRES = _TENSOR.requires_grad.__get__


class Interception(TorchFunctionMode):
    """Active inside a block."""

    def __init__(self, part: TrainableSlices, required: dict[int, bool]) -> None:
        super().__init__()
        self.part = part
        self._required = required
        """Of the model's parameters by identity: whether they required gradients before."""
        self._leaves = {id(leaf) for leaf in part.parameters()}
        self._memories = {_memory(parameter) for parameter in part.model.parameters()}
        self._special: dict[Callable[..., Any], Callable[..., Any]] = {
            _GET_GRAD: self._get_grad,
            _SET_GRAD: self._set_grad,
            _GET_DATA: self._get_data,
            _SET_DATA: self._set_data,
            _GET_REQUIRES: self._get_requires,
            _TENSOR.requires_grad.__set__: self._set_requires,
            Tensor.requires_grad_: self._set_requires,
            Tensor.backward: self._backward,
            torch.autograd.backward: self._autograd_backward,
            torch.autograd.grad: self._grad,
        }

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        operation = OPERATIONS.get(func)
        if operation is not None:
            result = operation(self.part, *args, **kwargs)
            if result is NotImplemented:
                self._note_uses(args)
                self._note_uses(kwargs.values())
                result = func(*args, **kwargs)
            self.part.ways.note(args, result)
            return result
        special = self._special.get(func)
        if special is not None:
            return special(*args, **kwargs)
        if func not in _HARMLESS:
            if "out" in kwargs or _is_in_place(func):
                self._note_writing(func, args, kwargs.get("out"))
            self._note_uses(args)
            if kwargs:
                self._note_uses(kwargs.values())
            if func in _OBSERVING and not args[0].is_leaf:
                self.part.state.may_leave_out = False
        return func(*args, **kwargs)

    def _note_uses(self, values: Any) -> None:
        """A planned parameter is used by torch itself: it must not move before its gradient."""
        slices = self.part.slices
        for value in values:
            if isinstance(value, (list, tuple)):
                self._note_uses(value)
            elif id(value) in slices and slices[id(value)].parameter is value:
                slices[id(value)].uses += 2

    def _planned(self, tensor: Tensor) -> Slices | None:
        found = self.part.slices.get(id(tensor))
        return found if found is not None and found.parameter is tensor else None

    def _get_grad(self, tensor: Tensor) -> Tensor | None:
        planned = self._planned(tensor)
        return tensor.grad if planned is None else planned.gather_gradient()

    def _set_grad(self, tensor: Tensor, value: Tensor | None) -> None:
        planned = self._planned(tensor)
        if planned is None:
            tensor.grad = value
            return
        planned.forget_gradient()
        if value is not None:
            tensor.grad = value
            planned.scatter_gradient(tensor)

    def _get_data(self, tensor: Tensor) -> Tensor:
        if id(tensor) in self._required:
            self.part.may_have_changed_frozen = True
            self._note_uses((tensor,))
        return tensor.data

    def _set_data(self, tensor: Tensor, value: Tensor) -> None:
        """Copies: slices are views of the parameter's memory, which another tensor's is not."""
        if id(tensor) not in self._required:
            tensor.data = value
            return
        self.part.may_have_changed_frozen = True
        self._note_uses((tensor,))
        planned = self._planned(tensor)
        if planned and (value.shape != tensor.shape or value.dtype != tensor.dtype):
            raise CutError(
                f"{planned.name}.data was given a tensor of {value.dtype} {tuple(value.shape)} "
                f"while its slices, of {tensor.dtype} {tuple(tensor.shape)}, are trained. "
                "Change shapes and types before the block."
            )
        with torch.no_grad():
            tensor.data.copy_(value)

    def _get_requires(self, tensor: Tensor) -> bool:
        """As before the block, for who copies or looks through the model's parameters."""
        return self._required.get(id(tensor), tensor.requires_grad)

    def _backward(self, tensor: Tensor, *args: Any, **kwargs: Any) -> None:
        names = ("gradient", "retain_graph", "create_graph", "inputs")
        given = dict(zip(names, args, strict=False)) | kwargs
        self._autograd_backward(
            tensor,
            given.get("gradient"),
            given.get("retain_graph"),
            given.get("create_graph", False),
            inputs=given.get("inputs"),
        )

    def _autograd_backward(
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
        if not all(tensor.requires_grad for tensor in tensors):
            torch.autograd.backward(tensors, gradients)  # torch's own words about it
        filled = _make_grads(tensors, tuple(gradients), is_grads_batched=False)
        keep = bool(create_graph if retain_graph is None else retain_graph)
        # Not torch.autograd.backward: it would ask this mode again. The mode is active, because
        # operations that are computed again in the backward pass must be seen, too.
        state = self.part.state
        state.depth += 1
        try:
            with self._looked_at(inputs is not None), self:
                _engine_run_backward(
                    tuple(tensors), filled, keep, bool(create_graph), wanted,
                    allow_unreachable=True, accumulate_grad=True,
                )  # fmt: skip
        finally:
            state.depth -= 1
        if not keep and not state.depth:
            self.part.forget_uses()

    def _grad(self, outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        planned = [self._planned(t) for t in _listed(inputs) if isinstance(t, Tensor)]
        names = [slices.name for slices in planned if slices is not None]
        if names:
            raise CutError(
                f"torch.autograd.grad with respect to {names[0]} while slices of it are trained: "
                "ask for part.parameters(), or call backward() and read .grad."
            )
        step, self.part.state.is_step = self.part.state.is_step, False
        try:
            with self._looked_at(True):
                return torch.autograd.grad(outputs, inputs, *args, **kwargs)
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
        """A parameter stands for its slices and they for it: gradients come on both ways."""
        wanted = _listed(inputs)
        identities = {id(tensor) for tensor in wanted}
        for slices in self.part.slices.values():
            own = [slices.parameter, *slices.leaves]
            if any(id(tensor) in identities for tensor in own):
                wanted += [tensor for tensor in own if id(tensor) not in identities]
        return wanted

    def _set_requires(self, tensor: Tensor, value: bool = True) -> Tensor:
        if id(tensor) not in self._required:
            return tensor.requires_grad_(value)
        self._required[id(tensor)] = value
        planned = self._planned(tensor)
        if planned is not None:  # what is frozen stays so inside the block
            planned.is_off = not value
            tensor.requires_grad_(value)
        return tensor

    def _note_writing(self, func: Callable[..., Any], args: Any, out: Any) -> None:
        """Operations that write to the memory of parameters may change rows that are not trained.

        Writing to the slices themselves, as optimizers do, is what they are for.
        """
        for target in [*_flat(args[:1] if _is_in_place(func) else ()), *_flat((out,))]:
            if id(target) not in self._leaves and _memory(target) in self._memories:
                self.part.may_have_changed_frozen = True


def _is_in_place(func: Callable[..., Any]) -> bool:
    name = getattr(func, "__name__", "")
    return name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))


def _flat(values: Any) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _flat(value)


def _memory(tensor: Tensor) -> int:
    return 0 if tensor.is_sparse or tensor.is_nested else tensor.untyped_storage().data_ptr()


def _listed(value: Any) -> list[Any]:
    """One tensor, several, or none, as a list."""
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, Tensor):
        return [value]
    return [] if value is None else list(value)
