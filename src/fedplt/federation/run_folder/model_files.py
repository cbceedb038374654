"""``model.safetensors`` and ``best.safetensors``: models that a run keeps, by parameter name."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from torch import Tensor

from fedplt.errors import DamagedError
from fedplt.federation.run_folder.records import History
from fedplt.federation.run_folder.result_file import Result
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

    def read_checked(
        self, name: str, history: History, result: Result | None
    ) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The same of a model that belongs to these records and this result."""
        path, is_best = self.folder / name, name == BEST_MODEL
        again = f"'fedplt resume {self.folder}' writes it again."
        if is_best:
            again = "It cannot be computed again: delete it, or start a new run."
        try:
            tensors, about = self.read(name)
        except DamagedError as error:
            raise DamagedError(f"{error} {again}") from error
        record = history.best if is_best else history.rounds[-1] if history.rounds else None
        expected = record.round if record else 0
        found = about.get("round", expected)  # an earlier version did not write it for the last
        if found != expected and (is_best or found < expected):
            raise DamagedError(
                f"{path} is of round {found}, but the {'best' if is_best else 'last'} recorded "
                f"round is {expected}: the run was stopped in between, or this is an earlier "
                f"file. {again}"
            )
        digest = result.weights_sha256 if result and not is_best else None
        if digest not in (None, tensors_digest(tensors)):
            raise DamagedError(
                f"{path} is not the model that result.json is about (weights_sha256): one of the "
                f"two is an earlier file. {again}"
            )
        return tensors, about

    def save_final(self, tensors: dict[str, Tensor], round: int) -> str:
        """Returns the digest of the weights, the same for runs that end with the same bits."""
        return save_tensors(self.folder / FINAL_MODEL, tensors, {"round": round}, self.run, KIND)

    def save_best(self, tensors: dict[str, Tensor], round: int) -> None:
        save_tensors(self.folder / BEST_MODEL, tensors, {"round": round}, self.run, KIND)

    def warn_of_damaged_best(self) -> None:
        try:
            if (self.folder / BEST_MODEL).exists():
                self.read(BEST_MODEL)
        except DamagedError as error:
            more = "The run goes on; a better round replaces it."
            warnings.warn(f"{error} {more}", stacklevel=2)
