"""``fedplt.train``: train the user's own model on the user's own data."""

from __future__ import annotations

import numbers
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel
from torch import nn

from fedplt.client import Loss, Metric, Task, as_metric, classification_loss
from fedplt.configuration import (
    FROM_PYTHON,
    CutConfig,
    DataConfig,
    DiagnosticsConfig,
    EngineConfig,
    EvaluationConfig,
    FleetConfig,
    SamplingConfig,
    ServerConfig,
    TaskConfig,
    TrainingConfig,
    make_absolute,
    parse_config,
    read_fleet,
)
from fedplt.data import Augment, Split, TrainingData, split_given
from fedplt.engines.progress import both, shown_progress
from fedplt.engines.start import MakeEngine, run_job
from fedplt.errors import ConfigError
from fedplt.federation import History, OnRound, ignore, make_job, warn_of_gaps
from fedplt.planning import Allocation

Values = Mapping[str, Any]
"""A section as a dictionary, with the keys of the TOML file."""
_GIVEN_SPLIT = {"split": "given", "split_file": FROM_PYTHON}


def train(
    model: nn.Module,
    train_data: Any,
    validation_data: Any,
    *,
    rounds: int,
    ratios: Sequence[float | Allocation] | None = None,
    fleet: FleetConfig | Values | None = None,
    test_data: Any = None,
    split: str | Split | Sequence[Any] = "iid",
    learning_rates: Sequence[float] | None = None,
    task: str | Task = "classification",
    loss: Loss | None = None,
    metric: str | Metric | None = None,
    augment: Augment | None = None,
    seed: int = 0,
    name: str = "run",
    checkpoint_every: int = 10,
    cut: CutConfig | Values | None = None,
    data: DataConfig | Values | None = None,
    method: str | Values = "fedplt",
    sampling: SamplingConfig | Values | None = None,
    training: TrainingConfig | Values | None = None,
    server: ServerConfig | Values | None = None,
    evaluation: EvaluationConfig | Values | None = None,
    diagnostics: DiagnosticsConfig | Values | None = None,
    engine: EngineConfig | Values | None = None,
    run_with: MakeEngine | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    on_round: OnRound = ignore,
    verbose: bool | None = None,
) -> History:
    """Train your own model on your own data with partial layer training.

    Sections (``training``, ``sampling``, ...) are those of a run configuration, as objects or as
    dictionaries: ``training=fedplt.TrainingConfig(learning_rate=0.1)`` or
    ``training={"learning_rate": 0.1}``.

    Args:
        model: any torch module that :func:`fedplt.cut` can cut; it is trained in place.
        train_data, validation_data: what the clients train on, and what every round is evaluated
            on: ``(inputs, targets)`` of tensors, arrays or pandas objects, or a Dataset.
        test_data: the same; evaluated once, at the end.
        rounds: total number, including those already done when a run is resumed.
        ratios: one per client: the fraction of the model it trains.
        fleet: instead of ratios, the devices to plan them from:
            ``{"devices": "devices.csv", "deadline_seconds": 30.0}``.
        split: ``"iid"``, ``"dirichlet"``, ``"shards"``, or one array of example indices per client.
        learning_rates: one per client (default: ``training["learning_rate"]`` for all).
        task: ``"classification"``, ``"regression"``, ``"multi-label"``, ``"next-token"``, or a
            :class:`fedplt.Task`: a loss and a metric.
        loss: instead of the task's: ``loss(outputs, targets)``, the mean over a batch.
        metric: instead of the task's: a name such as ``"mae"``, or a :class:`fedplt.Metric`.
        augment: changes a batch of training inputs: ``augment(inputs, generator)``.
        seed: seed of all random draws.
        name, checkpoint_every: as in a configuration.
        cut: arguments of :func:`fedplt.cut`: ``{"never": ["backbone"]}``.
        data: further keys of the split: ``{"alpha": 0.1}``.
        method: a name, or a dictionary with options: ``{"name": "heterofl", "scaler": "all"}``.
        sampling, training, server, evaluation, diagnostics, engine: sections of a configuration.
        run_with: function that makes the engine (default: the one that ``engine`` names).
        out: a run folder (config, plan, records, checkpoints, final model); None: nothing on disk.
        resume: continue the run in ``out``, with the same arguments; ends with the same bits.
        on_round: called with every round's record.
        verbose: show progress; default: on a terminal and in a notebook.

    Ctrl-C saves the run (with ``out``) and raises KeyboardInterrupt.
    """
    if resume and out is None:
        raise ConfigError("resume=True needs out: the folder of the run to continue.")
    for key, function in (("augment", augment), ("on_round", on_round), ("run_with", run_with)):
        if function is not None and not callable(function):
            raise ConfigError(f"{key} is a {type(function).__name__}; give a function.")
    samples = TrainingData(train_data, validation_data, test_data)
    if isinstance(split, (str, Split)):
        given = None if isinstance(split, str) else split
    else:
        given = split_given(split, len(samples.train))
    named_task, chosen = _task(task, loss, metric)
    planned = _values(fleet)
    named_split = {"split": split} if given is None else _GIVEN_SPLIT
    sections = {
        "data": {"name": FROM_PYTHON, **named_split, **_values(data)},
        "model": {"name": FROM_PYTHON, **_values(cut)},
        "task": named_task,
        "clients": _clients(ratios, planned, learning_rates),
        **({"fleet": planned} if planned else {}),
        "method": {"name": method} if isinstance(method, str) else dict(method),
        "sampling": _values(sampling),
        "training": {**_values(training), **({"augment": FROM_PYTHON} if augment else {})},
        "server": _values(server),
        "evaluation": _values(evaluation),
        "diagnostics": _values(diagnostics),
        "engine": _values(engine),
    }
    top = {"name": name, "seed": seed, "rounds": rounds, "checkpoint_every": checkpoint_every}
    values = {**top, **{key: dict(section) for key, section in sections.items()}}
    make_absolute(values)
    config = parse_config(values)
    job = make_job(
        config, model, samples,
        split=given, ratios=ratios, learning_rates=learning_rates,
        task=chosen, augment=augment,
    )  # fmt: skip
    warn_of_gaps(job.plan)
    with shown_progress(job, verbose) as show:
        return run_job(job, out, resume=resume, engine=run_with, on_round=both(show, on_round))


