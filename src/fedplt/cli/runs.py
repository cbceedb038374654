"""Verbs about runs: plan, run, resume, watch, evaluate, report, curve, export."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import astuple
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedplt.cli.app import (
    Config,
    Folder,
    Set,
    err,
    figures,
    out,
    print_json,
    save_picture,
    status,
    verb,
)
from fedplt.cli.prepare import fetch_progress
from fedplt.errors import ConfigError, RunError, did_you_mean
from fedplt.imports import optional_module
from fedplt.text import SAMPLE_STD, counted

if TYPE_CHECKING:
    from fedplt.federation import Job, RunFolder

Tensorboard = Annotated[
    bool, typer.Option("--tensorboard", help="Log every round into the run's tensorboard/ folder.")
]


@verb()
def plan(
    config: Config,
    set_: Set = None,
    picture: Annotated[
        Path | None,
        typer.Option(help="Draw which client trains what into this .png, .svg or .pdf."),
    ] = None,
) -> None:
    """Show which client would train what, before any training."""
    from fedplt.configuration import load_config, placing
    from fedplt.federation import coverage_warnings, plan_without_data
    from fedplt.federation.cost_forecast import memory_text

    with placing(config, set_ or []):
        settings = load_config(config, set_ or [])
        made = plan_without_data(settings)
    for text in [made.summary(), *coverage_warnings(settings, made)]:
        out.print(text)
    if memory := settings.server.memory:
        out.print(memory_text(memory.num_bytes(made)))
    print_json(made.to_json)
    if picture:
        save_picture(figures().plan_figure(made), picture)


@verb()
def run(
    config: Config,
    set_: Set = None,
    out_folder: Annotated[
        Path | None, typer.Option("--out", help="Folder of the run (default: runs/NAME-seedN).")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Same as --set seed=N.")] = None,
    engine: Annotated[
        str | None,
        typer.Option(help="simulator (default) or flower. Same as --set engine.name=NAME."),
    ] = None,
    tensorboard: Tensorboard = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Delete the run that is in this folder.")
    ] = False,
) -> None:
    """Train as a configuration describes and write a report."""
    from fedplt.configuration import default_folder, load_config, placing
    from fedplt.federation import RunFolder, coverage_warnings, job_from_config
    from fedplt.federation.cost_forecast import forecast
    from fedplt.fleet import available_cores, fleet_summary

    overrides = list(set_ or [])
    overrides += [] if seed is None else [f"seed={seed}"]
    overrides += [] if engine is None else [f"engine.name={engine}"]
    settings = load_config(config, overrides)
    path = out_folder or default_folder(settings)
    RunFolder.refuse_existing(path, overwrite=overwrite)
    with placing(config, overrides), fetch_progress(status) as progress:
        job = job_from_config(settings, progress)
    for text in [job.plan.summary(), *coverage_warnings(settings, job.plan)]:
        out.print(text + "\n")
    if job.devices and job.devices.plan:
        out.print(fleet_summary(job.devices.plan) + "\n")
    if len(job.samples):
        workers = settings.engine.workers or available_cores()
        out.print(forecast(job, workers).summary(path) + "\n")
    with placing(config, overrides):
        _train(job, path, 0, tensorboard, overwrite=overwrite)
    _finish(RunFolder.open(path))


@verb()
def resume(folder: Folder, set_: Set = None, tensorboard: Tensorboard = False) -> None:
    """Continue a run that was stopped or killed, to the same bits."""
    from fedplt.configuration import override, placing
    from fedplt.federation import RunFolder, prepare_resume

    changes = set_ or []
    with placing(folder / "config.toml", changes), fetch_progress(status) as progress:
        opened = RunFolder.open(folder)
        job, done = prepare_resume(opened, lambda config: override(config, changes), progress)
    out.print(f"{done} of {counted(job.config.rounds, 'round')} done.")
    for gap in job.plan.uncovered:
        out.print(f"WARNING: {gap}")
    _train(job, folder, done, tensorboard, resume=True)
    _finish(RunFolder.open(folder))


@verb()
def evaluate(
    folder: Folder,
    data: Annotated[
        str,
        typer.Argument(help="New data: 'my_data:load_test', or the name of a built-in data set."),
    ],
    best: Annotated[bool, typer.Option(help="Evaluate the model of the best round.")] = False,
    which: Annotated[
        str, typer.Option(help="model (final), last, average (with server.average), or best.")
    ] = "model",
    client: Annotated[
        int | None, typer.Option(help="Use the layers that this client keeps (fedbn).")
    ] = None,
) -> None:
    """Evaluate a run's model on new data."""
    from fedplt.api import evaluate as measure
    from fedplt.federation.run_folder.folder import RunFolder

    found = measure(folder, data, best=best, which=which, client=client)
    metric = RunFolder.open(folder).history().metric
    score = metric.text(found.score, 1)
    out.print(f"{metric.name} {score}, loss {found.loss:.4g} ({counted(found.count, 'example')})")
    values = {"score": found.score, "loss": found.loss, "num_examples": found.count}
    print_json({"metric": metric.name, **values})


