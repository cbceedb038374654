"""What one client trains: stretches of sub-layers of every layer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from fedplt.planning.layers import Layers, Ranges, merge


@dataclass(frozen=True)
class Assignment:
    """The sub-layers of every layer that one client trains."""

    layers: Layers
    slices: tuple[Ranges, ...]
    local: frozenset[str] = frozenset()
    """Tensors that are trained but never leave the client (FedBN's norms)."""

    @property
    def dense(self) -> Assignment:
        """What the client's model trains, in that model's own layers."""
        return self

    @property
    def is_submodel(self) -> bool:
        """Whether the client holds a smaller model than the server's."""
        return False

    @property
    def counts(self) -> tuple[int, ...]:
        return tuple(sum(len(part) for part in ranges) for ranges in self.slices)

    @property
    def layer_ratios(self) -> tuple[float, ...]:
        """Achieved fraction of each layer."""
        return tuple(
            count / layer.num_sublayers
            for count, layer in zip(self.counts, self.layers, strict=True)
        )

    @property
    def num_trained(self) -> int:
        """Trained parameters (buffers do not count)."""
        pairs = zip(self.counts, self.layers, strict=True)
        return sum(count * layer.sublayer_size for count, layer in pairs)

    @property
    def ratio(self) -> float:
        """Achieved fraction of the model's parameters."""
        return self.num_trained / self.layers.size

    @cached_property
    def segments(self) -> list[tuple[int, int]]:
        """What is uploaded, as ``(start, stop)`` stretches of the model's flat state."""
        if not self.local:
            return self.layers.segments(self.slices)
        return merge(
            (begin, begin + (stop - start) * tensor.row_size)
            for tensor, start, stop, begin in self.layers.tensor_segments(self.slices)
            if tensor.name not in self.local
        )

    @cached_property
    def parameter_segments(self) -> list[tuple[int, int]]:
        """The ``(start, stop)`` stretches of an update that hold parameters, not buffers."""
        stretches, place = [], 0
        for tensor, start, stop, _ in self.layers.tensor_segments(self.slices):
            if tensor.name in self.local:
                continue
            size = (stop - start) * tensor.row_size
            if not tensor.is_buffer:
                stretches.append((place, place + size))
            place += size
        return merge(iter(stretches))

    @cached_property
    def update_size(self) -> int:
        """Numbers in an update: trained parameters and their layers' buffers."""
        return sum(stop - start for start, stop in self.segments)
