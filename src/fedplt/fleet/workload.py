r"""The work of a client in a round, by training ratio: FLOPs and bytes.

Two models, never mixed (``docs/errata.md``, 2): :class:`ExactWorkload` counts the FLOPs of a model
that was cut with an example input, and the bytes that are sent. :class:`PaperWorkload` is the
paper's :math:`(\alpha + \beta r)\,\tau P` with uploads of :math:`r P s` bytes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedplt.planning import (
    BACKWARD_FLOPS_PER_PARAMETER,
    BYTES_PER_NUMBER,
    FORWARD_FLOPS_PER_PARAMETER,
    Allocation,
    Assignment,
    Encoding,
    Layers,
    Turns,
    balanced_ratios,
    download_bytes,
    exact_flops,
    make_plan,
    next_counts,
    sublayers_assignment,
    upload_bytes,
)
from fedplt.text import counted


@dataclass(frozen=True)
class Work:
    """FLOPs and bytes of one client in one round."""

    forward_flops: float
    backward_flops: float
    bytes_down: float
    bytes_up: float

    @property
    def flops(self) -> float:
        return self.forward_flops + self.backward_flops


Peak = Callable[[Assignment, int, int | None], float]
"""Peak memory of training in bytes, by assignment, batch size and micro-batch."""


class Workload(ABC):
    """The work of a round, by training ratio."""

    is_linear: ClassVar[bool]
    """Whether work is linear in the ratio between knots; else it grows in steps, by sub-layer."""
    local_steps: int
    batch_size: int

    @property
    def part_sizes(self) -> list[int]:
        """Allowed micro-batch sizes, largest first; a planner chooses by memory."""
        return [self.batch_size]

    @property
    def num_layers(self) -> int:
        """Number of layers; 1 if layers are not known."""
        return 1

    @property
    def always_ratio(self) -> float:
        """Fraction of the model in layers that every client trains."""
        return 0.0

    def work(self, ratio: float, *, frozen: int = 0) -> Work:
        """The work of a single client that does not train the first ``frozen`` layers."""
        return self.next_work(ratio, 1, frozen=frozen)[0][0]

    def next_work(
        self,
        ratio: float,
        num_clients: int,
        turns: Turns | None = None,
        *,
        local_steps: int | None = None,
        frozen: int = 0,
    ) -> tuple[list[Work], Turns | None]:
        """The work of the next clients of a fleet, all with this ratio, and the updated turns.

        The list has several entries if clients take turns (:data:`fedplt.planning.Turns`).
        """
        kinds, turns = self._kinds(ratio, num_clients, turns, frozen)
        steps = local_steps or self.local_steps
        return [self._work(kind, steps) for kind in kinds], turns

    def memory_bytes(
        self,
        ratio: float,
        num_clients: int = 1,
        turns: Turns | None = None,
        *,
        frozen: int = 0,
        part_size: int | None = None,
    ) -> float:
        """Peak memory of any of these clients, in bytes; by default with whole batches."""
        kinds, _ = self._kinds(ratio, num_clients, turns, frozen)
        return max(self._memory(kind, part_size or self.part_sizes[0]) for kind in kinds)

    @abstractmethod
    def _kinds(
        self, ratio: float, num_clients: int, turns: Turns | None, frozen: int
    ) -> tuple[list[Any], Turns | None]:
        """The distinct assignments of these clients (opaque values), and the updated turns."""

    @abstractmethod
    def _work(self, kind: Any, local_steps: int) -> Work: ...

    @abstractmethod
    def _memory(self, kind: Any, part_size: int) -> float: ...

    @abstractmethod
    def knots(self, frozen: int = 0) -> NDArray[np.float64]:
        """Ratios to start a search from, ascending; the last one trains all but frozen layers."""

    @abstractmethod
    def describe(self) -> str: ...


@dataclass(frozen=True)
class PaperWorkload(Workload):
    """The paper's model: the whole backward pass and the upload scale with the ratio.

    >>> work = PaperWorkload(5_000_000, local_steps=150).work(0.5)
    >>> work.flops / 1e9, work.bytes_up / 1e6
    (3.0, 10.0)
    """

    is_linear: ClassVar[bool] = True

    num_parameters: int
    local_steps: int
    batch_size: int = 1
    bytes_per_parameter: float = BYTES_PER_NUMBER

    def _kinds(
        self, ratio: float, num_clients: int, turns: Turns | None, frozen: int
    ) -> tuple[list[float], None]:
        return [ratio], None

    def _work(self, ratio: float, local_steps: int) -> Work:
        examples, number = local_steps * self.batch_size, self.num_parameters
        size = number * self.bytes_per_parameter
        forward = FORWARD_FLOPS_PER_PARAMETER * examples * number
        backward = BACKWARD_FLOPS_PER_PARAMETER * ratio * examples * number
        return Work(forward, backward, size, ratio * size)

    def _memory(self, ratio: float, part_size: int) -> float:
        """The model, plus gradients and update of the trained part; activations are not known."""
        return (1 + 2 * ratio) * self.num_parameters * self.bytes_per_parameter

    def knots(self, frozen: int = 0) -> NDArray[np.float64]:
        return np.array([0.0, 1.0])

    def describe(self) -> str:
        return (
            f"{counted(self.num_parameters, 'parameter')}, "
            f"{counted(self.local_steps, 'local step')} of {self.batch_size}, "
            "the paper's cost model"
        )


@dataclass(frozen=True, eq=False)
class ExactWorkload(Workload):
    """FLOPs counted from the layers, for the whole sub-layers that a plan gives to a client."""

    is_linear: ClassVar[bool] = False

    layers: Layers
    local_steps: int
    batch_size: int = 64
    num_examples: int | None = None
    """Upper bound of the examples seen in a round; by default all batches are full."""
    peak: Peak | None = None
    """Counts memory, such as :meth:`fedplt.client.training_memory.MemoryCounter.peak`. Default: the
    model, plus the gradients and the update of the trained part, without activations."""
    may_split: bool = False
    """Whether batches may be split into micro-batches to save memory."""
    micro_batch: int | None = None
    """The run's ``training.micro_batch``."""
    up: Encoding = "float32"
    down: Encoding = "float32"
    """The run's ``[messages]``."""

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def always_ratio(self) -> float:
        return sum(layer.size for layer in self.layers if layer.always) / self.layers.size

    @lru_cache(maxsize=2**14)  # noqa: B019 (plans ask for the same ratios)
    def _kinds(
        self, ratio: float, num_clients: int, turns: Turns | None, frozen: int
    ) -> tuple[list[tuple[int, ...]], Turns]:
        """Numbers of trained sub-layers of every layer."""
        share = planned_share(self.layers, ratio, frozen)
        counts, after = next_counts(self.layers, [share] * num_clients, turns)
        return list(dict.fromkeys(map(tuple, counts.tolist()))), after

    @property
    def part_sizes(self) -> list[int]:
        largest = min(self.micro_batch or self.batch_size, self.batch_size)
        powers = (2**n for n in reversed(range((largest - 1).bit_length())))
        return [largest, *powers] if self.may_split and self.peak else [largest]

    def _work(self, counts: tuple[int, ...], local_steps: int) -> Work:
        examples = self._num_seen(local_steps)
        forward, download = self._forward_and_download
        backward, upload = self._costs(counts)
        return Work(examples * forward, examples * backward, download, upload)

    @cache  # noqa: B019 (a process has few workloads)
    def _memory(self, counts: tuple[int, ...], part_size: int) -> float:
        assignment = sublayers_assignment(self.layers, counts)
        if self.peak is None:
            return download_bytes(assignment) + 2 * upload_bytes(assignment)
        return self.peak(assignment, self.batch_size, part_size)

    def _num_seen(self, local_steps: int) -> int:
        full = local_steps * self.batch_size
        return full if self.num_examples is None else min(full, self.num_examples)

    @cache  # noqa: B019 (a process has few workloads)
    def _costs(self, counts: tuple[int, ...]) -> tuple[int, int]:
        """Backward FLOPs per example and bytes of an update, for sub-layers of every layer."""
        assignment = sublayers_assignment(self.layers, counts)
        flops = exact_flops(assignment)
        return flops.total - flops.forward, upload_bytes(assignment, self.up)

    @cached_property
    def _forward_and_download(self) -> tuple[int, int]:
        """Forward FLOPs per example and bytes of the model: the same at any ratio."""
        whole = make_plan(self.layers, [1.0]).assignment(0)
        return exact_flops(whole).forward, download_bytes(whole, self.down)

    @cache  # noqa: B019 (a process has few workloads)
    def knots(self, frozen: int = 0) -> NDArray[np.float64]:
        kept = [layer.size for i, layer in enumerate(self.layers) if i >= frozen or layer.always]
        most, least = sum(kept) / self.layers.size, self.always_ratio
        small = np.geomspace(max(1e-3 * most, least), most, 60)
        grid = np.concatenate([small, np.linspace(0.02, most, 50)])
        return np.unique(np.clip(grid, least, most))

    def describe(self) -> str:
        seen = ""
        if self._num_seen(self.local_steps) < self.local_steps * self.batch_size:
            seen = f" ({self.num_examples:,} in all)"
        return (
            f"{counted(self.layers.size, 'parameter')} in {counted(len(self.layers), 'layer')}, "
            f"{counted(self.local_steps, 'local step')} of {counted(self.batch_size, 'example')}"
            f"{seen}, exact FLOPs"
        )


def planned_share(layers: Layers, ratio: float, frozen: int) -> float | Allocation:
    """A client's share for a plan: the ratio, or an allocation without the frozen layers.

    The ratio is of the whole model. Layers that are always trained count towards it.
    """
    if not frozen:
        return ratio
    layer_ratios = balanced_ratios(layers, np.array([ratio]), frozen)[0]
    return Allocation(layers.sizes, tuple(layer_ratios.tolist()))
