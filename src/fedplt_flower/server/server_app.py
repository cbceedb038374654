"""Server apps for Flower: for a deployment, and for the simulation of ``fedplt run``."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedplt.client import MetricInfo
from fedplt.configuration import ON_NODES, AnnouncedDevice, RunConfig, load_config
from fedplt.errors import ConfigError, RunError
from fedplt.federation import (
    Job,
    RoundRecord,
    RunFolder,
    job_of,
    participants_warning,
    prepare_resume,
    run_job,
    with_claims,
)
from fedplt.imports import search_also
from fedplt_flower.deployment.manifest import MANIFEST, read_manifest
from fedplt_flower.server.connected_nodes import Registered, announcements
from fedplt_flower.server.engine import FlowerEngine
from fedplt_flower.server.grid_socket import serve_grid
from fedplt_flower.server.wire import GridWire, Wire

_log = logging.getLogger("flwr")
STOP_SECONDS = 10.0
"""Seconds after a stop request until a run that still waits for the SuperLink is interrupted."""


def simulation_app(address: str) -> ServerApp:
    """The server app of a simulation: the round loop is in the process that started it."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        serve_grid(GridWire(grid), address)

    return app


def server_app() -> ServerApp:
    """The server app of a deployment.

    Keys of Flower's run configuration: ``config``, the path of the run's TOML file on the server,
    and ``out``, the run's folder. A run that has begun there is continued.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        wire = GridWire(grid)
        try:
            run_on(wire, context.run_config, wire.keys)
        except KeyboardInterrupt as error:
            # Flower reports an Exception to the SuperLink, but not a KeyboardInterrupt.
            raise RunError(f"{error or 'stopped'} start-run.sh continues the run.") from error

    return app


Keys = Callable[[], Mapping[int, bytes]]
"""Returns the public key of each connected node, by node id."""


def run_on(wire: Wire, settings: Any, keys: Keys | None = None) -> None:
    """Start or continue the run that the settings name.

    In a deployment made by ``fedplt deploy init``, a node's key determines its client.
    """
    config, out = (_path(settings, key) for key in ("config", "out"))
    search_also(str(config.parent))  # for modules that the configuration names
    registered = None if keys is None else registered_clients(config.parent / "server", keys)
    ended = threading.Event()

    def engine(job: Job, stop: Callable[[], bool]) -> FlowerEngine:
        threading.Thread(target=_interrupt_late, args=(stop, ended), daemon=True).start()
        made = FlowerEngine(job, wire, stop, registered=registered)
        made.nodes.wait(max(1, job.config.server.min_clients), made.seconds)
        return made

    if resume := RunFolder.has_begun(out):

        def current(old: RunConfig) -> RunConfig:
            devices = old.fleet.announced if old.fleet else None
            return _with_reported(load_config(config), old.clients.num_examples, devices)

        job, done = prepare_resume(RunFolder.open(out), current)
        _log.info("fedplt: %s of %s rounds are done; going on", done, job.config.rounds)
    else:
        job = _job(wire, load_config(config), registered)
    if few := participants_warning(job.config):
        _log.warning("fedplt: %s", few.removeprefix("WARNING: "))
    log = log_rounds(job.config.rounds, job.metric)
    try:
        run_job(job, out, resume=resume, engine=engine, on_round=log)
    finally:
        ended.set()
    _log.info("fedplt: done; the model is in %s", out / "model.safetensors")


def _interrupt_late(stop: Callable[[], bool], ended: threading.Event) -> None:
    """Interrupt a run that does not stop, since Flower's calls wait forever for a SuperLink.

    All rounds before the current one are saved, and the run's lock is released.
    """
    while not ended.wait(0.5):
        if stop():
            main = threading.main_thread().ident
            if not ended.wait(STOP_SECONDS) and main is not None:
                signal.pthread_kill(main, signal.SIGINT)
            return


def _with_reported(
    config: RunConfig, examples: list[int] | None, devices: list[AnnouncedDevice] | None
) -> RunConfig:
    """The configuration, with missing values filled in from the nodes' reports."""
    if config.data.name == ON_NODES and config.clients.num_examples is None and examples:
        config = with_claims(config, examples)
    if _lacks_devices(config):
        assert config.fleet is not None
        fleet = config.fleet.model_copy(update={"announced": devices})
        config = config.model_copy(update={"fleet": fleet})
    return config


def _lacks_devices(config: RunConfig) -> bool:
    """Whether ratios are planned once, from devices that the nodes have not reported yet."""
    fleet = config.fleet
    if fleet is None or fleet.devices != ON_NODES or fleet.replan != "never":
        return False
    return fleet.announced is None


def _path(settings: Any, key: str) -> Path:
    value = settings.get(key)
    if not isinstance(value, str) or not value:
        raise ConfigError(f"the app's configuration has no {key!r} (flwr run -c \"{key}='...'\").")
    return Path(value)


def registered_clients(folder: Path, keys: Keys) -> Registered | None:
    """The client of each connected node, by the public keys in the server's folder.

    None if the folder is not that of a deployment.
    """
    if not (folder / MANIFEST).is_file():
        return None
    nodes = read_manifest(folder).nodes

    def find() -> dict[int, int]:
        known = {}
        for name, client in nodes.items():
            path = folder / "keys" / f"{name}.pub"
            if path.is_file():
                key = load_ssh_public_key(path.read_bytes())
                pem = key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
                known[pem] = client
        return {node: known[key] for node, key in keys().items() if key in known}

    return find


def _job(wire: Wire, config: RunConfig, registered: Registered | None) -> Job:
    """Ask the nodes for values that the plan needs, and store them in the configuration."""
    examples = config.data.name == ON_NODES and config.clients.num_examples is None
    devices = _lacks_devices(config)
    if examples or devices:
        seconds = config.engine.round_timeout_seconds
        hellos = announcements(
            wire, config.clients.num_clients, seconds,
            examples=examples, devices=devices, registered=registered,
        )  # fmt: skip
        numbers = [hello.num_examples or 0 for hello in hellos]
        profiles = [hello.profile for hello in hellos if hello.profile is not None]
        config = _with_reported(config, numbers, profiles)
    return job_of(config)


def log_rounds(number: int, metric: MetricInfo) -> Callable[[RoundRecord], None]:
    """A function that writes a round into Flower's log."""

    def log(record: RoundRecord) -> None:
        score = "" if record.score is None else f", {metric.text(record.score, 1)}"
        _log.info(
            "fedplt: round %s of %s: %s clients, training loss %.4f%s",
            record.round, number, record.num_clients - len(record.rejected),
            record.train_loss, score,
        )  # fmt: skip
        for client, why in record.rejected.items():
            _log.warning("fedplt: client %s was left out: %s", client, why)
        for client, why in record.not_evaluated.items():
            _log.warning("fedplt: client %s was not evaluated: %s", client, why)

    return log
