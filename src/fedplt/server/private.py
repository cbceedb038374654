r"""The sum of clipped updates, with Gaussian noise: client-level differential privacy.

With :math:`q` the probability of each client to take part, :math:`C` the clip,
:math:`\sigma` the noise multiplier and :math:`\mathcal A_b` the clients that the plan assigns to
block :math:`b`, whether they take part or not:

.. math:: W_b \leftarrow W_b + \frac{1}{q |\mathcal A_b|} \Big(
          \sum_{k\ \text{takes part}} \min(1, C / \lVert U_k \rVert)\, U_{k,b} +
          \mathcal N(0, \sigma^2 C^2) \Big)

:math:`\lVert U_k \rVert` is the norm of the client's whole slice, over all blocks: one client
changes the sum, all blocks together, by at most :math:`C`. The divisors are the plan's and do not
depend on data, nor on who takes part. Blocks without a participant get noise, too.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedplt.client import ClientUpdate
from fedplt.kernels import add_at
from fedplt.planning import Assignment, Layers, Normalizer, PlacedTensor
from fedplt.server.aggregation import Aggregator
from fedplt.server.clipping import square_sum
from fedplt.server.noise import SecretStream

ROUNDING = 1e-6
"""Clipped updates are this fraction shorter, so that rounding to float32 never exceeds the clip."""


def clipped(values: Tensor, clip: float) -> Tensor:
    """The values, scaled down to a Euclidean norm of at most ``clip``."""
    norm = math.sqrt(square_sum(values))
    return values if norm <= clip else values * ((1 - ROUNDING) * clip / norm)


class PrivateAggregator(Aggregator):
    """Call :meth:`expect` for every client of the plan, :meth:`add` for those that take part."""

    def __init__(
        self,
        layers: Layers,
        normalizer: Normalizer = "contributors",
        *,
        clip: float,
        noise_multiplier: float,
        probability: float,
        secret: SecretStream,
        round: int,
        min_contributors: int = 1,
    ) -> None:
        """``min_contributors``: a block to which the plan assigns fewer clients is left alone."""
        super().__init__(layers, normalizer)
        self.min_assigned = min_contributors
        self.clip, self.deviation = clip, noise_multiplier * clip
        self.probability, self.secret, self.round = probability, secret, round

    def add(
        self, update: ClientUpdate, assignment: Assignment, weight: float | None = None
    ) -> None:
        """Add an update, clipped. All count the same: ``weight`` is not used."""
        values = clipped(torch.from_numpy(update.values), self.clip)
        add_at(self._total, assignment.uploaded, values, 1.0)

    def expect(self, assignment: Assignment, weight: float = 1.0) -> None:
        self._local |= assignment.local
        super().expect(assignment, 1.0)

    def apply(self, state: Tensor) -> None:
        noise = self.secret.normals("noise", self.round, self.layers.state_size)
        self._total += torch.from_numpy(self.deviation * noise).float()
        super().apply(state)

    def _divisor(self, placed: PlacedTensor) -> Tensor:
        return self.probability * super()._divisor(placed)

    def _trained(self, placed: PlacedTensor) -> Tensor:
        assert self._expected is not None, "expect() tells the plan's clients"
        return self._expected.of(placed) >= self.min_assigned
