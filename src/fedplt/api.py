"""What most users call: run, resume, train, evaluate, load."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from torch import nn

from fedplt.client import Loss, Metric, Task
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
    PrivacyConfig,
    SamplingConfig,
    ServerConfig,
    TrainingConfig,
    as_config,
    make_absolute,
    override,
    overrides_of,
    parse_config,
    placing,
)
from fedplt.data import Augment, Collate, Split, TrainingData, split_given
from fedplt.engines import engine_of
from fedplt.errors import ConfigError
from fedplt.federation import (
    History,
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
        warn_of_gaps(job.plan)
        with shown_progress(job, verbose) as show:
            on_round = both(show, on_round)
            make = engine or engine_of(job.config)
            return run_job(job, out, engine=make, on_round=on_round, overwrite=overwrite)


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
    warn_of_gaps(job.plan)
    with shown_progress(job, verbose, done) as show:
        on_round = both(show, on_round)
        make = engine or engine_of(job.config)
        return run_job(job, folder, resume=True, engine=make, on_round=on_round)


def train(
    model: nn.Module,
    train_data: Any,
    validation_data: Any,
    *,
    rounds: int,
    ratios: Sequence[float | Allocation] | None = None,
    fleet: FleetConfig | Values | None = None,
    test_data: Any = None,
    split: str | Split | Sequence[Any] | None = None,
    learning_rates: Sequence[float] | None = None,
    task: str | Task = "classification",
    loss: Loss | None = None,
    metric: str | Metric | None = None,
    augment: Augment | None = None,
    collate: Collate | None = None,
    seed: int = 0,
    name: str = "run",
    checkpoint_every: int = 10,
    cut: CutConfig | Values | None = None,
    data: DataConfig | Values | None = None,
    method: str | type[Method] | Values = "fedplt",
    sampling: SamplingConfig | Values | None = None,
    training: TrainingConfig | Values | None = None,
    server: ServerConfig | Values | None = None,
    evaluation: EvaluationConfig | Values | None = None,
    privacy: PrivacyConfig | Values | None = None,
    diagnostics: DiagnosticsConfig | Values | None = None,
    engine: EngineConfig | Values | MakeEngine | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
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
        split: ``"iid"``, ``"dirichlet"``, ``"shards"``, or one array of example indices per client
            (default as in a configuration: by the keys of ``data``, else ``"iid"``).
        learning_rates: one per client (default: ``training["learning_rate"]`` for all).
        task: ``"classification"``, ``"regression"``, ``"multi-label"``, ``"next-token"``, or a
            :class:`fedplt.Task`: a loss and a metric.
        loss: instead of the task's: ``loss(outputs, targets)``, the mean over a batch.
        metric: instead of the task's: a name such as ``"mae"``, or a :class:`fedplt.Metric`.
        augment: changes a batch of training inputs: ``augment(inputs, generator)``.
        collate: makes a batch of a list of a Dataset's items, as for a DataLoader.
        seed: seed of all random draws.
        name, checkpoint_every: as in a configuration.
        cut: arguments of :func:`fedplt.cut`: ``{"never": ["backbone"]}``.
        data: further keys of the split: ``{"alpha": 0.1}``.
        method: a name, your own class, or a dictionary with options: ``{"name": "heterofl",
            "scaler": "all"}``.
        sampling, training, server, evaluation, privacy, diagnostics: sections of a configuration.
            ``sampling={"name": MySampler}`` and ``server={"aggregation": MyRule}`` take your own
            classes, too.
        engine: the section ``engine``, or a function that makes an engine.
        out: a run folder (config, plan, records, checkpoints, final model); None: nothing on disk.
        resume: continue the run in ``out``, with the same arguments; ends with the same bits.
        overwrite: delete the run that is in ``out``, when the new one starts.
        on_round: called with every round's :class:`fedplt.RoundRecord`, in order.
        verbose: show progress; default: on a terminal and in a notebook.

    Ctrl-C saves the run (with ``out``) and raises KeyboardInterrupt.
    """
    if resume and out is None:
        raise ConfigError("resume=True needs out: the folder of the run to continue.")
    if resume and overwrite:
        raise ConfigError("resume=True continues a run, overwrite=True deletes it: set one.")
    optional = {"augment": augment, "collate": collate}
    given_functions = {key: value for key, value in optional.items() if value is not None}
    check_arguments(model, on_round=on_round, **given_functions)
    ratios, learning_rates = as_list(ratios), as_list(learning_rates)
    samples = TrainingData(train_data, validation_data, test_data, collate)
    named_split, given = _split(split, len(samples.train))
    named_task, chosen = task_section(task, loss, metric)
    planned = values_of("fleet", fleet)
    sections = {
        "data": {"name": FROM_PYTHON, **named_split, **values_of("data", data)},
        "model": {"name": FROM_PYTHON, **values_of("cut", cut)},
        "task": named_task,
        "clients": clients_section(ratios, planned, learning_rates),
        **({"fleet": planned} if planned else {}),
        "method": method_section(method),
        "sampling": values_of("sampling", sampling),
        "training": {
            **values_of("training", training),
            **({"augment": FROM_PYTHON} if augment else {}),
        },
        "server": values_of("server", server),
        "evaluation": values_of("evaluation", evaluation),
        "diagnostics": values_of("diagnostics", diagnostics),
        "engine": {} if callable(engine) else values_of("engine", engine),
        **({} if privacy is None else {"privacy": values_of("privacy", privacy)}),
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
    make_engine = engine if callable(engine) else engine_of(config)
    with shown_progress(job, verbose) as show:
        return run_job(
            job, out, resume=resume, engine=make_engine, on_round=both(show, on_round),
            overwrite=overwrite,
        )  # fmt: skip


def _split(given: str | Split | Sequence[Any] | None, number: int) -> tuple[Values, Split | None]:
    """The keys of ``[data]`` that describe a split, and the split itself unless it is named."""
    if given is None or isinstance(given, str):
        return {} if given is None else {"split": given}, None
    made = given if isinstance(given, Split) else split_given(given, number)
    return {"split": "given", "split_file": FROM_PYTHON}, made