def _task(task: str | Task, loss: Loss | None, metric: str | Metric | None) -> tuple[Values, Task]:
    """The section ``[task]`` that describes these, and the task itself."""
    section = {"name": task if isinstance(task, str) else FROM_PYTHON}
    named = dict(section) if isinstance(task, str) else {}
    if isinstance(metric, str):
        section["metric"] = named["metric"] = metric
    found = TaskConfig(**named).task()
    chosen = task if isinstance(task, Task) else found
    if loss is torch.nn.functional.cross_entropy:
        loss = classification_loss  # takes wrapped outputs, too
    if loss is not None and loss is not chosen.loss:
        section["loss"] = FROM_PYTHON
        chosen = replace(chosen, loss=loss)
    if metric is not None:
        section["metric"] = metric if isinstance(metric, str) else FROM_PYTHON
        chosen = replace(
            chosen, metric=found.metric if isinstance(metric, str) else as_metric(metric)
        )
    return section, chosen


def _clients(
    ratios: Sequence[float | Allocation] | None, fleet: Values, rates: Sequence[float] | None
) -> Values:
    """The section ``[clients]`` that describes these; neighbors that are alike form a group."""
    if isinstance(ratios, (int, float, Allocation)):
        raise ConfigError(
            f"ratios is one value, {ratios!r}; give one per client: [{ratios!r}] * 10 for ten."
        )
    if (ratios is None) == (not fleet):
        raise ConfigError(
            "ratios, fleet: give one of them: the fraction of the model that every client trains, "
            "or the devices to plan it from."
        )
    if ratios is None:
        devices = read_fleet(Path(str(fleet.get("devices", "")))).devices
        number = sum(device.count for device in devices)
        given = {} if rates is None else {"learning_rates": [float(rate) for rate in rates]}
        return {"num_clients": number, **given}
    if not len(ratios):
        raise ConfigError("ratios is empty; give one per client.")
    clients = [_ratio(client, ratio) for client, ratio in enumerate(ratios)]
    if rates is not None and len(rates) == len(clients):  # all else is refused later
        clients = [
            {**values, **({"learning_rate": float(rate)} if rate > 0 else {})}
            for values, rate in zip(clients, rates, strict=True)
        ]
    groups = [{"num_clients": len(list(same)), **values} for values, same in groupby(clients)]
    return {"num_clients": len(ratios), "groups": groups}


def _ratio(client: int, given: float | Allocation) -> dict[str, Any]:
    if isinstance(given, Allocation):
        return {"layer_ratios": [float(ratio) for ratio in given.layer_ratios]}
    if not isinstance(given, numbers.Real) or not 0 < given <= 1:
        raise ConfigError(
            f"ratios: that of client {client} is {given!r}; it is the fraction of the model that "
            "the client trains, above 0 and at most 1."
        )
    return {"ratio": float(given)}


def _values(section: BaseModel | Values | None) -> Values:
    """The values that a section sets; defaults are left out."""
    if section is None:
        return {}
    if isinstance(section, BaseModel):
        return section.model_dump(exclude_unset=True, mode="json")
    return section
