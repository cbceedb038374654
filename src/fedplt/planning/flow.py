"""How data flows through a model, traced with an example input; used to compute costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ModuleFlow:
    """One call of a module of a known kind: a Linear, a convolution, a normalization layer, ..."""

    name: str
    positions: float
    """How often its weights are applied per example (pixels of a convolution's output)."""
    parents: tuple[str, ...]
    """The modules and bare parameters that its input comes from, with no other module in between.
    If one of them is trained, the gradient of the input is needed."""
    feeder: str | None = None
    """The one module whose output channels reach its input without being mixed."""
    columns: int = 1
    """Channel c of the feeder becomes inputs ``c * columns`` to ``(c + 1) * columns - 1``."""
    norms: tuple[str, ...] = ()
    """Normalization layers between the feeder and it."""
    weight: str | None = None
    """The tensor it multiplies with, which may be another module's (tied weights)."""
    weight_size: int = 0
    used_elsewhere: bool = False
    """Its tensors are also used without calling it, so its backward pass must not change them."""


@dataclass(frozen=True)
class Product:
    """A matrix product outside of modules of a known kind: attention, a user's own layer."""

    flops: float
    """FLOPs of the forward pass, per example; the gradient of each operand takes as many."""
    operands: tuple[tuple[str, ...], ...]
    """The modules and bare parameters that each operand comes from."""
    sliced: str | None = None
    """The tensor that is its last operand, if its gradient is computed for trained rows only."""
    joint: float = 0.0
    """For fused kernels: all gradients together cost this many times the forward pass."""


@dataclass(frozen=True)
class LayerNote:
    """A note for the printed table: how a layer was cut and why, or why a tensor is in none."""

    name: str
    kind: str
    how: str
    size: int = 0
    is_layer: bool = True


def from_plain(kind: type[Any], entry: Mapping[str, Any]) -> Any:
    """One of these dataclasses, or a ``TensorSpec``, from its JSON."""
    return kind(**{key: _tuples(value) for key, value in entry.items()})


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
