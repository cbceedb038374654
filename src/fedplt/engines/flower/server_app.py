"""Flower's server apps: of a deployment, and of the simulation that ``fedplt run`` starts."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedplt.client import MetricInfo
from fedplt.configuration import ON_NODES, AnnouncedDevice, RunConfig, load_config
from fedplt.engines.flower.engine import FlowerEngine
from fedplt.engines.flower.grid_wire import GridWire
from fedplt.engines.flower.members import announcements
from fedplt.engines.flower.relay import relay
from fedplt.engines.flower.wire import Wire
from fedplt.engines.start import job_of, prepare_resume, run_job
from fedplt.errors import ConfigError
from fedplt.federation import Job, RoundRecord, RunFolder, with_claims
from fedplt.imports import search_also

_log = logging.getLogger("flwr")


def relay_app(address: str, token: str) -> ServerApp:
    """The server app of a simulation: the round loop is in the process that started it."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        relay(GridWire(grid), address, token)

    return app


def server_app() -> ServerApp:
    """The server app of a deployment.

    Keys of Flower's run configuration: ``config``, the path of the run's TOML file on the server,
    and ``out``, the run's folder. A run that has begun there is continued.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        run_on(GridWire(grid), context.run_config)

    return app


def run_on(wire: Wire, settings: Any) -> None:
    """Run, or continue, what the settings name."""
    config, out = (_path(settings, key) for key in ("config", "out"))
    search_also(str(config.parent))  # where modules that it names may be

    def engine(job: Job, stop: Callable[[], bool]) -> FlowerEngine:
        made = FlowerEngine(job, wire, stop, pin=job.config.engine.pin_nodes)
        made.members.wait(max(1, job.config.server.min_clients), made.seconds)
        return made

    if resume := RunFolder.has_begun(out):
        job, done = prepare_resume(RunFolder.open(out), lambda old: _as_before(config, old))
        _log.info("fedplt: %s of %s rounds are done; going on", done, job.config.rounds)
    else:
        job = _job(wire, load_config(config))
    run_job(
        job, out, resume=resume, engine=engine, on_round=say_rounds(job.config.rounds, job.metric)
    )
    _log.info("fedplt: done; the model is in %s", out / "model.safetensors")


def _as_before(path: Path, old: RunConfig) -> RunConfig:
    """The configuration as it is now, with what the run learned from its nodes."""
    new = load_config(path)
    devices = old.fleet.announced if old.fleet else None
    return _learned(new, old.clients.num_examples, devices)


def _learned(
    config: RunConfig, examples: list[int] | None, devices: list[AnnouncedDevice] | None
) -> RunConfig:
    """The configuration with what only the nodes know, where it does not say it itself."""
    if config.data.name == ON_NODES and config.clients.num_examples is None and examples:
        config = with_claims(config, examples)
    if _lacks_devices(config):
        assert config.fleet is not None
        fleet = config.fleet.model_copy(update={"announced": devices})
        config = config.model_copy(update={"fleet": fleet})
    return config


def _lacks_devices(config: RunConfig) -> bool:
    """Whether ratios are planned once, from devices that only the nodes know."""
    fleet = config.fleet
    if fleet is None or fleet.devices != ON_NODES or fleet.replan != "never":
        return False
    return fleet.announced is None


def _path(settings: Any, key: str) -> Path:
    value = settings.get(key)
    if not isinstance(value, str) or not value:
        raise ConfigError(f"the app's configuration has no {key!r} (flwr run -c \"{key}='...'\").")
    return Path(value)


def _job(wire: Wire, config: RunConfig) -> Job:
    """Asks the nodes for what the plan needs; it is kept in the configuration of the run."""
    examples = config.data.name == ON_NODES and config.clients.num_examples is None
    devices = _lacks_devices(config)
    if examples or devices:
        seconds = config.engine.round_timeout_seconds
        told = announcements(
            wire, config.clients.num_clients, seconds, examples=examples, devices=devices
        )
        numbers = [hello.num_examples or 0 for hello in told]
        profiles = [hello.profile for hello in told if hello.profile is not None]
        config = _learned(config, numbers, profiles)
    return job_of(config)


def say_rounds(number: int, metric: MetricInfo) -> Callable[[RoundRecord], None]:
    """Writes every round into Flower's log."""

    def say(record: RoundRecord) -> None:
        score = "" if record.score is None else f", {metric.text(record.score, 1)}"
        _log.info(
            "fedplt: round %s of %s: %s clients, training loss %.4f%s",
            record.round, number, record.num_clients - len(record.rejected),
            record.train_loss, score,
        )  # fmt: skip
        for client, why in record.rejected.items():
            _log.warning("fedplt: client %s was left out: %s", client, why)

    return say
