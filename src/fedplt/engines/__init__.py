"""The engine that a configuration names; imported when it is used."""

from __future__ import annotations

from importlib.util import find_spec

from fedplt.configuration import RunConfig
from fedplt.errors import RunError
from fedplt.federation import MakeEngine
from fedplt.imports import import_object

ENGINES = {
    "simulator": "fedplt.engines.simulator:SimulatorEngine",
    "flower": "fedplt_flower:FlowerSimulation",
}
"""Engines by ``engine.name``."""


def engine_of(config: RunConfig) -> MakeEngine:
    """The function that makes the engine ``engine.name``."""
    name = config.engine.name
    if name == "flower" and find_spec("flwr") is None:
        raise RunError(
            "engine.name = 'flower' needs Flower: install it with pip install 'fedplt[flower]'."
        )
    made: MakeEngine = import_object(ENGINES[name], "engine.name")
    return made
