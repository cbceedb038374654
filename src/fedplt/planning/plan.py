"""A plan: assignments of sub-layers to clients, fixed before training starts.

Within a layer, client k takes the next sub-layers after those of client k - 1, wrapping around,
so the number of clients per sub-layer differs by at most one (paper, section IV-A).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedplt.errors import PlanError
from fedplt.planning.allocation import Allocation
from fedplt.planning.assignment import Assignment, SliceAssignment
from fedplt.planning.layers import FlatIndex, Layers
from fedplt.planning.rotation import first_sublayers, rotation_steps, wrapped
from fedplt.planning.rounding import spread_ratios, whole_sublayers
from fedplt.planning.submodels import Spaces, read_assignment
from fedplt.text import counted, html_text, short_names, table


@dataclass(frozen=True)
class Uncovered:
    """Sub-layers of one layer that no client trains, and advice to cover them."""

    layer: str
    sublayers: range
    num_sublayers: int
    advice: str

    def __str__(self) -> str:
        first, last = self.sublayers.start, self.sublayers.stop - 1
        return (
            f"layer {self.layer}: no client trains {len(self.sublayers)} of its "
            f"{self.num_sublayers} sub-layers ({first} to {last}). {self.advice}"
        )


FORMAT = 2
MAX_CACHED = 10_000
"""Assignments that a plan holds in memory from one round to the next."""


class RoundAssignments(dict[int, Assignment]):
    """The assignments of one round, by client; each is computed once, on first use."""

    def __init__(self, plan: Plan, round: int) -> None:
        self._plan, self._round = plan, round

    def __missing__(self, client: int) -> Assignment:
        self[client] = found = self._plan.assignment(client, self._round)
        return found

    def sublayer_weights(
        self, clients: Sequence[int], weights: NDArray[np.int64]
    ) -> NDArray[np.int64] | None:
        """Of each sub-layer, the summed weight of its clients; None if the plan is no plain one."""
        plan = self._plan
        if type(plan).assignment is not Plan.assignment:
            return None
        chosen = np.asarray(clients, dtype=np.int64)
        starts, counts = plan._starts_in(chosen, self._round), plan.counts[chosen]
        result = []
        for width, start, number in zip(plan.layers.num_sublayers, starts.T, counts.T, strict=True):
            # Two turns of the layer: a run that wraps around ends in the second one.
            changes = np.zeros(2 * width + 1, dtype=np.int64)
            np.add.at(changes, start % width, weights)
            np.subtract.at(changes, start % width + number, weights)
            result.append(changes.cumsum()[:-1].reshape(2, width).sum(axis=0))
        return np.concatenate(result)


@dataclass(frozen=True, eq=False)
class Plan:
    """All clients' assignments, computed on demand from two small arrays."""

    layers: Layers
    ratios: NDArray[np.float64]
    """Requested ratios, (clients,)."""
    counts: NDArray[np.int32]
    """Number of sub-layers that each client trains, (clients, layers)."""
    rotate_every: int = 0
    """Rounds after which all clients move on to other sub-layers; 0: never, as in the paper."""
    local: frozenset[str] = frozenset()
    """Tensors that stay on the clients."""

    clients_hold_everything: ClassVar[bool] = True
    """Every client receives the whole model."""

    @property
    def num_clients(self) -> int:
        return len(self.ratios)

    @property
    def costs_change(self) -> bool:
        """Whether a client's costs differ from round to round."""
        return False

    def assignment(self, client: int, round: int = 0) -> Assignment:
        """The assignment of ``client``; the same in every round unless the plan rotates."""
        self._check(client)
        starts = self._starts_in(client, round)
        each = zip(starts, self.counts[client], self.layers.num_sublayers, strict=True)
        slices = tuple(wrapped(int(start) % total, int(n), total) for start, n, total in each)
        return SliceAssignment(self.layers, slices, self.local)

    def in_round(self, round: int) -> RoundAssignments:
        """All clients' assignments of a round; those of the last round, if they are the same."""
        first = self.first_round_alike(round)
        found = self._latest.get(first)
        if found is None or len(found) > MAX_CACHED:
            self._latest.clear()
            found = self._latest[first] = RoundAssignments(self, first)
        return found

    def first_round_alike(self, round: int) -> int:
        """The first round with the same assignments as this one."""
        if type(self).assignment is not Plan.assignment:
            return round  # a subclass may give other assignments in every round
        return round // self.rotate_every * self.rotate_every if self.rotate_every else 0

    @cached_property
    def _latest(self) -> dict[int, RoundAssignments]:
        return {}

    def read(self, message: Mapping[str, Any]) -> Assignment:
        """An assignment of this plan, from ``Assignment.to_message``."""
        return read_assignment(self.layers, message, self.local, self.coupled_units)

    def coupled_units(self) -> Spaces:
        """What sub-models are cut by."""
        raise PlanError("this plan has slices of the whole model, no sub-models.")

    def _check(self, client: int) -> None:
        if not 0 <= client < self.num_clients:
            raise PlanError(f"there is no client {client}; clients are 0 to {self.num_clients - 1}")

    def _starts_in(self, client: int | NDArray[np.int64], round: int) -> NDArray[np.int64]:
        """First sub-layers of clients, to be taken modulo the number of sub-layers.

        All clients move by the same step, so coverage stays even.
        """
        moves = round // self.rotate_every if self.rotate_every else 0
        return np.asarray(self._starts[client] + moves * self._steps)

    @cached_property
    def _steps(self) -> NDArray[np.int64]:
        return rotation_steps(self.counts, self.layers.num_sublayers)

    @cached_property
    def _starts(self) -> NDArray[np.int64]:
        return first_sublayers(self.counts)

    @property
    def one_of_each_kind(self) -> NDArray[np.int64]:
        """A client of every kind: clients of one kind train as many sub-layers of every layer."""
        return np.unique(self.counts, axis=0, return_index=True)[1]

    @cached_property
    def achieved_ratios(self) -> NDArray[np.float64]:
        """Trained fraction of the model, per client, after rounding to whole sub-layers."""
        weights = np.array([layer.sublayer_size for layer in self.layers], dtype=np.float64)
        return np.asarray(self.counts @ weights / self.layers.size)

    @cached_property
    def update_sizes(self) -> NDArray[np.int64]:
        """Values in each client's update: trained parameters and their layers' buffers."""
        sizes = [
            sum(t.num_elements for t in layer.tensors if t.name not in self.local)
            // layer.num_sublayers
            for layer in self.layers
        ]
        return np.asarray(self.counts @ np.array(sizes, dtype=np.int64))

    @property
    def layer_ratios(self) -> NDArray[np.float64]:
        """Trained fraction of each layer, (clients, layers)."""
        return np.asarray(self.counts / np.asarray(self.layers.num_sublayers))

    @cached_property
    def local_index(self) -> FlatIndex:
        """The places in the flat state of the tensors that stay on the clients."""
        return self.layers.flat_index(self.local)

    @cached_property
    def coverage(self) -> tuple[NDArray[np.int64], ...]:
        """Per layer, the number of clients that train each of its sub-layers."""
        totals = self.counts.sum(axis=0, dtype=np.int64)
        return tuple(
            total // number + (np.arange(number) < total % number)
            for total, number in zip(totals, self.layers.num_sublayers, strict=True)
        )

    @cached_property
    def uncovered(self) -> tuple[Uncovered, ...]:
        """Sub-layers that no client ever trains: they keep their initial values."""
        result = []
        for layer, clients in zip(self.layers, self._coverage_in_time(), strict=True):
            missing = np.flatnonzero(clients == 0)
            if len(missing):
                where = range(int(missing[0]), int(missing[-1]) + 1)
                advice = self._advice(int(clients.sum()), layer.num_sublayers)
                result.append(Uncovered(layer.name, where, layer.num_sublayers, advice))
        return tuple(result)

    def _coverage_in_time(self) -> tuple[NDArray[np.int64], ...]:
        """The coverage over all rounds: 0 for sub-layers that no client ever trains."""
        if not self.rotate_every:
            return self.coverage
        # Steps are coprime to the width, so a trained sub-layer reaches all others in time.
        return tuple(np.full_like(clients, clients.sum()) for clients in self.coverage)

    def _advice(self, covered: int, total: int) -> str:
        if covered == 0:
            return "Give some client a ratio that reaches it."
        more = -(-self.num_clients * total // covered) - self.num_clients
        return (
            f"About {more} more clients like these, or {total / covered:.1f} times "
            "this fraction of the layer per client, would cover it."
        )

    def __repr__(self) -> str:
        low, high = self.achieved_ratios.min(), self.achieved_ratios.max()
        ratios = f"ratio {low:.3g}" if low == high else f"ratios {low:.3g} to {high:.3g}"
        model = f"{counted(len(self.layers), 'layer')}, {self.layers.size:,} parameters"
        name = f"{type(self).__name__} {self.fingerprint}"
        return f"<{name}: {counted(self.num_clients, 'client')}, {ratios}, {model}>"

    def _repr_html_(self) -> str:
        return html_text(self.summary())

    def summary(self) -> str:
        """A printed table: groups of clients, layers, and warnings."""
        title = (
            f"{counted(self.num_clients, 'client')}, {counted(len(self.layers), 'layer')}, "
            f"{counted(self.layers.size, 'parameter')}, plan {self.fingerprint}"
        )
        return "\n\n".join([title, _groups(self), _layers(self), *_warnings(self)])

    @cached_property
    def fingerprint(self) -> str:
        """Changes when anything about the plan changes; the same on every machine."""
        digest = hashlib.sha256(json.dumps(self.layers.identity(), sort_keys=True).encode())
        digest.update(np.ascontiguousarray(self.ratios, dtype="<f8").tobytes())
        digest.update(np.ascontiguousarray(self.counts, dtype="<i4").tobytes())
        if self._extras():
            digest.update(json.dumps(self._extras(), sort_keys=True).encode())
        return digest.hexdigest()[:16]

    def _extras(self) -> dict[str, Any]:
        """JSON keys that a plan without rotation and local tensors does not have."""
        extras = {"rotate_every": self.rotate_every, "local": sorted(self.local)}
        return {key: value for key, value in extras.items() if value}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plan) and self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "fingerprint": self.fingerprint,
            "model": self.layers.to_json(),
            "ratios": self.ratios.tolist(),
            "counts": self.counts.tolist(),
            **self._extras(),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Plan:
        if data.get("format") != FORMAT:
            raise PlanError(
                f"this plan has format {data.get('format')!r}; this version reads {FORMAT}."
            )
        layers = Layers.from_json(data["model"])
        plan = cls(
            layers,
            np.array(data["ratios"], dtype=np.float64),
            np.array(data["counts"], dtype=np.int32).reshape(len(data["ratios"]), len(layers)),
            int(data.get("rotate_every", 0)),
            frozenset(data.get("local", ())),
        )
        if plan.fingerprint != data["fingerprint"]:
            raise PlanError("the plan does not match its fingerprint: it was edited or damaged")
        return plan


