"""The function mode of a ``train_only`` block: runs kernels instead of torch's operations.

An operation that is called with a planned parameter itself runs as a kernel
(:mod:`fedplt.kernels.dispatch`). Other uses of a planned parameter run as torch's own operations.
They are noted, so that a fused step does not change values that the backward pass still reads.
``.grad``, ``.data`` and ``.requires_grad`` of the model's parameters behave as without the block.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from fedplt.client.autograd_calls import AutogradCalls
from fedplt.client.refusals import memory_of, refuse_ended
from fedplt.client.slices import TrainableSlices
from fedplt.kernels import (
    KERNEL_OF,
    is_frozen,
    is_original,
    is_shadowed,
    keep_layout,
    mark_frozen,
    original,
    require_gradient,
)
from fedplt.torch_internals import DisableTorchFunction, linear, num_all_modes

_TENSOR: Any = Tensor
_LINEAR: Any = linear
_EMBEDDING: Any = F.embedding if F.embedding in KERNEL_OF else object()  # it may be replaced
_METADATA = (
    "shape", "dtype", "device", "layout", "ndim", "is_sparse", "is_nested", "is_cuda",
    "is_quantized", "is_meta", "_backward_hooks", "size", "dim", "numel", "stride",
    "is_contiguous", "element_size", "is_floating_point", "is_complex", "data_ptr",
    "storage_offset", "__len__", "nelement", "__hash__", "ndimension",
)  # fmt: skip
_METADATA_FUNCTIONS = {
    found if callable(found := getattr(_TENSOR, name)) else found.__get__
    for name in _METADATA
    if hasattr(_TENSOR, name)
}
"""Functions that read a tensor's metadata, not its values."""
_NEVER_PLANNED = {Tensor, int, float, bool, str, type(None), torch.dtype, torch.Size}
"""Types that a planned parameter cannot have."""
_MODULE_HOOKS = "torch.utils.hooks"
_GET_GRAD, _SET_GRAD = _TENSOR.grad.__get__, _TENSOR.grad.__set__
_GET_DATA, _SET_DATA = _TENSOR.data.__get__, _TENSOR.data.__set__
_GET_REQUIRES = _TENSOR.requires_grad.__get__
_VIEWS = ("T", "mT", "H", "mH", "real", "imag")
"""Attributes that are computed from a tensor's values."""
_NOT_COMPUTED = ("__deepcopy__", "__reduce_ex__", "__repr__", "__format__", "__set__", "detach")
_WRITABLE = ("__setitem__", "numpy", "__array__", "__dlpack__")
"""Functions that write to a tensor or expose its memory."""


