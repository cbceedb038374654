"""What a traced forward pass must not do: change the model, hide operations, fail without words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.utils.checkpoint
from torch import Tensor, nn

from fedplt.errors import ExampleError, FedpltError
from fedplt.kernels import eagerly, mode


@contextmanager
def traced_pass(model: nn.Module, *, training: bool) -> Iterator[None]:
    """Inside the block, a forward pass builds the complete graph and leaves the model as it was."""
    with (
        in_words(),
        torch.inference_mode(False),
        _unchanged_tensors(model),
        mode(model, training=training),
        _all_trainable(model),
        torch.enable_grad(),
        torch.random.fork_rng(devices=[]),
        _without_checkpoints(),
        eagerly(),
    ):
        yield


@contextmanager
def in_words() -> Iterator[None]:
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
    """Inside the block, all numbers are copies: a forward pass cannot change the originals."""
    scripted = [module for module in model.modules() if isinstance(module, torch.jit.ScriptModule)]
    old = [
        (module, key, buffer)
        for module in model.modules()
        if module not in scripted  # their buffers cannot be replaced
        for key, buffer in module._buffers.items()
    ]
    tensors = [*model.parameters(), *(b for s in scripted for b in s.buffers(recurse=False))]
    data = [(tensor, tensor.data) for tensor in tensors]
    copies: dict[int, Tensor] = {}
    try:
        for module, key, buffer in old:
            if buffer is not None:
                module._buffers[key] = copies.setdefault(id(buffer), buffer.clone())
        for tensor, original in data:
            tensor.data = original.clone()
        yield
    finally:
        for module, key, buffer in old:
            module._buffers[key] = buffer
        for tensor, original in data:
            tensor.data = original


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
