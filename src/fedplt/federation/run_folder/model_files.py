"""``model.safetensors`` and ``best.safetensors``: models that a run keeps, by parameter name."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from torch import Tensor

from fedplt.errors import DamagedError
from fedplt.federation.run_folder.sealed import load_tensors, save_tensors, tensors_digest

FINAL_MODEL, BEST_MODEL = "model.safetensors", "best.safetensors"
KIND = "model"


class ModelFiles:
    """The models of a run; ``run`` is its id."""

    def __init__(self, folder: Path, run: str) -> None:
        self.folder, self.run = folder, run

    def read(self, name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The tensors, and what is known about them."""
        return load_tensors(self.folder / name, KIND, self.run)

    def save_final(self, tensors: dict[str, Tensor]) -> str:
        """Returns the digest of the weights, the same for runs that end with the same bits."""
        save_tensors(self.folder / FINAL_MODEL, tensors, {}, self.run, KIND)
        return tensors_digest(tensors)

    def save_best(self, tensors: dict[str, Tensor], round: int) -> None:
        save_tensors(self.folder / BEST_MODEL, tensors, {"round": round}, self.run, KIND)

    def check(self) -> None:
        """Raise DamagedError if one of them is there and is not what the run wrote."""
        again = f"'fedplt resume {self.folder}' writes it again."
        lost = "It cannot be computed again: delete it to do without it, or start a new run."
        for name, what_to_do in ((FINAL_MODEL, again), (BEST_MODEL, lost)):
            if error := self._damage(name):
                raise DamagedError(f"{error} {what_to_do}") from error

    def warn_of_damaged_best(self) -> None:
        if error := self._damage(BEST_MODEL):
            warnings.warn(f"{error} The run goes on; a better round replaces it.", stacklevel=2)

    def _damage(self, name: str) -> DamagedError | None:
        try:
            if (self.folder / name).exists():
                self.read(name)
        except DamagedError as error:
            return error
        return None
