"""Random numbers that only the holder of a key can compute.

The generators of :mod:`fedplt.seeds` are keyed by the run's seed, which is in its configuration:
whoever reads it could subtract the noise. Here a key of 128 random bits goes through SHAKE-256, a
cryptographic hash, so that parts of the stream tell nothing about the rest.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

KEY_BYTES = 16
CHUNK = 1 << 20
"""Numbers from one call of the hash."""


@dataclass(frozen=True, repr=False)
class SecretStream:
    """Numbers keyed by (key, purpose, round)."""

    key: bytes

    @classmethod
    def fresh(cls) -> SecretStream:
        """With a key from the operating system."""
        return cls(secrets.token_bytes(KEY_BYTES))

    @classmethod
    def from_seed(cls, seed: int) -> SecretStream:
        """With a key that everybody can compute who knows the seed."""
        return cls(hashlib.sha256(f"fedplt noise {seed}".encode()).digest()[:KEY_BYTES])

    def next(self, number: int) -> SecretStream:
        """Another stream, which nobody can compute without this one's key."""
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
