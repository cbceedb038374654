"""What one client holds, trains and uploads in a round.

:class:`Assignment` has two implementations: :class:`SliceAssignment` (the client holds the whole
model and trains some sub-layers of every layer) and
:class:`fedplt.planning.submodels.SubmodelAssignment` (it holds a smaller model and trains all of
it). Callers do not need to know which one they have.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol, TypeVar

from fedplt.planning.layers import FlatIndex, Layers, Ranges, Segments, TensorSpec, merge

if TYPE_CHECKING:
    from fedplt.planning.submodels import Spaces, SubmodelAssignment

Normalizer = Literal["contributors", "participants"]
Scaler = Literal["none", "normed", "all", "inputs"]


@dataclass(frozen=True)
class LocalRecipe:
    """What a method changes in local training and aggregation, as data."""

    normalizer: Normalizer = "contributors"
    """Divide the sum of updates by the weights of the clients that trained the coordinate, or of
    all that took part (then one that did not train it counts as an update of 0)."""
    local_norms: bool = False
    """Each client keeps its own normalization layers and never uploads them."""
    static_norm: bool = False
    """Running statistics do not change in training; they are gathered before an evaluation."""
    masked_loss: bool = False
    """Set outputs of classes that the client has no examples of to 0 before the loss."""
    scaler: Scaler = "none"
    """In training, divide by the width rate: the outputs of hidden layers (``normed``: only of
    those before a normalization layer; ``all``: of all), or the inputs of layers."""
    evaluate_frozen_norms: bool = False
    """Normalization layers without a trained row are in evaluation mode during training."""


DEFAULT_RECIPE = LocalRecipe()


Built_co = TypeVar("Built_co", covariant=True)

Rows = tuple[tuple[int, int], ...]
"""Rows of a tensor along its sliced axis, as ascending ``(start, stop)`` pairs."""


class TrainedPart(NamedTuple):
    """The trained rows of one tensor, and the segment of their values, ``start`` to ``stop``."""

    tensor: TensorSpec
    layer_index: int
    rows: Rows
    start: int
    stop: int


class ModelBuilder(Protocol[Built_co]):
    """Builds the model that a client holds."""

    def whole(self, assignment: SliceAssignment) -> Built_co: ...

    def smaller(self, assignment: SubmodelAssignment) -> Built_co: ...


class Assignment(Protocol):
    """What one client holds, trains and uploads in one round."""

    layers: Layers
    """The layers of the whole model."""
    local: frozenset[str]
    """Tensors that are trained but stay on the client."""
    slices: tuple[Ranges, ...]
    """Per layer, the sub-layers of which the client trains at least one row."""
    holds_whole_model: ClassVar[bool]
    """The client holds the whole model and trains slices of it, not a smaller model."""
    spaces: Spaces | None = None
    """The coupled units that a smaller model is cut by; None for the whole model."""
    rate: float = 1.0
    """The width rate of a sub-model, before rounding to whole units; 1 for the whole model."""

    @property
    def on_client(self) -> SliceAssignment:
        """The same assignment in the layers of the model that the client holds."""

    @property
    def received(self) -> FlatIndex:
        """The values that the client receives, in the whole model's flat state."""

    @property
    def uploaded(self) -> FlatIndex:
        """The values that it uploads, in the whole model's flat state."""

    @property
    def layer_ratios(self) -> tuple[float, ...]:
        """Trained fraction of each layer."""

    @property
    def cost_key(self) -> Hashable:
        """Assignments of one plan with the same key cost the same FLOPs."""

    def scaled_modules(self, scaler: Scaler) -> list[str]:
        """Modules whose outputs (or inputs) are divided by the rate, in training."""
        return []

    def build(self, builder: ModelBuilder[Built_co]) -> Built_co:
        """Build the model that the client holds with ``builder``."""

    def to_message(self) -> dict[str, Any]:
        """Plain values to send to a client, which reads them with :meth:`fedplt.Plan.read`."""

    @property
    def parameter_segments(self) -> Segments:
        """The segments of an *update* that hold parameters, not buffers."""
        return self.on_client.parameter_segments

    @property
    def update_size(self) -> int:
        """Values in an update: trained parameters and their layers' buffers."""
        return self.on_client.update_size

    @property
    def num_trained(self) -> int:
        """Number of trained parameters, without buffers."""
        return self.on_client.num_trained

    @property
    def ratio(self) -> float:
        """Trained fraction of the model's parameters, after rounding to whole sub-layers."""
        return self.num_trained / self.layers.size

    def __repr__(self) -> str:
        trained = f"{self.num_trained:,} of {self.layers.size:,} parameters"
        return f"<{type(self).__name__}: {trained}>"


