"""Plans of methods whose clients hold a smaller dense model: some units of every space.

Unlike partial training, a client neither receives nor computes with what it does not hold. It
trains all that it holds. A client that holds everything has a usual, whole assignment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from fedplt.errors import PlanError
from fedplt.planning.allocation import Allocation
from fedplt.planning.assignment import Assignment
from fedplt.planning.coupled_units import Spaces, Units
from fedplt.planning.layers import Layers, Ranges, merge
from fedplt.planning.plan import Plan, Uncovered, make_plan
from fedplt.planning.width_rates import expected_sizes

NO_SPACES = Spaces((), ())


class Keep(Protocol):
    """A rule for which units a client holds; a method is one (a frozen dataclass with a name)."""

    name: ClassVar[str]
    is_random: ClassVar[bool]
    """How many units are held is drawn anew every round."""

    @property
    def reference(self) -> str:
        """What finds the rule again, in another process too."""

    def keep(
        self, width: int, rate: float, *, space: int, seed: int, round: int, client: int
    ) -> Units:
        """The held units of a space of this width, ascending; never none."""


@dataclass(frozen=True, eq=False)
class SubmodelAssignment(Assignment):
    """One client's sub-model in one round."""

    spaces: Spaces = NO_SPACES
    held: tuple[Units, ...] = ()
    """Held units of every space."""
    rate: float = 1.0
    """The fraction of units that the method meant to keep (the scaler's number)."""

    @property
    def is_submodel(self) -> bool:
        return True

    @cached_property
    def dense(self) -> Assignment:
        submodel = self.spaces.submodel(self.layers, [len(units) for units in self.held])
        return Assignment(submodel, ((range(1),),) * len(submodel), self.local)

    @property
    def positions(self) -> NDArray[np.int64]:
        """Of the sub-model's flat state in the whole model's flat state (large: not kept)."""
        return self.spaces.positions(self.layers, self.held)

    @property
    def shared_positions(self) -> NDArray[np.int64]:
        """The same of what is uploaded."""
        if not self.local:
            return self.positions
        positions = self.positions
        return np.concatenate([positions[start:stop] for start, stop in self.dense.segments])

    @property
    def counts(self) -> tuple[int, ...]:
        return tuple(len(units) for units in self.held)

    @property
    def layer_ratios(self) -> tuple[float, ...]:
        pairs = zip(self.dense.layers.sizes, self.layers.sizes, strict=True)
        return tuple(held / size for held, size in pairs)

    @property
    def num_trained(self) -> int:
        return self.dense.layers.size

    @cached_property
    def segments(self) -> list[tuple[int, int]]:
        where = self.shared_positions
        ends = np.flatnonzero(np.diff(where) != 1)
        starts, stops = where[np.r_[0, ends + 1]], where[np.r_[ends, len(where) - 1]] + 1
        return list(zip(starts.tolist(), stops.tolist(), strict=True))

    @property
    def parameter_segments(self) -> list[tuple[int, int]]:
        return self.dense.parameter_segments

    @property
    def update_size(self) -> int:
        return self.dense.update_size