class Interception(TorchFunctionMode):
    """The function mode that is active inside the block."""

    def __init__(self, part: TrainableSlices, required: dict[int, bool]) -> None:
        super().__init__()
        self.part = part
        self._required = required
        """``id(parameter)`` -> whether it required a gradient before the block."""
        self._leaves = part.owners
        self._memories = {memory_of(parameter) for parameter in part.model.parameters()}
        self._handlers: dict[Callable[..., Any], Callable[..., Any] | None] = {
            **dict.fromkeys(KERNEL_OF, self._operate),
            **dict.fromkeys(_METADATA_FUNCTIONS, _call),
            # A patched relu calls torch's own, which _find_handler handles.
            **{f: self._relu for f in (F.relu, torch.relu, Tensor.relu) if is_original(f)},
            Tensor.retain_grad: self._observe,
            **dict.fromkeys((Tensor.expand_as, Tensor.view_as), self._view),
            _TENSOR.grad_fn.__get__: self._observe,
            _TENSOR.is_leaf.__get__: self._get_leaf,
            **dict.fromkeys((Tensor.detach, torch.detach), self._detach),
            **{
                function: functools.partial(_given, special)
                for function, special in self._special().items()
            },
        }
        """Handlers by torch function; None: only note the planned parameters that it uses."""
        self.has_frozen = any(needs and id_ not in part.slices for id_, needs in required.items())
        """Whether some activations have no gradient, but would have one in full training."""

    def _special(self) -> dict[Callable[..., Any], Callable[..., Any]]:
        calls = AutogradCalls(self.part, self, self._required)
        return {
            _GET_GRAD: self._get_grad,
            _SET_GRAD: self._set_grad,
            _GET_DATA: self._get_data,
            _SET_DATA: self._set_data,
            _GET_REQUIRES: self._get_requires,
            _TENSOR.requires_grad.__set__: self._set_requires,
            Tensor.requires_grad_: self._set_requires,
            Tensor.backward: calls.backward,
            torch.autograd.backward: calls.autograd_backward,
            torch.autograd.grad: calls.grad,
            **{
                function: functools.partial(calls.register_hook, function)
                for function in (Tensor.register_hook, Tensor.register_post_accumulate_grad_hook)
            },
        }

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        # Called for every operation of a step: keep it short.
        handlers = self._handlers
        handler = handlers[func] if func in handlers else self._find_handler(func)
        if handler is not None:
            return handler(func, args, kwargs or {})
        if self.part.has_hooks or kwargs:
            result = self._carry(func, args, kwargs or {})
        else:
            for value in args:
                if value.__class__ not in _NEVER_PLANNED:
                    self._note_uses((value,))
            result = func(*args)
        if self.has_frozen:
            self.mark(result, args, kwargs)
        return result

    def _find_handler(self, func: Callable[..., Any]) -> Callable[..., Any] | None:
        own = original(func)
        if own is not func:
            self._handlers[func] = handler = functools.partial(self._call_own, own)
            return handler
        name = getattr(func, "__name__", "")
        writes = name in _WRITABLE or (name.endswith("_") and not name.endswith("__"))
        self._handlers[func] = found = self._write if writes else None
        return found

    def _call_own(self, own: Any, func: Any, args: Any, kwargs: Any) -> Any:
        return self.__torch_function__(own, (), args, kwargs)

    def _operate(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        result = KERNEL_OF[func](self.part, *args, **kwargs)
        if args and args[0].__class__ is not Tensor:  # a parameter as the input
            self._note_uses(args[:1])
        if result is NotImplemented:
            result = self._carry(func, args, kwargs)
        if func is not _EMBEDDING:  # its outputs are columns of the weight, a Linear's are rows
            self.part.paths.note_output(args, result)
        if self.has_frozen:
            self.mark(result, args, kwargs)
        return result

    def _write(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        self._note_uses(args)
        self._note_uses(kwargs.values())
        self._note_writing(_flat((args[:1], kwargs.get("out"))))
        given = args
        if self.part.has_hooks:
            given = (*args[:1], *self._carriers(args[1:], {}))
        result = func(*given, **kwargs)
        if self.has_frozen:
            self.mark(result, args, kwargs)
        return result

    def _carry(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run torch's own operation; with hooks on slices, gradients go through the slices."""
        self._note_uses(args)
        self._note_uses(kwargs.values())
        if "out" in kwargs:
            self._note_writing(_flat((kwargs["out"],)))
        if not self.part.has_hooks or _takes_leaves(func):
            return func(*args, **kwargs)
        made: dict[int, Any] = {}
        given = dict(zip(kwargs, self._carriers(kwargs.values(), made), strict=True))
        result = func(*self._carriers(args, made), **given)
        return made.get(id(result), result)  # such as weight.to(its own type)

    def _relu(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        result = self._carry(func, args, kwargs)
        if self.has_frozen:
            self.mark(result, args, kwargs)
        keep_layout(result)
        return result

    def _carriers(self, values: Any, made: dict[int, Any]) -> list[Any]:
        """Replace planned parameters by carriers; ``made``: ``id(carrier)`` -> parameter."""
        result = []
        for value in values:
            if type(value) in (list, tuple):
                carried: Any = type(value)(self._carriers(value, made))
            else:
                carried = self.part.carrier_of(value)
                if carried is not value:
                    made[id(carried)] = value
            result.append(carried)
        return result

    def _view(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """``slice.expand_as(slice).grad_fn`` leads to the slice's node, which may get hooks."""
        self.part.note_hook(args[0])
        return self._carry(func, args, kwargs)

    def _observe(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """The gradient of an activation will be read, or may be through ``grad_fn``."""
        self._note_uses(args)
        require_gradient(args[0])
        if not args[0].is_leaf:
            self.part.state.may_skip_columns = False
        return func(*args, **kwargs)

    def _get_leaf(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """A model may branch on ``is_leaf``: give the answer of full training."""
        require_gradient(args[0])
        return func(*args, **kwargs)

    def _detach(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        self._note_uses(args)
        return func(*args, **kwargs)

    def mark(self, result: Any, args: Any, kwargs: Any) -> None:
        """Mark what would require a gradient if all layers were trained."""
        if result.__class__ is Tensor:
            if result.requires_grad:
                return
        elif not isinstance(result, (tuple, list)):
            return
        if torch.is_grad_enabled() and (
            self._needs_gradient(args) or (kwargs and self._needs_gradient(kwargs.values()))
        ):
            for tensor in _flat((result,)):
                mark_frozen(tensor)

    def _needs_gradient(self, values: Iterable[Any]) -> bool:
        for value in values:  # no generator: called for every operation of untrained layers
            if isinstance(value, Tensor):
                if self._required.get(id(value), False) or is_frozen(value):
                    return True
            elif isinstance(value, (list, tuple)) and self._needs_gradient(value):
                return True
        return False

    # Forwards of modules. They do the same as this mode without torch's dispatch, whose overhead is
    # as large as a small operation.

    def linear(self, module: nn.Linear, input: Any) -> Any:
        own = module._parameters
        # Otherwise one of them is a buffer, or computed.
        if "weight" in own and "bias" in own and not is_shadowed(module):
            return self._direct("linear", _LINEAR, module, (input, own["weight"], own["bias"]))
        return type(module).forward(module, input)

    def embedding(self, module: nn.Embedding, input: Any) -> Any:
        options = (
            module.padding_idx, module.max_norm, module.norm_type,
            module.scale_grad_by_freq, module.sparse,
        )  # fmt: skip
        if is_shadowed(module):
            return type(module).forward(module, input)
        given = (input, module._parameters.get("weight"), *options)
        return self._direct("embedding", _EMBEDDING, module, given)

    def _direct(
        self, name: str, func: Callable[..., Any], module: nn.Module, args: tuple[Any, ...]
    ) -> Any:
        if _is_alone(args[0]) and getattr(F, name) is func:
            with DisableTorchFunction():
                result = KERNEL_OF[func](self.part, *args)
                if result is not NotImplemented:
                    if func is not _EMBEDDING:
                        self.part.paths.note_output(args, result)
                    if self.has_frozen:
                        self.mark(result, args, None)
                    return result
        return type(module).forward(module, args[0])

    def layer_norm(self, module: nn.LayerNorm, input: Any) -> Any:
        if not _is_alone(input) or self.part.has_hooks:
            return nn.LayerNorm.forward(module, input)
        with DisableTorchFunction():
            own = module._parameters
            self._note_uses(own.values())
            result = nn.LayerNorm.forward(module, input)
            if self.has_frozen:
                self.mark(result, (input, *own.values()), None)
            return result

    def _note_uses(self, values: Any) -> None:
        """Note parameters that torch itself uses: no fused step may change them early."""
        slices = self.part.slices
        for value in values:
            if isinstance(value, (list, tuple)):
                self._note_uses(value)
            elif id(value) in slices and slices[id(value)].parameter is value:
                slices[id(value)].uses += 2

    def _get_grad(self, tensor: Tensor) -> Tensor | None:
        planned = self.part.slices_of(tensor)
        if planned is not None:
            return planned.gather_gradient()
        if id(tensor) not in self._leaves:
            refuse_ended((tensor,), "the gradient was read of")
        return tensor.grad

    def _set_grad(self, tensor: Tensor, value: Tensor | None) -> None:
        planned = self.part.slices_of(tensor)
        if planned is None:
            if id(tensor) not in self._leaves:
                refuse_ended((tensor,), "the gradient was set of")
            tensor.grad = value
            return
        planned.forget_gradient()
        if value is not None:
            tensor.grad = value
            planned.take_gradient(tensor)

    def _get_data(self, tensor: Tensor) -> Tensor:
        if id(tensor) in self._required:
            self.part.note_write()
            self._note_uses((tensor,))
        return tensor.data

    def _set_data(self, tensor: Tensor, value: Tensor) -> None:
        if id(tensor) in self._leaves:
            self.part.set_data(tensor, value)
        elif id(tensor) in self._required or self.part.has_rows_of(tensor):
            self.part.note_write()
            self._note_uses((tensor,))
            self.part.set_data(tensor, value)
        else:
            tensor.data = value
            return
        self._memories.add(memory_of(tensor))

    def _get_requires(self, tensor: Tensor) -> bool:
        """For parameters, the value from before the block, which loops and copies expect.

        Activations that would require a gradient in full training do so from now on: a model may
        branch on ``requires_grad``. Torch's module hooks must see the real value.
        """
        before = self._required.get(id(tensor))
        if before is None and self.has_frozen:
            require_gradient(tensor)
        # The caller is above this function, the handler and the mode.
        if before is None or sys._getframe(3).f_globals.get("__name__") == _MODULE_HOOKS:
            return tensor.requires_grad
        return before

    def _set_requires(self, tensor: Tensor, value: bool = True) -> Tensor:
        if id(tensor) not in self._required:
            self.part.note_hook(tensor)
            return tensor.requires_grad_(value)
        self._required[id(tensor)] = value
        planned = self.part.slices_of(tensor)
        if planned is not None:  # untrained parameters stay frozen inside the block
            planned.is_off = not value
            tensor.requires_grad_(value)
        return tensor

    def _note_writing(self, targets: Iterable[Tensor]) -> None:
        """Note writes to parameters, which may change untrained rows; writes to slices cannot."""
        for target in targets:
            if id(target) not in self._leaves and memory_of(target) in self._memories:
                self.part.note_write()


def _is_alone(input: Any) -> bool:
    """Whether no other function mode is active, and the input is an ordinary tensor."""
    return type(input) is Tensor and num_all_modes() == 1


def _takes_leaves(func: Callable[..., Any]) -> bool:
    """Whether a function only reads attributes of a tensor or copies it, without computing."""
    name = getattr(func, "__name__", "")
    if name == "__get__":
        return func.__self__.__name__ not in _VIEWS  # type: ignore[attr-defined]
    return name in _NOT_COMPUTED


def _call(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    return func(*args, **kwargs)


def _given(special: Callable[..., Any], func: Any, args: Any, kwargs: Any) -> Any:
    return special(*args, **kwargs)


def _flat(values: Any) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _flat(value)