@dataclass(frozen=True, repr=False)
class SliceAssignment(Assignment):
    """A client that holds the whole model and trains some sub-layers of every layer."""

    layers: Layers
    slices: tuple[Ranges, ...]
    local: frozenset[str] = frozenset()
    holds_whole_model: ClassVar[bool] = True

    @property
    def on_client(self) -> SliceAssignment:
        return self

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of trained sub-layers of each layer."""
        return tuple(sum(len(part) for part in ranges) for ranges in self.slices)

    @property
    def layer_ratios(self) -> tuple[float, ...]:
        pairs = zip(self.counts, self.layers.num_sublayers, strict=True)
        return tuple(count / number for count, number in pairs)

    @property
    def num_trained(self) -> int:
        pairs = zip(self.counts, self.layers, strict=True)
        return sum(count * layer.sublayer_size for count, layer in pairs)

    def build(self, builder: ModelBuilder[Built_co]) -> Built_co:
        return builder.whole(self)

    @property
    def received(self) -> FlatIndex:
        return FlatIndex([(0, self.layers.state_size)])

    @cached_property
    def trained_rows(self) -> tuple[tuple[TensorSpec, Rows], ...]:
        """The trained rows of every tensor that has some, in the order of the flat state."""
        return tuple((part.tensor, part.rows) for part in self.trained_parts)

    @cached_property
    def trained_parts(self) -> tuple[TrainedPart, ...]:
        """Every tensor with trained rows; segments count the trained values."""
        return self._parts(without=())

    @cached_property
    def update_parts(self) -> tuple[TrainedPart, ...]:
        """Those that leave the client; segments count the values of an update."""
        return self._parts(without=self.local)

    def _parts(self, without: Collection[str]) -> tuple[TrainedPart, ...]:
        parts, place = [], 0
        for _, index, tensor in self.layers.placed:
            rows = tuple(tensor.rows(self.slices[index], self.layers[index].num_sublayers))
            if rows and tensor.name not in without:
                stop = place + sum(end - begin for begin, end in rows) * tensor.row_size
                parts.append(TrainedPart(tensor, index, rows, place, stop))
                place = stop
        return tuple(parts)

    @cached_property
    def uploaded(self) -> FlatIndex:
        leaving = (
            (begin, begin + (stop - start) * tensor.row_size)
            for tensor, start, stop, begin in self.layers.tensor_segments(self.slices)
            if tensor.name not in self.local
        )
        return FlatIndex(merge(leaving))

    @cached_property
    def parameter_segments(self) -> Segments:
        parts = self.update_parts
        return merge((part.start, part.stop) for part in parts if not part.tensor.is_buffer)

    @cached_property
    def update_size(self) -> int:
        return self.uploaded.size

    @property
    def cost_key(self) -> Hashable:
        return "slices", self.counts

    def to_message(self) -> dict[str, Any]:
        pairs = [[[part.start, part.stop] for part in ranges] for ranges in self.slices]
        return {"slices": pairs}


def whole_assignment(layers: Layers, local: frozenset[str] = frozenset()) -> SliceAssignment:
    """The assignment that trains the whole model."""
    everything = tuple((range(number),) for number in layers.num_sublayers)
    return SliceAssignment(layers, everything, local)
