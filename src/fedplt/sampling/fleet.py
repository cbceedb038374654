"""The validated input of the sampling rules: each client's norm, examples and cost."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedplt.errors import SamplingError

Numbers = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Fleet:
    """Finite arrays of one length: norms and examples not negative, ratios positive."""

    norms: Numbers
    examples: Numbers
    ratios: Numbers
    budget: float

    @classmethod
    def checked(
        cls, update_norms: ArrayLike, num_examples: ArrayLike, ratios: ArrayLike, budget: float
    ) -> Fleet:
        """Validate the values; a single number applies to all clients."""
        norms = np.asarray(update_norms, dtype=np.float64)
        if norms.ndim != 1 or not len(norms):
            raise SamplingError(
                f"update_norms has shape {norms.shape}; give one norm per client, at least one."
            )
        others = []
        for name, values in (("num_examples", num_examples), ("ratios", ratios)):
            array = np.asarray(values, dtype=np.float64)
            if array.shape not in ((), norms.shape):
                raise SamplingError(
                    f"{name} has shape {array.shape}, but there are {len(norms)} update norms; "
                    "give one number per client, or one for all."
                )
            others.append(np.broadcast_to(array, norms.shape))
        fleet = cls(norms, others[0], others[1], float(budget))
        fleet._refuse("update_norms", norms, norms >= 0, "at least 0")
        fleet._refuse("num_examples", others[0], others[0] >= 0, "at least 0")
        fleet._refuse("ratios", others[1], others[1] > 0, "above 0")
        if not (math.isfinite(budget) and budget > 0):
            raise SamplingError(f"the budget is {budget}; it must be finite and above 0.")
        return fleet

    @staticmethod
    def _refuse(name: str, values: Numbers, good: NDArray[np.bool_], allowed: str) -> None:
        bad = np.flatnonzero(~(good & np.isfinite(values)))
        if len(bad):
            client = int(bad[0])
            raise SamplingError(
                f"{name}: client {client} has {values[client]}; it must be finite and {allowed}."
            )

    def log_scores(self, power: float) -> Numbers:
        r"""Logarithm of :math:`n_k \lVert U_k\rVert r_k^{power}`; minus infinity for zero.

        Logarithms, because the product of extreme floats may overflow or underflow.
        """
        with np.errstate(divide="ignore"):
            logs: Numbers = np.log(self.norms) + np.log(self.examples)
        return logs + power * np.log(self.ratios)

    def uniform(self) -> Numbers:
        """The common probability that spends the budget, at most 1."""
        return np.full(len(self.norms), min(1.0, self.budget / float(self.ratios.sum())))