@dataclass(frozen=True, eq=False, kw_only=True)
class SubmodelPlan(Plan):
    """All clients' sub-models, computed on demand from a width rate each.

    ``counts`` are the sub-layers that a client holds a row of, in the first round.
    """

    spaces: Spaces
    rates: NDArray[np.float64]
    rule: Keep
    seed: int

    def client(self, client: int, round: int = 0) -> Assignment:
        if not 0 <= client < self.num_clients:
            raise PlanError(f"there is no client {client}; clients are 0 to {self.num_clients - 1}")
        rate = float(self.rates[client])
        held = tuple(
            self.rule.keep(width, rate, space=i, seed=self.seed, round=round, client=client)
            for i, width in enumerate(self.spaces.widths)
        )
        whole = all(len(u) == width for u, width in zip(held, self.spaces.widths, strict=True))
        if whole and (rate >= 1 or not self.rule.is_random):  # else its scaler is still needed
            everything = tuple((range(number),) for number in self.layers.num_sublayers)
            return Assignment(self.layers, everything, self.local)
        slices = _touched(self.layers, self.spaces, held)
        return SubmodelAssignment(self.layers, slices, self.local, self.spaces, held, rate)

    @cached_property
    def _alike(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """A client for every rate, and for every client its rate's number."""
        _, first, inverse = np.unique(self.rates, return_index=True, return_inverse=True)
        return first, inverse.reshape(-1)

    @cached_property
    def achieved_ratios(self) -> NDArray[np.float64]:
        """Trained fraction of the model, per client (its mean, where units are drawn)."""
        if self.rule.is_random:
            return expected_sizes(self.layers, self.spaces, self.rates) / self.layers.size
        first, inverse = self._alike
        return np.array([self.client(int(k)).ratio for k in first])[inverse]

    @cached_property
    def update_sizes(self) -> NDArray[np.int64]:
        """Numbers in each client's update; at most, where units are drawn."""
        if self.rule.is_random:
            everything = make_plan(self.layers, [1.0])
            whole = Plan(self.layers, everything.ratios, everything.counts, local=self.local)
            return np.full(self.num_clients, whole.update_sizes[0])
        first, inverse = self._alike
        return np.array([self.client(int(k)).update_size for k in first])[inverse]

    def update_size(self, client: int, round: int) -> int:
        if self.rule.is_random:
            return self.client(client, round).update_size
        return super().update_size(client, round)

    @cached_property
    def layer_ratios(self) -> NDArray[np.float64]:
        """Of the first round, one client for all of the same rate."""
        first, inverse = self._alike
        return np.array([self.client(int(k)).layer_ratios for k in first])[inverse]

    @cached_property
    def coverage(self) -> tuple[NDArray[np.int64], ...]:
        """Per layer, the number of clients that hold a row of each sub-layer in the first round."""
        result = tuple(np.zeros(layer.num_sublayers, dtype=np.int64) for layer in self.layers)
        for number, client in zip(*self._representatives, strict=True):
            slices = self.client(int(client)).slices
            for clients, ranges in zip(result, slices, strict=True):
                for part in ranges:
                    clients[part.start : part.stop] += number
        return result

    @property
    def _representatives(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        if self.rule.is_random:
            return np.ones(self.num_clients, dtype=np.int64), np.arange(self.num_clients)
        first, inverse = self._alike
        return np.bincount(inverse), first

    @cached_property
    def uncovered(self) -> tuple[Uncovered, ...]:
        """Sub-layers that nobody ever holds; where units move or are drawn, there are none."""
        widest = int(np.argmax(self.rates))
        if self.client(widest, round=1).slices != self.client(widest).slices:
            return ()
        result = []
        for layer, clients in zip(self.layers, self.coverage, strict=True):
            missing = np.flatnonzero(clients == 0)
            if len(missing):
                advice = "Give some client a larger ratio: its sub-model must be wide enough."
                where = range(int(missing[0]), int(missing[-1]) + 1)
                result.append(Uncovered(layer.name, where, layer.num_sublayers, advice))
        return tuple(result)

    def _extras(self) -> dict[str, Any]:
        options: Any = self.rule
        return {
            **super()._extras(),
            "method": {"name": self.rule.reference, **asdict(options)},
            "seed": self.seed,
            "spaces": self.spaces.to_json(),
            "rates": self.rates.tolist(),
        }


def _touched(layers: Layers, spaces: Spaces, held: Sequence[Units]) -> tuple[Ranges, ...]:
    """The sub-layers of every layer that have a held row."""
    result = []
    for layer in layers:
        touched = np.zeros(layer.num_sublayers, dtype=bool)
        for tensor in layer.tensors:
            space = spaces.by_tensor[tensor.name].rows
            if space is None:
                touched[:] = True
            else:
                touched[held[space] * layer.num_sublayers // tensor.width] = True
        runs = merge((i, i + 1) for i in np.flatnonzero(touched).tolist())
        result.append(tuple(range(start, stop) for start, stop in runs))
    return tuple(result)


def submodel_plan(
    rule: Keep,
    layers: Layers,
    spaces: Spaces,
    ratios: Sequence[float | Allocation],
    rates: NDArray[np.float64],
    seed: int,
) -> SubmodelPlan:
    """A plan of sub-models, from a rate per client."""
    if any(layer.always for layer in layers):
        raise PlanError(
            f"{rule.name} trains smaller models, so no layer can always be trained whole: leave "
            "out model.always, or use fedplt or fedpmt."
        )
    asked = make_plan(layers, ratios)  # checks the ratios
    if not spaces.widths and asked.ratios.min() < 1:
        raise PlanError(
            f"this model has no hidden units that {rule.name} could leave out, so clients cannot "
            f"train {asked.ratios.min():g} of it. Use fedplt for it, or ratios of 1."
        )
    plan = SubmodelPlan(
        layers, asked.ratios, asked.counts, spaces=spaces, rates=rates, rule=rule, seed=seed
    )
    first, inverse = plan._alike
    counts = np.array([[_number(r) for r in plan.client(int(k)).slices] for k in first])
    plan.counts[:] = counts[inverse]
    return plan


def _number(ranges: Ranges) -> int:
    return sum(len(part) for part in ranges)
