"""``deployment.json``: what a deployment was made with, in every folder that is copied."""

from __future__ import annotations

import json
import platform
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from fedplt import __version__
from fedplt.configuration import RunConfig
from fedplt.engines.flower.deployment.address import Address
from fedplt.errors import RunError
from fedplt.federation import plan_without_data
from fedplt.planning import Layers

FORMAT = 1
RECORD = "deployment.json"


@dataclass(frozen=True)
class Record:
    """Versions, the server's address, the layers of the model, and the nodes' client ids."""

    versions: dict[str, str]
    address: Address
    layers: str | None
    """Fingerprint of the model's layers; None: the model could not be built when it was made."""
    nodes: dict[str, int]
    """Client ids by name; a node's own copy has its own alone."""

    def text(self) -> str:
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=2) + "\n"


def read_record(folder: Path) -> Record:
    path = folder / RECORD
    try:
        values: Any = json.loads(path.read_text(encoding="utf-8"))
        if values.pop("format") != FORMAT:
            raise ValueError("it was made by another version of fedplt")
        where = values.pop("address")
        return Record(address=Address(tuple(where["hosts"]), int(where["port"])), **values)
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise RunError(
            f"{path} cannot be read ({error}): copy the folder again from where 'fedplt deploy "
            "init' made it."
        ) from error


def installed_versions() -> dict[str, str]:
    found = {"fedplt": __version__, "python": platform.python_version()}
    for package in ("flwr", "torch"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "(not installed)"
    return found


def layers_of(config: RunConfig) -> Layers:
    """The layers of the run's model, whoever trains how much of them."""
    return plan_without_data(config.model_copy(update={"fleet": None})).layers