def make_plan(layers: Layers, ratios: Sequence[float | Allocation]) -> Plan:
    """Plan a fleet from a training ratio or an :class:`Allocation` per client.

    Ratios are spread over the layers by :func:`fedplt.balanced_allocation`, rounded to whole
    sub-layers, and assigned by rotation.
    """
    wanted, layer_ratios = spread_ratios(layers, ratios)
    return Plan(layers, wanted, whole_sublayers(layers, layer_ratios)[0])


def sublayers_assignment(layers: Layers, counts: Sequence[int]) -> Assignment:
    """An assignment with this many sub-layers of every layer; costs depend on nothing else."""
    return Plan(layers, np.ones(1), np.array([counts], dtype=np.int32)).assignment(0)


MAX_GROUPS = 12


def _warnings(plan: Plan) -> list[str]:
    """Uncovered sub-layers, and clients that train none of a layer."""
    result = [f"WARNING: {entry}" for entry in plan.uncovered]
    for layer, without in zip(plan.layers, (plan.counts == 0).sum(axis=0), strict=True):
        if without:
            result.append(
                f"Note: layer {layer.name}: {without} of {counted(plan.num_clients, 'client')} "
                "train none of it. Their share is less than one sub-layer, so such clients take "
                "turns (or their allocation leaves the layer out)."
            )
    return result


