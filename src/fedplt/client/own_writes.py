"""What a model or a training loop writes to its parameters itself (``.data``, ``clamp_``, EMA)."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping

import torch
from torch import Tensor


class OwnWrites:
    """Notes such writes, and can undo those to parameters of which nothing is trained."""

    def __init__(self, frozen: Mapping[str, Tensor]) -> None:
        self.happened = False
        """Rows that are not trained may have other values than before the block."""
        self._frozen = frozen
        self._before: dict[str, Tensor] = {}

    def note(self) -> None:
        """Call before something is written."""
        if not self.happened:
            self.happened = True
            self._before = {name: p.detach().clone() for name, p in self._frozen.items()}

    def put_back(self, shared: Collection[str]) -> None:
        """``shared``: tensors that the server sends; others that changed are warned of."""
        for name, before in self._before.items():
            now = self._frozen[name]
            if torch.equal(now, before):
                continue
            with torch.no_grad():
                now.copy_(before)
            if name not in shared:
                warnings.warn(
                    f"{name} is not trained, but the model changes it in training; it is put back "
                    "to its initial value after every client.",
                    stacklevel=2,
                )
