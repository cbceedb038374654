"""A custom method: every client trains the same fraction of each layer.

FedPLT spends a client's budget as evenly as it can over the layers, so that small layers are
trained almost whole. This method takes the ratio for every layer alike.
"""

from dataclasses import dataclass
from typing import ClassVar

import fedplt


@dataclass(frozen=True, kw_only=True)
class Uniform(fedplt.Method):
    name: ClassVar[str] = "uniform"
    holds: ClassVar[str] = "everything"
    trains: ClassVar[str] = "the same fraction of every layer"

    def plan(self, request: fedplt.PlanRequest) -> fedplt.Plan:
        sizes = request.layers.sizes
        same = [fedplt.allocation_of(sizes, [ratio] * len(sizes)) for ratio in request.ratio_array]
        return fedplt.make_plan(request.layers, same)
