"""How data flows through a model, as seen with an example input: costs follow from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ModuleFlow:
    """One call of a module of a known kind: a Linear, a convolution, a norm, ..."""

    name: str
    positions: float
    """How often its weights are applied per example (pixels of a convolution's output)."""
    parents: tuple[str, ...]
    """The modules and bare parameters right above it in the flow of data; what they train needs
    its input gradient."""
    feeder: str | None = None
    """The one module whose channels it takes in through operations that keep channels apart."""
    columns: int = 1
    """Channel c of the feeder becomes inputs ``c * columns`` to ``(c + 1) * columns - 1``."""
    norms: tuple[str, ...] = ()
    """Norm modules between the feeder and it."""
    weight: str | None = None
    """The tensor it multiplies with, which may be another module's (tied weights)."""
    weight_size: int = 0
    used_elsewhere: bool = False
    """Its tensors are also used without calling it, so nothing may be changed in its backward."""


@dataclass(frozen=True)
class Product:
    """A product of matrices that no module of a known kind makes: attention, a user's own layer."""

    flops: float
    """Of the forward pass, per example. The gradient of an operand takes as many."""
    operands: tuple[tuple[str, ...], ...]
    """The modules and bare parameters that each operand comes from."""
    sliced: str | None = None
    """The tensor that is its last operand, if its gradient is computed for trained rows only."""
    joint: float = 0.0
    """For fused kernels: all gradients together take this many times the forward pass."""


@dataclass(frozen=True)
class About:
    """How a layer was cut and why, or why something is not a layer; for people."""

    name: str
    kind: str
    how: str
    size: int = 0
    is_layer: bool = True


def from_plain(kind: type[Any], entry: Mapping[str, Any]) -> Any:
    """One of the above from JSON."""
    return kind(**{key: _tuples(value) for key, value in entry.items()})


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
