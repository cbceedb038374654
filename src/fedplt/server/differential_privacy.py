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

import hashlib
import math
import secrets
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedplt.client import ClientUpdate
from fedplt.kernels import add_at
from fedplt.planning import Assignment, Layers, Normalizer, PlacedTensor
from fedplt.server.aggregation import Aggregator
from fedplt.server.robust import square_sum

KEY_BYTES = 16
CHUNK = 1 << 20
"""Numbers from one call of the hash."""


@dataclass(frozen=True, repr=False)
class SecretStream:
    """Random numbers keyed by (key, purpose, round) that only the holder of the key can compute.

    The generators of :mod:`fedplt.seeds` are keyed by the run's seed, which is in its
    configuration: whoever reads it could subtract the noise. Here SHAKE-256, a cryptographic hash,
    expands a key of 128 random bits, so that parts of the stream reveal nothing about the rest.
    """

    key: bytes

    @classmethod
    def fresh(cls) -> SecretStream:
        """A stream with a random key from the operating system."""
        return cls(secrets.token_bytes(KEY_BYTES))

    @classmethod
    def from_seed(cls, seed: int) -> SecretStream:
        """A stream whose key can be computed from the seed."""
        return cls(hashlib.sha256(f"fedplt noise {seed}".encode()).digest()[:KEY_BYTES])

    def next(self, number: int) -> SecretStream:
        """Another stream; computing it needs this one's key."""
        text = b"fedplt next %d " % number + self.key
        return SecretStream(hashlib.sha256(text).digest()[:KEY_BYTES])

    def _words(self, purpose: str, round: int, number: int) -> NDArray[np.uint64]:
        parts = []
        for chunk, start in enumerate(range(0, number, CHUNK)):
            text = f"{purpose}/{round}/{chunk}".encode()
            digest = hashlib.shake_256(self.key + text).digest(8 * min(CHUNK, number - start))
            parts.append(np.frombuffer(digest, dtype="<u8"))
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.uint64)

    def uniforms(self, purpose: str, round: int, number: int) -> NDArray[np.float64]:
        """Uniform on [0, 1), with 53 bits."""
        return np.asarray((self._words(purpose, round, number) >> np.uint64(11)) * 2.0**-53)

    def normals(self, purpose: str, round: int, number: int) -> NDArray[np.float64]:
        """Standard normal numbers, by Box and Muller's transform.

        >>> SecretStream(b"0" * 16).normals("doctest", 3, 100_000).std().round(2)
        np.float64(1.0)
        """
        half = -(-number // 2)
        pairs = self.uniforms(purpose, round, 2 * half)
        radius = np.sqrt(-2 * np.log1p(-pairs[:half]))
        angle = 2 * np.pi * pairs[half:]
        return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:number]


ROUNDING = 1e-6
"""Clip to a norm smaller by this fraction, so that rounding to float32 never exceeds the clip."""


def clipped(values: Tensor, clip: float) -> Tensor:
    """The values, scaled down to a Euclidean norm of at most ``clip``."""
    norm = math.sqrt(square_sum(values))
    return values if norm <= clip else values * ((1 - ROUNDING) * clip / norm)


class PrivateAggregator(Aggregator):
    """Call :meth:`expect` for every client of the plan, :meth:`add` for every participant."""

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
        """``min_contributors``: a block to which the plan assigns fewer clients keeps its bits."""
        super().__init__(layers, normalizer)
        self.min_assigned = min_contributors
        self.clip, self.deviation = clip, noise_multiplier * clip
        self.probability, self.secret, self.round = probability, secret, round

    def _add(self, update: ClientUpdate, assignment: Assignment, weight: float) -> None:
        """Add a clipped update. All clients count the same: ``weight`` is not used."""
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
        assert self._expected is not None, "call expect() for every client of the plan"
        return self._expected.of(placed) >= self.min_assigned
