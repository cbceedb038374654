"""What most users call: run, resume, train, evaluate, load."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, TypedDict, Unpack

from torch import nn

from fedplt.client import Task
from fedplt.configuration import (
    FROM_PYTHON,
    Changes,
    ConfigLike,
    CutConfig,
    DataConfig,
    DiagnosticsConfig,
    EngineConfig,
    EvaluationConfig,
    FleetConfig,
    MessagesConfig,
    PrivacyConfig,
    RunConfig,
    SamplingConfig,
    ServerConfig,
    TaskConfig,
    TrainingConfig,
    as_config,
    make_absolute,
    override,
    overrides_of,
    parse_config,
    placing,
)
from fedplt.data import Split, TrainingData, split_given
from fedplt.engines import engine_of
from fedplt.errors import ConfigError, did_you_mean
from fedplt.federation import (
    History,
    Job,
    MakeEngine,
    OnRound,
    RunFolder,
    both,
    evaluate,
    ignore,
    job_of,
    load,
    make_job,
    prepare_resume,
    run_job,
    shown_progress,
    warn_of_gaps,
)
from fedplt.federation.preflight import (
    Values,
    as_list,
    check_arguments,
    clients_section,
    method_section,
    task_section,
    values_of,
)
from fedplt.methods import Method
from fedplt.planning import Allocation

__all__ = ["evaluate", "load", "resume", "run", "train"]


def run(
    config: ConfigLike,
    out: str | Path | None = None,
    *,
    engine: MakeEngine | None = None,
    on_round: OnRound = ignore,
    verbose: bool | None = None,
    overwrite: bool = False,
) -> History:
    """Train as a configuration describes, like ``fedplt run``.

    Args:
        config: a configuration, a dictionary of its sections, the path of a TOML file, or a
            built-in one's name.
        out: a run folder; None: nothing on disk.
        engine: function that makes the engine; default: the one that ``engine.name`` names.
        on_round: called with every round's :class:`fedplt.RoundRecord`, in order.
        verbose: show progress; default: on a terminal and in a notebook.
        overwrite: delete the run that is in ``out``, when the new one starts.

    Ctrl-C saves the run and raises KeyboardInterrupt.
    """
    with placing(config) if isinstance(config, (str, Path)) else nullcontext():
        job = job_of(as_config(config))
        return _run(job, out, engine, on_round, verbose, overwrite=overwrite)


def resume(
    folder: str | Path,
    *,
    changes: Changes = (),
    engine: MakeEngine | None = None,
    on_round: OnRound = ignore,
    verbose: bool | None = None,
) -> History:
    """Continue a run that was stopped or killed, like ``fedplt resume``; same bits at the end.

    Args:
        folder: the run's folder.
        changes: what to change in its configuration: ``{"rounds": 300}``, or as for ``--set``,
            ``["rounds=300"]``. Changes that would alter the bits are refused.
        engine, on_round, verbose: as of :func:`run`.
    """
    wanted = overrides_of(changes)
    job, done = prepare_resume(RunFolder.open(folder), lambda c: override(c, wanted))
    return _run(job, folder, engine, on_round, verbose, done, resume=True)


def _run(
    job: Job,
    out: str | Path | None,
    engine: MakeEngine | None,
    on_round: OnRound,
    verbose: bool | None,
    done: int = 0,
    *,
    resume: bool = False,
    overwrite: bool = False,
) -> History:
    warn_of_gaps(job.plan, stacklevel=4)
    make = engine or engine_of(job.config)
    with shown_progress(job, verbose, done) as show:
        return run_job(
            job, out, engine=make, resume=resume, on_round=both(show, on_round), overwrite=overwrite
        )


class Sections(TypedDict, total=False):
    """Sections of a configuration that :func:`train` takes."""

    split: str | Split | Sequence[Any] | DataConfig | Values
    fleet: FleetConfig | Values
    cut: CutConfig | Values
    task: str | Task | TaskConfig | Values
    method: str | type[Method] | Values
    training: TrainingConfig | Values
    sampling: SamplingConfig | Values
    server: ServerConfig | Values
    messages: MessagesConfig | Values
    privacy: PrivacyConfig | Values
    evaluation: EvaluationConfig | Values
    diagnostics: DiagnosticsConfig | Values
    engine: EngineConfig | Values | MakeEngine
    name: str
    checkpoint_every: int


def train(
    model: nn.Module,
    train_data: Any,
    validation_data: Any = None,
    *,
    rounds: int,
    ratios: Sequence[float | Allocation] | None = None,
    learning_rate: float | Sequence[float] | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    on_round: OnRound = ignore,
    verbose: bool | None = None,
    **sections: Unpack[Sections],
) -> History:
    """Train your own model on your own data with partial layer training.

    Args:
        model: any torch module that :func:`fedplt.cut` can cut; it is trained in place.
        train_data, validation_data: the clients' examples, and those that every round is evaluated
            on: ``(inputs, targets)`` of tensors, arrays or pandas objects, or a Dataset. With a
            test set or a collate function, give one :class:`fedplt.TrainingData` instead.
        rounds: total number, including those already done when a run is resumed.
        ratios: one per client: the fraction of the model it trains.
        learning_rate: one number, or one per client (default: 0.01).
        seed: seed of all random draws.
        out: a run folder (config, plan, records, checkpoints, final model); None: nothing on disk.
        resume: continue the run in ``out``, with the same arguments; ends with the same bits.
        overwrite: delete the run that is in ``out``, when the new one starts.
        on_round: called with every round's :class:`fedplt.RoundRecord`, in order.
        verbose: show progress; default: on a terminal and in a notebook.
        sections: sections of a configuration, as objects or as dictionaries:
            ``training=fedplt.TrainingConfig(batch_size=32)`` or ``training={"batch_size": 32}``.
        split: ``"iid"``, ``"dirichlet"``, ``"shards"``, one array of example indices per client,
            or keys of ``[data]``: ``{"alpha": 0.1}``.
        fleet: instead of ratios, the devices to plan them from:
            ``{"devices": "devices.csv", "deadline_seconds": 30.0}``.
        cut: arguments of :func:`fedplt.cut`: ``{"never": ["backbone"]}``.
        task: ``"classification"``, ``"regression"``, ``"multi-label"``, ``"next-token"``, a
            :class:`fedplt.Task`, or ``{"name": "regression", "loss": my_loss, "metric": "mae"}``.
            A loss is a function of outputs and targets that returns the mean over a batch; a
            metric is a name or a :class:`fedplt.Metric`.
        method: a name, your class, or ``{"name": "heterofl", "scaler": "all"}``.
        training: ``{"local_epochs": 2, "optimizer": "adam"}``; ``augment`` may be a function:
            ``augment(inputs, generator)`` changes the inputs of a batch.
        sampling, server: the sampler (``name``) and the aggregation rule (``aggregation``) may be
            your classes.
        messages, privacy, evaluation, diagnostics, name, checkpoint_every: as in a configuration.
        engine: the section, or a function that makes an engine.

    Ctrl-C saves the run (with ``out``) and raises KeyboardInterrupt.
    """
    _refuse_unknown(sections)
    if resume and out is None:
        raise ConfigError("it needs out: the folder of the run to continue.", key="resume")
    if resume and overwrite:
        raise ConfigError("resume=True continues a run, overwrite=True deletes it: set one.")
    training = dict(values_of("training", sections.get("training")))
    augment, engine = training.get("augment"), sections.get("engine")
    if augment is None or isinstance(augment, str):
        augment = None
    else:
        training["augment"] = FROM_PYTHON
    functions = {"on_round": on_round} | ({} if augment is None else {"training.augment": augment})
    check_arguments(model, **functions)
    is_complete = isinstance(train_data, TrainingData)
    if is_complete and validation_data is not None:
        raise ConfigError("the TrainingData has it already.", key="validation_data")
    data = train_data if is_complete else TrainingData(train_data, validation_data)
    ratios, rates = as_list(ratios), as_list(learning_rate)
    if rates is not None and not isinstance(rates, Sequence):
        if "learning_rate" in training:
            raise ConfigError("training has a learning_rate, too; set one.", key="learning_rate")
        training["learning_rate"], rates = rates, None
    split_keys, split = _split(sections.get("split"), len(data.train))
    task_keys, task = task_section(sections.get("task", "classification"))
    fleet = values_of("fleet", sections.get("fleet"))
    values: dict[str, Any] = {
        "seed": seed,
        "rounds": rounds,
        **{key: sections[key] for key in ("name", "checkpoint_every") if key in sections},
        "data": {"name": FROM_PYTHON, **split_keys},
        "model": {"name": FROM_PYTHON, **values_of("cut", sections.get("cut"))},
        "task": task_keys,
        "clients": clients_section(ratios, fleet, rates),
        "method": method_section(sections.get("method", "fedplt")),
        "training": training,
        "engine": {} if callable(engine) else values_of("engine", engine),
    }
    if fleet:
        values["fleet"] = dict(fleet)
    for key in ("sampling", "server", "messages", "privacy", "evaluation", "diagnostics"):
        if sections.get(key) is not None:
            values[key] = dict(values_of(key, sections[key]))
    make_absolute(values)
    config = parse_config(values)
    job = make_job(config, model, data, split=split, ratios=ratios, task=task, augment=augment)
    make = engine if callable(engine) else None
    return _run(job, out, make, on_round, verbose, resume=resume, overwrite=overwrite)


_MOVED = {
    "test_data": "fedplt.train(model, fedplt.TrainingData(train, validation, test=...), ...)",
    "collate": "fedplt.train(model, fedplt.TrainingData(train, validation, collate=...), ...)",
    "learning_rates": "learning_rate=[0.1, 0.05, ...]",
    "loss": 'task={"name": "classification", "loss": my_loss}',
    "metric": 'task={"name": "regression", "metric": "mae"}',
    "augment": 'training={"augment": my_augment}',
    "data": 'split={"alpha": 0.1}',
}
"""Former arguments of :func:`train`, and what to write now."""


def _refuse_unknown(sections: Sections) -> None:
    for key in sections.keys() - Sections.__annotations__.keys():
        if key in _MOVED:
            raise ConfigError(f"this argument was moved; write {_MOVED[key]}.", key=key)
        for name, field in RunConfig.model_fields.items():
            if key in getattr(field.annotation, "model_fields", ()):
                given = {"data": "split", "model": "cut"}.get(name, name)
                example = f"{given}={{{key!r}: ...}}"
                raise ConfigError(f"it is a key of a section; write {example}.", key=key)
        known = [*Sections.__annotations__, *inspect.signature(train).parameters]
        raise ConfigError(f"there is no such argument. {did_you_mean(key, known)}", key=key)


def _split(
    given: str | Split | Sequence[Any] | DataConfig | Values | None, number: int
) -> tuple[Values, Split | None]:
    """The keys of ``[data]`` that describe a split, and the split itself if it is an object."""
    if isinstance(given, str):
        return {"split": given}, None
    if given is None or isinstance(given, (DataConfig, Mapping)):
        return values_of("split", given), None
    made = given if isinstance(given, Split) else split_given(given, number)
    return {"split": "given", "split_file": FROM_PYTHON}, made
