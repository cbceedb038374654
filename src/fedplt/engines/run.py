"""Run a federation on this machine: from a configuration, from a folder, or from Python."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedplt.client.evaluation import Metric, accuracy
from fedplt.client.local_training import Loss
from fedplt.data.samples import Augment, TrainingData, as_samples
from fedplt.data.sources import Progress
from fedplt.data.splits import Split, split_given
from fedplt.engines.simulator.engine import SimulatorEngine
from fedplt.errors import ConfigError, RunError
from fedplt.federation.config import RunConfig
from fedplt.federation.folder import RunFolder
from fedplt.federation.job import Job, job_from_config, make_job
from fedplt.federation.load_config import parse_config
from fedplt.federation.loop import Federation, OnRound
from fedplt.federation.records import History
from fedplt.planning.allocation import Allocation

FROM_PYTHON = "(given from Python)"


def run_job(
    job: Job,
    out: Path | None = None,
    *,
    resume: bool = False,
    on_round: OnRound = lambda record: None,
) -> History:
    """Run a job to its last round, in a folder if one is given.

    Ctrl-C saves and raises ``Interrupted``. A run that cannot start leaves no folder behind.
    """
    folder = RunFolder.open(out) if out and resume else None
    if folder:
        folder.lock()
    try:
        with _stoppable() as stop, closing(SimulatorEngine(job, stop)) as engine:
            federation = Federation(job, engine)
            if out and not resume:
                folder = RunFolder.create(out, job)
            federation.folder = folder
            if folder and resume:
                federation.resume()  # refuses before anything is written
                folder.write_config(job.config)
            else:
                federation.start()
            return federation.run(on_round)
    finally:
        if folder:
            folder.unlock()


def prepare_resume(
    folder: RunFolder,
    change: Callable[[RunConfig], RunConfig] = lambda config: config,
    progress: Progress | None = None,
) -> tuple[Job, int]:
    """The job of a run on disk and its rounds done; refuses what would change its bits."""
    config = change(folder.config())
    folder.lock()
    try:
        folder.refuse_unbegun()
        if FROM_PYTHON in (config.model.name, config.data.name):
            raise RunError(
                f"{folder.path} was started from Python with a model or data of its own: call "
                "fedplt.train with the same arguments and resume=True."
            )
        job = job_from_config(config, progress)
        _, done, _ = folder.load_checkpoint(job)
    finally:
        folder.unlock()
    return job, done


def train(
    model: nn.Module,
    train: Any,
    validation: Any,
    *,
    ratios: Sequence[float | Allocation],
    rounds: int,
    split: str | Split | Sequence[Any] = "iid",
    cut: Mapping[str, Any] | None = None,
    learning_rates: Sequence[float] | None = None,
    test: Any = None,
    loss: Loss = torch.nn.functional.cross_entropy,
    metric: Metric = accuracy,
    augment: Augment | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    resume: bool = False,
    on_round: OnRound = lambda record: None,
    **settings: Any,
) -> History:
    """Train a model of your own, on data of your own, with partial layer training.

    Args:
        model: any torch module that :func:`fedplt.cut` can cut; it is trained in place.
        train, validation, test: ``(inputs, targets)`` tensors or Datasets.
        ratios: one per client: the fraction of the model it trains.
        split: ``"iid"``, ``"dirichlet"``, ``"shards"``, or one array of example indices per client.
        cut: how the model is cut, as :func:`fedplt.cut` takes it: ``{"never": ["backbone"]}``.
        learning_rates: one per client, where they differ (else ``training["learning_rate"]``).
        loss: mean loss from outputs and targets. metric: score per example (or its mean).
        augment: changes a batch of training inputs: ``augment(inputs, generator)``.
        out: a run folder (config, plan, records, checkpoints, final model); None: nothing on disk.
        resume: continue the run in ``out``.
        settings: the rest of a run configuration, as in TOML: ``training={"learning_rate": 0.1}``,
            ``data={"alpha": 0.1}``, ``method={"name": "fedavg"}``, ``engine={"workers": 2}``, ...
    """
    if "clients" in settings:
        raise ConfigError("clients: ratios and learning_rates tell who the clients are.")
    if resume and out is None:
        raise ConfigError("resume=True needs out: the folder of the run to continue.")
    data = TrainingData(
        as_samples(train), as_samples(validation), None if test is None else as_samples(test)
    )
    if isinstance(split, (str, Split)):
        given = None if isinstance(split, str) else split
    else:
        given = split_given(split, len(data.train))
    config = parse_config(
        {
            "seed": seed,
            "rounds": rounds,
            **settings,
            "clients": {"num_clients": len(ratios)},
            "data": {
                "name": FROM_PYTHON,
                **({"split": split} if isinstance(split, str) else {}),
                **settings.get("data", {}),
            },
            "model": {"name": FROM_PYTHON, **(cut or {})},
        }
    )
    job = make_job(
        config, model, data,
        split=given, ratios=ratios, learning_rates=learning_rates,
        loss=loss, metric=metric, augment=augment,
    )  # fmt: skip
    return run_job(job, None if out is None else Path(out), resume=resume, on_round=on_round)


@contextmanager
def _stoppable() -> Iterator[Callable[[], bool]]:
    """Turn the first Ctrl-C (or SIGTERM) into a request; the second one is the usual."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked.is_set
        return

    def ask(number: int, frame: Any) -> None:
        asked.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    old = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked.is_set
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
