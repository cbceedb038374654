"""Verbs about runs: plan, run, resume, report, curve."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean, pstdev
from typing import TYPE_CHECKING, Annotated

import typer

from fedplt.cli.app import NO_MATPLOTLIB, Config, Folder, Set, app, err, figures, out, save_picture
from fedplt.errors import RunError

if TYPE_CHECKING:
    from fedplt.federation.folder import RunFolder


@app.command()
def plan(
    config: Config,
    set_: Set = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
    picture: Annotated[
        Path | None,
        typer.Option(help="Draw which client trains what into this .png, .svg or .pdf."),
    ] = None,
) -> None:
    """Show which client would train what, before any training."""
    from fedplt.federation.config_file import load_config
    from fedplt.federation.job import plan_without_data

    made = plan_without_data(load_config(config, set_ or []))
    typer.echo(json.dumps(made.to_json()) if as_json else made.summary())
    if picture:
        save_picture(figures().plan_figure(made), picture)


@app.command()
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
) -> None:
    """Train as a configuration describes and write a report."""
    from fedplt.engines.start import run_job
    from fedplt.federation.config import default_folder
    from fedplt.federation.config_file import load_config
    from fedplt.federation.folder import RunFolder
    from fedplt.federation.job import job_from_config
    from fedplt.fleet import fleet_summary
    from fedplt.report.live import fetch_progress, rounds_progress

    overrides = list(set_ or [])
    overrides += [] if seed is None else [f"seed={seed}"]
    overrides += [] if engine is None else [f"engine.name={engine}"]
    settings = load_config(config, overrides)
    path = out_folder or default_folder(settings)
    RunFolder.refuse_existing(path)
    with fetch_progress(err) as progress:
        job = job_from_config(settings, progress)
    out.print(job.plan.summary() + "\n", soft_wrap=True)
    if job.devices and job.devices.plan:
        out.print(fleet_summary(job.devices.plan) + "\n", soft_wrap=True)
    with _stopping(path), rounds_progress(out, 0, settings.rounds, job.metric) as on_round:
        run_job(job, path, on_round=on_round)
    _finish(RunFolder.open(path))


@app.command()
def resume(folder: Folder, set_: Set = None) -> None:
    """Continue a run that was stopped or killed, to the same bits."""
    from fedplt.engines.start import prepare_resume, run_job
    from fedplt.federation.config import RunConfig
    from fedplt.federation.config_file import override
    from fedplt.federation.folder import RunFolder
    from fedplt.report.live import fetch_progress, rounds_progress

    def change(config: RunConfig) -> RunConfig:
        return override(config, set_ or [])

    with fetch_progress(err) as progress:
        job, done = prepare_resume(RunFolder.open(folder), change, progress)
    out.print(f"{done} of {job.config.rounds} rounds are done.")
    with _stopping(folder), rounds_progress(out, done, job.config.rounds, job.metric) as on_round:
        run_job(job, folder, resume=True, on_round=on_round)
    _finish(RunFolder.open(folder))


@app.command()
def report(folder: Folder) -> None:
    """Write an HTML page about a run: curve, plan, costs."""
    from fedplt.federation.folder import RunFolder

    out.print(f"report: {_report(RunFolder.open(folder))}", soft_wrap=True)


@app.command()
def curve(
    folders: Annotated[list[Path], typer.Argument(help="Folders of runs.")],
    picture: Annotated[Path, typer.Option(help="A .png, .svg or .pdf file.")] = Path("curve.png"),
) -> None:
    """Draw curves of scores; runs that differ only in their seed become mean and spread."""
    from fedplt.federation.folder import RunFolder
    from fedplt.federation.records import one_metric
    from fedplt.federation.run_groups import by_configuration

    different = {folder.resolve(): folder for folder in folders}
    groups = by_configuration([RunFolder.open(folder) for folder in different.values()])
    metric = one_metric(history for histories in groups.values() for history in histories)
    for name, histories in groups.items():
        finals = [history.final_score() for history in histories]
        mean, spread = metric.number(fmean(finals), 1), metric.text(pstdev(finals), 1)
        each = ", ".join(metric.number(value, 1) for value in finals)
        out.print(
            f"{name}: {mean} +- {spread} ({len(finals)} runs, mean of the last 10 evaluations: "
            f"{each})",
            soft_wrap=True,
        )
    save_picture(figures().score_figure(groups), picture)


def _finish(folder: RunFolder) -> None:
    history = folder.history()
    last, metric = min(10, len(history.scores)), history.metric
    final = metric.text(history.final_score(), 1)
    text = f"{metric.name} {final} (mean of the last {last} evaluations)"
    if history.test_score is not None:
        text += f", {metric.text(history.test_score, 1)} on the test set"
    out.print(text)
    out.print(f"model:  {folder.path / 'model.safetensors'}", soft_wrap=True)
    try:
        out.print(f"report: {_report(folder)}", soft_wrap=True)
    except RunError as error:
        err.print(f"no report: {error}", soft_wrap=True)


def _report(folder: RunFolder) -> Path:
    try:
        from fedplt.report.html import write_report
    except ImportError as error:
        raise RunError(NO_MATPLOTLIB) from error
    return write_report(folder)


class _stopping:  # noqa: N801 (used as a verb)
    """After Ctrl-C, print how to continue."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        from fedplt.federation.engine import Interrupted

        if kind is Interrupted:
            text = f"stopped and saved. Continue with: fedplt resume {self.folder}"
            err.print(text, soft_wrap=True)
            raise typer.Exit(130)
