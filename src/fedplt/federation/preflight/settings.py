"""Refuse settings that do not fit the method, the plan or this machine's memory."""

from __future__ import annotations

from pathlib import Path

from fedplt.configuration import RunConfig
from fedplt.errors import ConfigError
from fedplt.fleet import physical_memory
from fedplt.planning import BYTES_PER_NUMBER, LocalRecipe, Normalizer, Plan
from fedplt.server import MemorySettings
from fedplt.text import bytes_text


def check_messages(config: RunConfig, plan: Plan, recipe: LocalRecipe) -> None:
    """Refuse a memory of updates, or encodings of the model, that do not fit the method."""
    method = config.method["name"]
    if config.server.memory is not None and recipe.normalizer != "contributors":
        raise ConfigError(
            f"server.memory does not fit method.name = {method!r}: it divides by the weights of "
            "all clients of a round. Leave out server.memory, or set method.normalizer = "
            "'contributors'."
        )
    whole = plan.clients_hold_everything and not plan.local
    if config.messages.down not in ("float32", "float16") and not whole:
        raise ConfigError(
            f"messages.down is {config.messages.down!r}; clients of {method!r} hold a part of the "
            "model, or keep layers of it. Set messages.down = 'float16' or 'float32'."
        )


def place_of_memory(settings: MemorySettings, plan: Plan, run: Path | None) -> Path | None:
    """The folder of remembered updates; None if they are kept in RAM. Refuses what does not fit.

    ``run``: the folder of the run.
    """
    if settings.store == "disk":
        if run is None:
            problem = "it is 'disk', but the run has no folder. Give it one, or set 'ram'."
            raise ConfigError(problem, key="server.memory.store")
        return run / "updates"
    what, do = f"the updates of {plan.num_clients} clients", "Set 'disk', or a lower precision."
    _refuse_too_large(settings.num_bytes(plan), what, do, "server.memory.store")
    return None


def check_window(window: int, state_size: int) -> None:
    """Refuse diagnostics that would not fit into this machine's memory."""
    size = BYTES_PER_NUMBER * state_size
    what, do = f"{window} copies of this model", f"Set at most {(physical_memory() or 0) // size}."
    _refuse_too_large(window * size, what, do, "diagnostics.window")


def _refuse_too_large(needed: int, what: str, do: str, key: str) -> None:
    there = physical_memory()
    if there is not None and needed > there:
        need = f"{what} need up to {bytes_text(needed)} of memory"
        raise ConfigError(f"{need}, but this machine has {bytes_text(there)}. {do}", key=key)


def refuse_votes_of_absent(config: RunConfig, normalizer: Normalizer) -> None:
    """Refuse a rule over contributors combined with a divisor that also counts other clients."""
    server = config.server
    if server.rule.counts_clients and normalizer == "participants":
        raise ConfigError(
            f"{server.aggregation!r} is over the clients that trained a sub-layer, but "
            "method.normalizer is 'participants'. Set it to 'contributors', or use 'clipped-mean'.",
            key="server.aggregation",
        )
