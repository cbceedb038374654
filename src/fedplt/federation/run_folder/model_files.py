"""``model.safetensors`` and ``best.safetensors``: models that a run keeps, by parameter name."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from torch import Tensor

from fedplt.errors import DamagedError
from fedplt.federation.run_folder.sealed import load_tensors, save_tensors

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
        return save_tensors(self.folder / FINAL_MODEL, tensors, {}, self.run, KIND)

    def save_best(self, tensors: dict[str, Tensor], round: int) -> None:
        save_tensors(self.folder / BEST_MODEL, tensors, {"round": round}, self.run, KIND)

    def check(self) -> None:
        """Raise DamagedError if the final one is there and is not what the run wrote."""
        self.warn_of_damaged_best("It cannot be computed again: delete it, or start a new run.")
        if error := self._damage(FINAL_MODEL):
            again = f"'fedplt resume {self.folder}' writes it again."
            raise DamagedError(f"{error} {again}") from error

    def warn_of_damaged_best(self, more: str) -> None:
        if error := self._damage(BEST_MODEL):
            warnings.warn(f"{error} {more}", stacklevel=2)

    def _damage(self, name: str) -> DamagedError | None:
        try:
            if (self.folder / name).exists():
                self.read(name)
        except DamagedError as error:
            return error
        return None
