"""Plans of methods whose clients hold a smaller dense model: some units of every space.

A client that holds every unit has an ordinary, whole assignment.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from fedplt.errors import CutError
from fedplt.planning.allocation import Allocation
from fedplt.planning.assignment import Assignment, whole_assignment
from fedplt.planning.layers import Layers
from fedplt.planning.plan import Plan, make_plan
from fedplt.planning.submodels import Spaces, SubmodelAssignment, Units

_NEGLIGIBLE = 1e-9


def kept_units(width: int, rate: float) -> int:
    r"""Units that a width rate keeps: :math:`\lceil K s \rceil`, at least 1.

    >>> kept_units(16, 0.25), kept_units(10, 0.25)
    (4, 3)
    """
    return max(1, min(width, math.ceil(width * rate - _NEGLIGIBLE)))


def submodel_sizes(layers: Layers, spaces: Spaces, rates: Iterable[float]) -> NDArray[np.float64]:
    """The number of parameters that each width rate keeps."""
    kept = np.array([[kept_units(w, s) for w in spaces.widths] for s in rates], dtype=float)
    return spaces.num_parameters(layers, kept, squares=kept**2)


def closest_rates(
    layers: Layers, spaces: Spaces, ratios: NDArray[np.float64], allowed: Sequence[float] | None
) -> NDArray[np.float64]:
    """Per client, the width rate whose sub-model is closest to its ratio (ties: the smaller).

    Tries the allowed rates; by default, all rates at which some layer gains a unit.
    """
    rates = {round(i / width, 12) for width in spaces.widths for i in range(1, width + 1)}
    candidates = np.array(sorted(allowed or rates or {1.0}))
    sizes = submodel_sizes(layers, spaces, candidates)
    distinct, inverse = np.unique(ratios, return_inverse=True)
    errors = np.abs(sizes[None, :] - distinct[:, None] * layers.size)
    return np.asarray(candidates[np.argmin(errors, axis=1)][inverse.reshape(-1)])


def expected_sizes(
    layers: Layers, spaces: Spaces, keep_rates: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Mean number of parameters of a sub-model whose units are each kept with this probability.

    A space that would be empty keeps one unit.
    """
    widths = np.asarray(spaces.widths, dtype=float)
    rates = keep_rates[:, None]
    empty = (1 - rates) ** widths
    mean = widths * rates + empty
    squares = widths * rates * (1 - rates) + (widths * rates) ** 2 + empty
    return spaces.num_parameters(layers, mean, squares=squares)


