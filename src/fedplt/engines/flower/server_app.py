"""Flower's server apps: of a deployment, and of the simulation that ``fedplt run`` starts."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedplt.client import MetricInfo
from fedplt.engines.flower.engine import FlowerEngine
from fedplt.engines.flower.grid_wire import GridWire
from fedplt.engines.flower.members import announced_examples
from fedplt.engines.flower.relay import relay
from fedplt.engines.flower.wire import Wire
from fedplt.engines.start import job_of, prepare_resume, run_job
from fedplt.errors import ConfigError
from fedplt.federation import (
    ON_NODES,
    Job,
    RoundRecord,
    RunConfig,
    RunFolder,
    load_config,
)

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
    sys.path.insert(0, str(config.parent))  # where modules that it names may be

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
    return _with_examples(new, new.clients.num_examples or old.clients.num_examples)


def _with_examples(config: RunConfig, numbers: list[int] | None) -> RunConfig:
    clients = config.clients.model_copy(update={"num_examples": numbers})
    return config.model_copy(update={"clients": clients})


def _path(settings: Any, key: str) -> Path:
    value = settings.get(key)
    if not isinstance(value, str) or not value:
        raise ConfigError(f"the app's configuration has no {key!r} (flwr run -c \"{key}='...'\").")
    return Path(value)


def _job(wire: Wire, config: RunConfig) -> Job:
    if config.data.name == ON_NODES and config.clients.num_examples is None:
        seconds = config.engine.round_timeout_seconds
        numbers = announced_examples(wire, config.clients.num_clients, seconds)
        config = _with_examples(config, numbers)  # kept in the run's folder
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