@verb()
def report(
    folders: Annotated[
        list[Path], typer.Argument(help="Folders of runs, or the folder of a comparison.")
    ],
    page: Annotated[
        Path | None,
        typer.Option("--out", help="File of the page (default: report.html in the first folder)."),
    ] = None,
    title: Annotated[str | None, typer.Option(help="Title of the page.")] = None,
) -> None:
    """Write an HTML page about runs: curves, who trains what, costs, differences."""
    path = write_report(folders, page or folders[0] / "report.html", title)
    out.print(f"report: {path}")
    print_json({"report": str(path)})


@verb()
def curve(
    folders: Annotated[list[Path], typer.Argument(help="Folders of runs.")],
    picture: Annotated[Path, typer.Option(help="A .png, .svg or .pdf file.")] = Path("curve.png"),
) -> None:
    """Draw scores by round; runs that differ only in their seed become mean and spread."""
    from fedplt.comparison import spread, spread_text
    from fedplt.report.page.read_runs import final_model_of, metric_of, read_groups

    read = read_groups(folders)
    groups = {name: [run.history.shipped for run in runs] for name, runs in read.items()}
    metric = metric_of(read)
    found = {}
    for name, histories in groups.items():
        finals = [history.final_score() for history in histories]
        lasts = [history.last_score for history in histories]
        mean, std, number = astuple(spread(finals))
        text = spread_text(metric, finals, 1, sign="+-", unit=metric.unit)
        note = "one run" if std is None else f"{number} runs, +- {SAMPLE_STD}"
        note += f"; {model}" if (model := final_model_of(read[name])) else ""
        each, last = (", ".join(metric.number(v, 1) for v in values) for values in (finals, lasts))
        out.print(
            f"{name}: {text} ({note}; mean of the last 10 evaluations: {each}; last evaluation: "
            f"{last})"
        )
        found[name] = {metric.name: finals, "last": lasts, "mean": mean, "sample_std": std}
    save_picture(figures().score_figure(groups), picture)
    print_json({"picture": str(picture), "runs": found})


@verb()
def watch(
    folder: Annotated[Path, typer.Argument(help="Folder with the folders of runs.")] = Path("runs"),
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0: any free one.")] = 8000,
    host: Annotated[
        str, typer.Option(help="Address to listen on; with 0.0.0.0 others can read your runs.")
    ] = "127.0.0.1",
    name: Annotated[
        list[str] | None,
        typer.Option(help="A host name under which the page may be reached, besides localhost."),
    ] = None,
) -> None:
    """Show runs in the browser, live. Without --host, only this machine can open the page."""
    if not folder.is_dir():
        raise RunError(f"{folder} is not a folder. Name the one that has your runs.")
    for package in ("starlette", "uvicorn"):
        optional_module(package, "fedplt watch", "'fedplt[watch]'")
    from fedplt.report.watch import make_server, watch_app

    names = list(name or [])
    if host not in ("0.0.0.0", "::"):
        names.append(host)
    elif not names:
        raise ConfigError(
            f"--host {host}: give the host name or address of the page with --name, "
            "such as --name lab-server; requests for other names are refused."
        )
    server = make_server(watch_app(folder.resolve(), names), host, port)
    sockets = [server.config.bind_socket()] if port == 0 else None
    shown = sockets[0].getsockname()[1] if sockets else port
    address = f"http://{f'[{host}]' if ':' in host else host}:{shown}"
    out.print(f"{address}  (Ctrl-C ends it)")
    print_json({"address": address})
    server.run(sockets)