def expected_keep_rates(
    layers: Layers, spaces: Spaces, ratios: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Per client, the keep rate whose sub-model has its ratio on average, by bisection.

    The widest space keeps at least one unit on average: a smaller rate would hardly change the
    size, and activations are divided by the rate.
    """
    low, high = np.zeros(len(ratios)), np.ones(len(ratios))
    for _ in range(60):
        middle = (low + high) / 2
        small = expected_sizes(layers, spaces, middle) < ratios * layers.size
        low, high = np.where(small, middle, low), np.where(small, high, middle)
    least = 1 / max(spaces.widths, default=1)
    return np.where(ratios >= 1, 1.0, np.maximum(high, least))


class UnitRule(Protocol):
    """A rule for which units a client holds; a method implements it (a frozen dataclass)."""

    name: ClassVar[str]
    is_random: ClassVar[bool]
    """Whether the number of held units is drawn at random in each round."""

    @property
    def reference(self) -> str:
        """The name by which any process finds the rule."""

    def select_units(
        self, width: int, rate: float, *, space: int, seed: int, round: int, client: int
    ) -> Units:
        """The held units of a space of this width, ascending; at least one."""


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class SubmodelPlan(Plan):
    """All clients' sub-models, computed on demand from one width rate per client.

    ``counts`` are the numbers of sub-layers of which a client holds a row, in the first round.
    """

    clients_hold_everything: ClassVar[bool] = False
    spaces: Spaces
    rates: NDArray[np.float64]
    rule: UnitRule
    seed: int

    @property
    def costs_change(self) -> bool:
        return self.rule.is_random

    def assignment(self, client: int, round: int = 0) -> Assignment:
        self._check(client)
        held, rate = self.held_units(client, round), self.rate(client, round)
        whole = all(len(u) == width for u, width in zip(held, self.spaces.widths, strict=True))
        if whole and (rate >= 1 or not self.rule.is_random):  # otherwise the scaler needs its rate
            return whole_assignment(self.layers, self.local)
        return SubmodelAssignment(self.layers, self.local, self.spaces, held, rate)

    def rate(self, client: int, round: int) -> float:
        """The width rate of a client in a round."""
        return float(self.rates[client])

    def held_units(self, client: int, round: int) -> tuple[Units, ...]:
        """The units of each space that a client holds in a round."""
        select, rate = self.rule.select_units, self.rate(client, round)
        return tuple(
            select(width, rate, space=i, seed=self.seed, round=round, client=client)
            for i, width in enumerate(self.spaces.widths)
        )

    def coupled_units(self) -> Spaces:
        return self.spaces

    @cached_property
    def _clients_by_rate(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """One client per distinct rate, and for each client the index of its rate."""
        _, first, inverse = np.unique(self.rates, return_index=True, return_inverse=True)
        return first, inverse.reshape(-1)

    def of_each_client(self, value: Callable[[Assignment], Any]) -> NDArray[Any]:
        """A value of the first round's assignments, (clients, ...); computed once per rate."""
        first, inverse = self._clients_by_rate
        return np.array([value(self.assignment(int(k))) for k in first])[inverse]

    @property
    def one_of_each_kind(self) -> NDArray[np.int64]:
        """A client of every width rate."""
        return self._clients_by_rate[0]

    @cached_property
    def achieved_ratios(self) -> NDArray[np.float64]:
        """Trained fraction of the model, per client (its mean if units are drawn)."""
        if self.rule.is_random:
            return expected_sizes(self.layers, self.spaces, self.rates) / self.layers.size
        return self.of_each_client(lambda assignment: assignment.ratio)

    @cached_property
    def update_sizes(self) -> NDArray[np.int64]:
        """Values in each client's update (an upper bound if units are drawn)."""
        if self.rule.is_random:
            whole = whole_assignment(self.layers, self.local).update_size
            return np.full(self.num_clients, whole)
        return self.of_each_client(lambda assignment: assignment.update_size)

    @cached_property
    def layer_ratios(self) -> NDArray[np.float64]:
        """Trained fraction of each layer in the first round; the same for clients of one rate."""
        return self.of_each_client(lambda assignment: assignment.layer_ratios)

    @cached_property
    def coverage(self) -> tuple[NDArray[np.int64], ...]:
        """Per layer, the number of clients that hold a row of each sub-layer in the first round."""
        result = tuple(np.zeros(layer.num_sublayers, dtype=np.int64) for layer in self.layers)
        for number, client in zip(*self._representatives, strict=True):
            slices = self.assignment(int(client)).slices
            for clients, ranges in zip(result, slices, strict=True):
                for part in ranges:
                    clients[part.start : part.stop] += number
        return result

    @property
    def _representatives(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Numbers of clients that are alike, and one client of each kind."""
        if self.rule.is_random:
            return np.ones(self.num_clients, dtype=np.int64), np.arange(self.num_clients)
        first, inverse = self._clients_by_rate
        return np.bincount(inverse), first

    def _coverage_in_time(self) -> tuple[NDArray[np.int64], ...]:
        """Units that move or are drawn reach all sub-layers in time."""
        widest = int(np.argmax(self.rates))
        now = self.assignment(widest).slices
        if any(self.assignment(widest, round).slices != now for round in range(1, 9)):
            return tuple(np.ones(number, dtype=np.int64) for number in self.layers.num_sublayers)
        return self.coverage

    def _advice(self, covered: int, total: int) -> str:
        return "Give some client a larger ratio: its sub-model must be wide enough."

    def _extras(self) -> dict[str, Any]:
        options: Any = self.rule
        return {
            **super()._extras(),
            "method": {"name": self.rule.reference, **asdict(options)},
            "seed": self.seed,
            "spaces": self.spaces.to_json(),
            "rates": self.rates.tolist(),
        }


def submodel_plan(
    rule: UnitRule,
    layers: Layers,
    spaces: Spaces,
    ratios: Sequence[float | Allocation],
    rates: NDArray[np.float64],
    seed: int,
) -> SubmodelPlan:
    """A plan of sub-models, from one width rate per client.

    A rule may name a subclass of :class:`SubmodelPlan` as its ``plan_kind``.
    """
    always = [layer.name for layer in layers if layer.always]
    if always:
        raise CutError(
            f"a sub-model cannot be cut from this model: layer {always[0]!r} is always trained "
            "whole."
        )
    requested = make_plan(layers, ratios)  # checks the ratios
    if not spaces.widths and requested.ratios.min() < 1:
        raise CutError(
            "a sub-model cannot be cut from this model: it has no hidden units to leave out, so "
            f"every client must train all of it (ratio 1), not {requested.ratios.min():g}."
        )
    kind: type[SubmodelPlan] = getattr(rule, "plan_kind", SubmodelPlan)
    counts = np.zeros((len(rates), len(layers)), dtype=np.int32)
    plan = kind(layers, requested.ratios, counts, spaces=spaces, rates=rates, rule=rule, seed=seed)
    held = plan.of_each_client(lambda assignment: [sum(map(len, r)) for r in assignment.slices])
    return replace(plan, counts=held.astype(np.int32))
