"""``fedplt.load`` and ``fedplt.evaluate``: the model that a run has trained, and its score."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import nn

from fedplt.client import Evaluation, Task, combine, evaluate_chunk, num_chunks
from fedplt.configuration import FROM_PYTHON, RunConfig
from fedplt.data import CATALOG, TrainingData, as_samples, load_data_set
from fedplt.errors import ConfigError, DamagedError, DataError, RunError
from fedplt.federation.model_and_data import call_loader, find_code, load_weights
from fedplt.federation.preflight.trial_runs import try_data
from fedplt.federation.run_folder.checkpoint import CheckpointFiles
from fedplt.federation.run_folder.folder import RunFolder
from fedplt.federation.run_folder.sessions import read_sessions
from fedplt.imports import import_object, search_also
from fedplt.kernels import bind_state, put
from fedplt.models import build_model


def load(
    run: str | Path,
    *,
    model: nn.Module | None = None,
    best: bool = False,
    which: str = "model",
    client: int | None = None,
) -> nn.Module:
    """The model that a run has trained, in evaluation mode.

    Args:
        run: a run's folder.
        model: a model of the same kind, whose weights are replaced; needed if the run was started
            from Python with a custom model.
        best: the model of the best evaluated round (``evaluation.keep_best``).
        which: ``"model"``, the final one; ``"last"``, the last round's; ``"average"``, the average
            of past rounds (``server.average``); ``"best"``.
        client: with the normalization layers that this client keeps (FedBN).
    """
    which = "best" if best else which
    folder = RunFolder.open(run)
    config = folder.config()
    if model is None:
        model = _build(config, folder)
    if not isinstance(model, nn.Module):
        raise ConfigError(f"model is {model!r:.60}; give a torch.nn.Module, built.")
    load_weights(model, folder.model_file(which), "model")
    if client is not None:
        _take_kept(folder, model, client, which)
    return model.eval()


def evaluate(
    run: str | Path,
    data: Any,
    *,
    model: nn.Module | None = None,
    task: Task | None = None,
    best: bool = False,
    which: str = "model",
    client: int | None = None,
) -> Evaluation:
    """Evaluate a run's model on new data, with the run's loss and metric.

    Args:
        run, model, best, which, client: see :func:`load`.
        data: what ``fedplt.train`` takes; the import path of a function that returns it; or the
            name of a built-in data set, scaled as in the run. Of TrainingData, the test part is
            used (else the validation part).
        task: the run's task, if it was given from Python.
    """
    folder = RunFolder.open(run)
    config = folder.config()
    find_code_of(folder)
    samples = _samples(data, config)
    trained = load(run, model=model, best=best, which=which, client=client)
    task = task or _task(config, folder)
    if not isinstance(task, Task):
        raise ConfigError(f"task is {task!r:.60}; give a fedplt.Task.")
    found, _, _ = try_data(config, trained, {"the data": samples}, task, ahead=False)
    samples = found["the data"]  # all of them are fetched and checked below
    chunks = (
        evaluate_chunk(trained, samples, chunk, task.loss, task.metric)
        for chunk in range(num_chunks(samples))
    )
    return combine(chunks, task.metric)


def find_code_of(folder: RunFolder) -> None:
    """Look for the user's modules in the folders of the run's configuration and its commands."""
    with suppress(DamagedError):  # other readers of the sessions report the damage
        for session in read_sessions(folder.path, folder.run):
            if session["folder"]:
                search_also(session["folder"])
    find_code(folder.config())


def _build(config: RunConfig, folder: RunFolder) -> nn.Module:
    if config.model.name == FROM_PYTHON:
        raise RunError(
            f"{folder.path} was started from Python with a custom model: give one like it, "
            "fedplt.load(run, model=build())."
        )
    find_code_of(folder)
    return build_model(config.model.name, config.model.options, config.seed)


def _task(config: RunConfig, folder: RunFolder) -> Task:
    if FROM_PYTHON in (config.task.name, config.task.loss, config.task.metric):
        raise RunError(
            f"{folder.path} was started from Python with a custom task: give it as task=."
        )
    return config.task.task()


def _take_kept(folder: RunFolder, model: nn.Module, client: int, which: str) -> None:
    plan = folder.plan()
    if not plan.local:
        problem = f"client: the clients of {folder.path} keep no layers"
        raise RunError(f"{problem} (only methods with local_norms do so). Leave it out.")
    if which == "best":
        raise RunError("client, best: only the last round's layers of the clients are kept.")
    if not 0 <= client < plan.num_clients:
        raise RunError(f"client: {client}; the clients are 0 to {plan.num_clients - 1}.")
    extras = CheckpointFiles(folder.path, folder.run).extras()
    if "local" not in extras:
        problem = f"the checkpoint of {folder.path} does not have the clients' layers."
        raise RunError(f"{problem} With Flower they stay on the nodes.")
    put(bind_state(model, plan.layers), plan.local_index, extras["local"][client])


def _samples(data: Any, config: RunConfig) -> Any:
    if isinstance(data, str) and data in CATALOG:
        data = load_data_set(data, scaling=config.data.scaling)
    elif isinstance(data, str) and ":" in data:
        data = call_loader(import_object(data, "data"), data, "data")
    elif isinstance(data, str):
        raise DataError(
            f"data: {data!r} is not a built-in data set ({', '.join(sorted(CATALOG))}) and not an "
            "import path such as 'my_data:load_test'."
        )
    if isinstance(data, TrainingData):
        return data.validation if data.test is None else data.test
    return as_samples(data)
