"""What one client holds, trains and uploads: the questions that everybody asks.

There are two kinds of answers: :class:`SliceAssignment` (the client holds the whole model and
trains some sub-layers of every layer) and
:class:`fedplt.planning.submodel_assignment.SubmodelAssignment` (it holds a smaller model and trains
all of it). Nobody else needs to know which one it is.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedplt.planning.layers import Layers, Ranges, TensorSpec, merge
from fedplt.planning.places import Places, Segments
from fedplt.planning.recipe import Scaler

if TYPE_CHECKING:
    from fedplt.planning.submodel_assignment import SubmodelAssignment

Built_co = TypeVar("Built_co", covariant=True)

Rows = tuple[tuple[int, int], ...]
"""Rows of a tensor along its sliced axis, as ascending ``(start, stop)`` pairs."""


class BlockWeights(Protocol):
    """Counts how much weight each block of the model was trained with."""

    def count_sublayers(self, slices: tuple[Ranges, ...], weight: float) -> None: ...

    def count_positions(self, positions: NDArray[np.int64], weight: float) -> None: ...


class ModelBuilder(Protocol[Built_co]):
    """Gives the model that a client holds."""

    def whole(self) -> Built_co: ...

    def smaller(self, assignment: SubmodelAssignment) -> Built_co: ...


class Assignment(Protocol):
    """One client's part in one round."""

    @property
    def layers(self) -> Layers:
        """Of the whole model."""

    @property
    def slices(self) -> tuple[Ranges, ...]:
        """Sub-layers of every layer of which the client trains something."""

    @property
    def local(self) -> frozenset[str]:
        """Tensors that are trained but never leave the client."""

    @property
    def on_client(self) -> SliceAssignment:
        """What the client's own model trains, in that model's layers."""

    @property
    def received(self) -> Places:
        """The model that the client holds, in the whole model's flat state."""

    @property
    def uploaded(self) -> Places:
        """What it sends, in the whole model's flat state."""

    @property
    def parameter_segments(self) -> Segments:
        """The segments of an *update* that hold parameters, not buffers."""

    @property
    def update_size(self) -> int:
        """Numbers in an update: trained parameters and their layers' buffers."""

    @property
    def num_trained(self) -> int:
        """Trained parameters (buffers do not count)."""

    @property
    def ratio(self) -> float:
        """Achieved fraction of the model's parameters."""

    @property
    def layer_ratios(self) -> tuple[float, ...]:
        """Achieved fraction of each layer."""

    @property
    def rate(self) -> float:
        """The fraction of units that a smaller model was meant to keep; 1 for the whole model."""

    def scaled_modules(self, scaler: Scaler) -> list[str]:
        """Modules whose outputs (or inputs) are divided by the rate, in training."""

    def build(self, builder: ModelBuilder[Built_co]) -> Built_co:
        """The model that the client holds, from who can build it."""

    @property
    def cost_key(self) -> Hashable:
        """Assignments of one plan with the same key cost the same FLOPs."""

    def weigh(self, weights: BlockWeights, weight: float) -> None:
        """Count what is trained, block by block."""

    def to_message(self) -> dict[str, Any]:
        """What a client must be told; :meth:`fedplt.Plan.read` understands it."""


@dataclass(frozen=True)
class SliceAssignment:
    """A client that holds the whole model and trains some sub-layers of every layer."""

    layers: Layers
    slices: tuple[Ranges, ...]
    local: frozenset[str] = frozenset()

    @property
    def on_client(self) -> SliceAssignment:
        return self

    @property
    def counts(self) -> tuple[int, ...]:
        """Trained sub-layers of every layer."""
        return tuple(sum(len(part) for part in ranges) for ranges in self.slices)

    @property
    def layer_ratios(self) -> tuple[float, ...]:
        return tuple(
            count / layer.num_sublayers
            for count, layer in zip(self.counts, self.layers, strict=True)
        )

    @property
    def num_trained(self) -> int:
        pairs = zip(self.counts, self.layers, strict=True)
        return sum(count * layer.sublayer_size for count, layer in pairs)

    @property
    def ratio(self) -> float:
        return self.num_trained / self.layers.size

    @property
    def rate(self) -> float:
        return 1.0

    def scaled_modules(self, scaler: Scaler) -> list[str]:
        return []

    def build(self, builder: ModelBuilder[Built_co]) -> Built_co:
        return builder.whole()

    @property
    def received(self) -> Places:
        return Places([(0, self.layers.state_size)])

    @cached_property
    def trained_rows(self) -> tuple[tuple[TensorSpec, Rows], ...]:
        """The trained rows of every tensor that has some, in the order of the flat state."""
        result = []
        for placed in self.layers.placed:
            layer, index = self.layers[placed.layer_index], placed.layer_index
            rows = tuple(placed.tensor.rows(self.slices[index], layer.num_sublayers))
            if rows:
                result.append((placed.tensor, rows))
        return tuple(result)

    @cached_property
    def uploaded(self) -> Places:
        return Places(
            merge(
                (begin, begin + (stop - start) * tensor.row_size)
                for tensor, start, stop, begin in self.layers.tensor_segments(self.slices)
                if tensor.name not in self.local
            )
        )

    @cached_property
    def parameter_segments(self) -> Segments:
        segments, place = [], 0
        for tensor, rows in self.trained_rows:
            if tensor.name in self.local:
                continue
            size = sum(stop - start for start, stop in rows) * tensor.row_size
            if not tensor.is_buffer:
                segments.append((place, place + size))
            place += size
        return merge(iter(segments))

    @cached_property
    def update_size(self) -> int:
        return self.uploaded.size

    @property
    def cost_key(self) -> Hashable:
        return "slices", self.counts

    def weigh(self, weights: BlockWeights, weight: float) -> None:
        weights.count_sublayers(self.slices, weight)

    def to_message(self) -> dict[str, Any]:
        pairs = [[[part.start, part.stop] for part in ranges] for ranges in self.slices]
        return {"slices": pairs}


def whole_assignment(layers: Layers, local: frozenset[str] = frozenset()) -> SliceAssignment:
    """Everything is trained."""
    everything = tuple((range(number),) for number in layers.num_sublayers)
    return SliceAssignment(layers, everything, local)
