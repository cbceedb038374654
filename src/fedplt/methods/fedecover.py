"""FedEcover: clients draw units from one pool without replacement, so that all are covered.

For each hidden layer of K units, the server has a pool. Client after client takes its ceil(K s)
units from the pool at random; when the pool is empty, it is filled with all K units again. So the
numbers of clients per unit differ by at most one. "FedEcover: Fast and Stable Converging
Model-Heterogeneous Federated Learning with Efficient-Coverage Submodel Extraction", 2025.

Where we deviate: the pool is an order of the units, drawn at random, that clients go through in a
circle. A new order is drawn after the first round in which all units were covered, not in the
middle of a round, so that a plan has no state. All clients of the plan draw, in the order of their
numbers. With client sampling, units that absent clients drew are not trained in that round, so
coverage is even only on average. The paper's decay of the server's step is no part of the method.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedplt.methods.heterofl import HeteroFL
from fedplt.planning import SubmodelPlan, Units, kept_units
from fedplt.seeds import generator


class PoolPlan(SubmodelPlan):
    """Sub-models of units that all clients draw from one pool per space."""

    @cached_property
    def _kept(self) -> NDArray[np.int64]:
        """Number of units of each client, by space."""
        return np.array([[kept_units(w, s) for s in self.rates] for w in self.spaces.widths])

    def held_units(self, client: int, round: int) -> tuple[Units, ...]:
        result = []
        for i, (width, kept) in enumerate(zip(self.spaces.widths, self._kept, strict=True)):
            drawn = int(kept.sum())
            rounds = -(-width // drawn)  # until all units are covered
            random = generator(self.seed, f"fedecover {i}", round=round // rounds)
            start = round % rounds * drawn + int(kept[:client].sum())
            places = (start + np.arange(kept[client])) % width
            result.append(np.sort(random.permutation(width)[places]))
        return tuple(result)

    @property
    def _representatives(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        return np.ones(self.num_clients, dtype=np.int64), np.arange(self.num_clients)


@dataclass(frozen=True, kw_only=True)
class FedEcover(HeteroFL):
    """Holds rows and columns that it drew from the fleet's pool, trains all it holds."""

    name: ClassVar[str] = "fedecover"
    holds: ClassVar[str] = "units of every hidden layer, drawn by all without replacement"
    plan_kind: ClassVar[type[SubmodelPlan]] = PoolPlan
