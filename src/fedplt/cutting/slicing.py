"""How a module's tensors are cut, and kinds of modules for which the user says so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from fedplt.errors import CutError, did_you_mean


@dataclass(frozen=True)
class Slicing:
    """How one module's tensors are cut into sub-layers."""

    how: str
    """For people: ``"by output neuron"``."""
    num_units: int | None = None
    """The smallest pieces a client can train; None: one per row."""
    axes: dict[str, int] = field(default_factory=dict)
    """Of tensors whose sliced axis is not the first."""
    repeats: dict[str, int] = field(default_factory=dict)
    """Tensors whose sliced axis holds several blocks that are cut the same way."""
    is_bare: bool = False
    """Each tensor is a layer of its own: nothing is known about what the module does."""


_OWN_KINDS: dict[type[nn.Module], Callable[[Any], Slicing]] = {}


def add_layer_kind(kind: type[nn.Module], slicing: Callable[[Any], Slicing]) -> None:
    """Say how modules of a kind of your own are cut; without it, each parameter is one piece.

    Call it where the kind is defined, so that every process that imports the kind knows it.

    Args:
        kind: a class of modules; subclasses are cut alike, unless they are added, too.
        slicing: takes a module of this kind and returns its :class:`fedplt.Slicing`.

    >>> import torch
    >>> class Scale(nn.Module):
    ...     def __init__(self, width):
    ...         super().__init__()
    ...         self.factor = nn.Parameter(torch.ones(width))
    >>> add_layer_kind(Scale, lambda module: Slicing("by channel"))
    """
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        raise CutError(f"add_layer_kind: {kind!r} is no class of modules; give one.")
    _OWN_KINDS[kind] = slicing


def own_slicing(name: str, module: nn.Module) -> Slicing | None:
    """How the user says that this module is cut, checked; None if its kind is not theirs."""
    kind = next((kind for kind in type(module).__mro__ if kind in _OWN_KINDS), None)
    if kind is None:
        return None
    where = f"add_layer_kind({kind.__name__}): module {name!r}"
    slicing = _OWN_KINDS[kind](module)
    if not isinstance(slicing, Slicing):
        raise CutError(f"{where} got a {type(slicing).__name__}; the function gives a Slicing.")
    shapes = {key: tuple(p.shape) for key, p in module.named_parameters(recurse=False)}
    for key in (*slicing.axes, *slicing.repeats):
        if key not in shapes:
            raise CutError(f"{where} has no parameter {key!r}. {did_you_mean(key, shapes)}")
    for key, shape in shapes.items():
        axis, blocks = slicing.axes.get(key, 0), slicing.repeats.get(key, 1)
        if not 0 <= axis < len(shape):
            raise CutError(f"{where}: {key!r} has shape {shape}, which has no axis {axis}.")
        pieces = blocks * (slicing.num_units or 1)
        if pieces < 1 or shape[axis] % pieces:
            raise CutError(
                f"{where}: axis {axis} of {key!r} has length {shape[axis]}, which cannot be cut "
                f"into {blocks} blocks of {slicing.num_units or 'any'} equal units."
            )
    return slicing