@verb()
def export(
    folders: Annotated[
        list[Path], typer.Argument(help="Folders of runs, or the folder of a comparison.")
    ],
    table: Annotated[
        str, typer.Option(help="rounds, layers (needs diagnostics), clients or comparison.")
    ] = "rounds",
    file: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="A .csv or .parquet file (default: TABLE.csv); for comparison .csv, .tex, .md.",
        ),
    ] = None,
) -> None:
    """Write the records of runs as a tidy table, or their comparison: CSV, Parquet, LaTeX."""
    from fedplt.report.export import TABLES, export, export_comparison
    from fedplt.report.page import read_groups, read_run, run_folders

    known = [*TABLES, "comparison"]
    if table not in known:
        raise ConfigError(f"--table {table}: {did_you_mean(table, known)}")
    path = file or Path(f"{table}.csv")
    if table == "comparison":
        number = export_comparison(read_groups(folders), path)
    else:
        number = export([read_run(folder) for folder in run_folders(folders)], table, path)
    out.print(f"{path}: {counted(number, 'row')}")
    print_json({"file": str(path), "rows": number})


def write_report(folders: list[Path], page: Path, title: str | None = None) -> Path:
    """Write the page of these runs; returns its path."""
    from fedplt.report.page import compared_runs, content_of, read_groups, write_page

    groups = read_groups(folders)
    only = next(iter(groups.values()))[0] if len(groups) == 1 else None
    named = only.config.name if only and only.config else ", ".join(groups)
    if compared_runs(folders[0]):
        named = f"Comparison: {folders[0].resolve().name}"
    return write_page(page, content_of(title or named, groups))


def _finish(folder: RunFolder) -> None:
    """Print the result and write the report."""
    from fedplt.federation.privacy_accounting import privacy_text

    history, config, model = folder.history(), folder.config(), folder.path / "model.safetensors"
    number, metric, record = min(10, len(history.scores)), history.metric, history.rounds[-1]
    shipped, of = history.shipped, f" of the {history.final_model}" if history.final_model else ""
    last, mean = metric.text(shipped.last_score, 1), metric.text(shipped.final_score(), 1)
    text = f"{metric.name}{of} {last} in the last evaluation, {mean} mean of the last {number}"
    if history.test_score is not None:
        text += f", {metric.text(history.test_score, 1)} on the test set"
    if record.round < config.rounds and history.best is not None:
        out.print(
            f"ended after round {record.round} of {config.rounds}: no better {metric.name} since "
            f"round {history.best.round} (evaluation.stop_after)"
        )
    out.print(text)
    if history.privacy is not None:
        out.print(f"privacy: {privacy_text(history.privacy)}")
    out.print(f"model:  {model}")
    report = None
    try:
        report = str(write_report([folder.path], folder.path / "report.html"))
        out.print(f"report: {report}")
    except RunError as error:  # no round was evaluated; the run itself succeeded
        err.print(f"no report: {error}")
    print_json(
        {
            "folder": str(folder.path),
            "rounds": record.round,
            "metric": metric.name,
            **history.final_numbers(),
            "total": vars(record.total),
            "model": str(model),
            "report": report,
        }
    )


def _train(job: Job, folder: Path, done: int, tensorboard: bool, **how: bool) -> None:
    """Train with a progress display and optional TensorBoard logs; Ctrl-C prints how to resume."""
    from fedplt.engines import engine_of
    from fedplt.federation import Interrupted, run_job
    from fedplt.federation.progress import both, rounds_progress
    from fedplt.report.export import tensorboard_rounds

    try:
        with ExitStack() as stack:
            shown = rounds_progress(out, done, job.config.rounds, job.metric)
            on_round = stack.enter_context(shown)
            if tensorboard:
                logged = tensorboard_rounds(folder / "tensorboard", done)
                on_round = both(stack.enter_context(logged), on_round)
            run_job(job, folder, engine=engine_of(job.config), on_round=on_round, **how)
    except Interrupted:
        err.print(f"stopped and saved. Continue with: fedplt resume {folder}")
        raise typer.Exit(130) from None
