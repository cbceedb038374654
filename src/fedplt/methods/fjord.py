"""FjORD: ordered dropout. A client trains nested sub-models of random width, up to its own rate.

A width p keeps the first ceil(K p) units of a hidden layer with K units, so that a narrow sub-model
is a part of every wider one. A client draws p uniformly from the widths that its device can train:
``rates`` up to its own rate (the paper's are [0.2, 0.4, 0.6, 0.8, 1]), or by default one to five
fifths of its own rate, the one whose sub-model is closest to its ratio. Horváth et al., "FjORD:
Fair and Accurate Federated Learning under Heterogeneous Targets with Ordered Dropout", 2021.

Where we deviate: the paper draws p in every local step; here a client draws it once a round, so it
also sends and receives less. Self-distillation and normalization statistics per width are left out.
As in the paper, clients of ratio 1 train narrow sub-models too: this is not FedAvg at ratio 1, and
clients train less than their ratio on average.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedplt.methods.heterofl import HeteroFL
from fedplt.planning import SubmodelPlan, Uncovered, submodel_plan, submodel_sizes
from fedplt.seeds import generator

NUM_WIDTHS = 5


class NestedPlan(SubmodelPlan):
    """Sub-models of random width, at most that of the client's own rate."""

    rule: FjORD

    def rate(self, client: int, round: int) -> float:
        random = generator(self.seed, "fjord", round=round, client=client)
        return float(random.choice(self.rule.widths(float(self.rates[client]))))

    @cached_property
    def achieved_ratios(self) -> NDArray[np.float64]:
        """The mean over the widths that a client draws from."""
        first, inverse = self._clients_by_rate
        widths = [self.rule.widths(float(rate)) for rate in self.rates[first]]
        sizes = [submodel_sizes(self.layers, self.spaces, each).mean() for each in widths]
        return np.array(sizes)[inverse] / self.layers.size

    @cached_property
    def uncovered(self) -> tuple[Uncovered, ...]:
        """Of the widest sub-models: the narrower ones are parts of them."""
        widest = (HeteroFL(), self.layers, self.spaces, self.ratios.tolist(), self.rates)
        return submodel_plan(*widest, self.seed).uncovered


@dataclass(frozen=True, kw_only=True)
class FjORD(HeteroFL):
    """Holds leading rows and columns of a random width, trains all it holds."""

    name: ClassVar[str] = "fjord"
    holds: ClassVar[str] = "the first units of every hidden layer; the width is drawn every round"
    is_random: ClassVar[bool] = True
    plan_kind: ClassVar[type[SubmodelPlan]] = NestedPlan

    scaler: Literal["none", "normed", "all"] = "none"

    def widths(self, rate: float) -> Sequence[float]:
        """The widths that a client of this rate draws from."""
        if self.rates:
            return [each for each in self.rates if each <= rate]
        return [rate * i / NUM_WIDTHS for i in range(1, NUM_WIDTHS + 1)]