def _groups(plan: Plan) -> str:
    rows = []
    for members in _similar_clients(plan.ratios):
        layer_ratios = plan.layer_ratios[members].mean(axis=0)
        ratios = _spread(plan.ratios[members]), _spread(plan.achieved_ratios[members])
        rows.append([str(len(members)), *ratios, *(f"{q:.3f}" for q in layer_ratios)])
    names = short_names([layer.name for layer in plan.layers], 16)
    return table(["clients", "ratio", "achieved", *names], rows)


def _similar_clients(ratios: NDArray[np.float64]) -> list[NDArray[np.int64]]:
    """Clients grouped by ratio; by similar ratios if there are too many different ones."""
    distinct, inverse = np.unique(-ratios, return_inverse=True)
    if len(distinct) <= MAX_GROUPS:
        return [np.flatnonzero(inverse.reshape(-1) == group) for group in range(len(distinct))]
    return np.array_split(np.argsort(-ratios, kind="stable"), MAX_GROUPS)


def _spread(values: NDArray[np.float64]) -> str:
    low, high = float(values.min()), float(values.max())
    return f"{low:.4f}" if high - low < 5e-5 else f"{low:.4f}-{high:.4f}"


def _layers(plan: Plan) -> str:
    names = short_names([layer.name for layer in plan.layers])
    rows = []
    for name, layer, clients in zip(names, plan.layers, plan.coverage, strict=True):
        sizes = [f"{layer.size:,}", str(layer.num_sublayers), f"{layer.sublayer_size:,}"]
        rows.append([name, *sizes, f"{clients.min()}-{clients.max()}"])
    return table(["layer", "parameters", "sub-layers", "each", "clients per sub-layer"], rows)
