"""Start a run: a new one, or one that continues in its folder."""

from __future__ import annotations

import secrets
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from fedplt.configuration import FROM_PYTHON, ON_NODES, SAME_CALL, RunConfig, flatten
from fedplt.data import Progress
from fedplt.errors import ConfigError, RunError
from fedplt.federation.engine import Engine, Interrupted
from fedplt.federation.job import Job, job_from_config, make_server_job
from fedplt.federation.loop import Federation, OnRound, ignore
from fedplt.federation.preflight.self_check import check_job
from fedplt.federation.progress import both
from fedplt.federation.round_costs import write_devices
from fedplt.federation.run_folder.folder import RunFolder
from fedplt.federation.run_folder.records import History, RoundRecord
from fedplt.federation.run_folder.sessions import note_session
from fedplt.federation.trained_model import find_code_of
from fedplt.files import a_path
from fedplt.imports import import_object

MakeEngine = Callable[[Job, Callable[[], bool]], Engine]
"""Makes an engine from a job and a function that tells whether the user asked to stop."""


def run_job(
    job: Job,
    out: str | Path | None = None,
    *,
    engine: MakeEngine,
    resume: bool = False,
    on_round: OnRound = ignore,
    overwrite: bool = False,
) -> History:
    """Run a job to its last round; write a run folder if one is given.

    Ctrl-C saves and raises ``Interrupted``, a KeyboardInterrupt. A run that cannot start leaves no
    folder behind, and deletes no old one even with ``overwrite``.
    """
    out = None if out is None else a_path(out, "out", RunError)
    if out is None and job.config.evaluation.keep_best:
        problem = "the best model is kept in a folder; give out=."
        raise ConfigError(problem, key="evaluation.keep_best")
    on_round = both(on_round, _named(job.config.engine.on_round))
    folder = None
    if out:
        folder = RunFolder.open(out) if resume else RunFolder(out, secrets.token_hex(8))
    try:
        if folder and resume:
            folder.lock()
            folder.restore_config()
        has_data = job.config.data.name != ON_NODES
        if job.config.engine.check and has_data and not resume:
            check_job(job)
        with _stoppable() as stop, closing(engine(job, stop)) as running:
            federation = Federation(job, running, folder)
            if folder and resume:
                federation.resume()  # refuses before anything is written
                folder.write_config(job.config)
                folder.restore_plan_and_metric(job)
            else:
                if folder:
                    folder.begin(job, overwrite=overwrite)
                federation.start()
            if folder:
                note_session(folder, federation.rounds_done)
                write_devices(folder, job)
            return federation.run(on_round)
    except Interrupted as error:
        if folder and folder.is_locked:
            error.args = (f"stopped and saved in {folder.path}; resume it from there.",)
        raise
    finally:
        if folder:
            folder.unlock()


def _named(path: str | None) -> OnRound:
    """The function that ``engine.on_round`` names; its errors stop and save the run."""
    if path is None:
        return ignore
    function = import_object(path, "engine.on_round", "a function of a fedplt.RoundRecord")

    def on_round(record: RoundRecord) -> None:
        try:
            function(record)
        except Exception as error:  # the user's function may raise anything
            raise RunError(
                f"engine.on_round: {path!r} failed after round {record.round}: "
                f"{type(error).__name__}: {error}. Correct it and resume the run; without it: "
                "--set engine.on_round="
            ) from error

    return on_round


def job_of(config: RunConfig, progress: Progress | None = None) -> Job:
    """The job that a configuration describes, with its data here or on the nodes."""
    if config.data.name != ON_NODES:
        return job_from_config(config, progress)
    if config.clients.num_examples is None:
        problem = "the data is on the nodes; give each client's number of examples (a deployment "
        raise ConfigError(f"{problem}learns them when its nodes join).", key="clients.num_examples")
    return make_server_job(config, config.clients.num_examples)


def prepare_resume(
    folder: RunFolder,
    change: Callable[[RunConfig], RunConfig] = lambda config: config,
    progress: Progress | None = None,
) -> tuple[Job, int]:
    """The job of a run on disk, and its rounds done; refuses changes that would alter results."""
    folder.lock()
    try:
        folder.restore_config()
        find_code_of(folder)
        config = change(folder.config())
        folder.refuse_unbegun()
        if FROM_PYTHON in flatten(config).values():
            raise RunError(
                f"{folder.path} was started from Python with a custom model or data: {SAME_CALL}."
            )
        job = job_of(config, progress)
        done = folder.load_checkpoint(job).rounds_done
    finally:
        folder.unlock()
    return job, done


@contextmanager
def _stoppable() -> Iterator[Callable[[], bool]]:
    """Turn the first Ctrl-C (or SIGTERM) into a request to stop; Python handles the second."""
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
