"""Verbs about runs: plan, run, resume, report, curve."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean, pstdev
from typing import TYPE_CHECKING, Annotated

import typer

from fedplt.cli.app import Config, Folder, Set, app, err, figures, out, save_picture
from fedplt.errors import RunError

if TYPE_CHECKING:
    from fedplt.federation import OnRound, RoundRecord, RunFolder

Tensorboard = Annotated[
    bool, typer.Option("--tensorboard", help="Log every round into the run's tensorboard/ folder.")
]


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
    tensorboard: Tensorboard = False,
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
    with (
        _stopping(path),
        rounds_progress(out, 0, settings.rounds) as show,
        _tracked(path, tensorboard, 0, show) as on_round,
    ):
        run_job(job, path, on_round=on_round)
    _finish(RunFolder.open(path))


@app.command()
def resume(folder: Folder, set_: Set = None, tensorboard: Tensorboard = False) -> None:
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
    with (
        _stopping(folder),
        rounds_progress(out, done, job.config.rounds) as show,
        _tracked(folder, tensorboard, done, show) as on_round,
    ):
        run_job(job, folder, resume=True, on_round=on_round)
    _finish(RunFolder.open(folder))


@app.command()
def report(
    folders: Annotated[list[Path], typer.Argument(help="Folders of one or more runs.")],
    page: Annotated[
        Path | None,
        typer.Option("--out", help="The page (default: report.html in the first folder)."),
    ] = None,
    title: Annotated[str | None, typer.Option(help="Its title.")] = None,
) -> None:
    """Write an HTML page about runs: curves, who trains what, costs, differences."""
    path = write_report(folders, page or folders[0] / "report.html", title)
    out.print(f"report: {path}", soft_wrap=True)


@app.command()
def curve(
    folders: Annotated[list[Path], typer.Argument(help="Folders of runs.")],
    picture: Annotated[Path, typer.Option(help="A .png, .svg or .pdf file.")] = Path("curve.png"),
) -> None:
    """Draw accuracy curves; runs that differ only in their seed become mean and spread."""
    from fedplt.report.page import read_groups

    groups = {name: [run.history for run in runs] for name, runs in read_groups(folders).items()}
    for name, histories in groups.items():
        finals = [100 * history.final_accuracy() for history in histories]
        out.print(
            f"{name}: {fmean(finals):.2f} +- {pstdev(finals):.2f} % ({len(finals)} runs, "
            f"mean of the last 10 evaluations: {', '.join(f'{value:.2f}' for value in finals)})",
            soft_wrap=True,
        )
    save_picture(figures().accuracy_figure(groups), picture)


def write_report(folders: list[Path], page: Path, title: str | None = None) -> Path:
    """Write the page of these runs, and say where it is."""
    from fedplt.report.page import content_of, read_groups, write_page

    groups = read_groups(folders)
    only = next(iter(groups.values()))[0] if len(groups) == 1 else None
    named = only.config.name if only and only.config else ", ".join(groups)
    return write_page(page, content_of(title or named, groups))


def _finish(folder: RunFolder) -> None:
    history = folder.history()
    last = min(10, len(history.accuracy))
    text = f"accuracy {100 * history.final_accuracy():.2f} % (mean of the last {last} evaluations)"
    if history.test_accuracy is not None:
        text += f", {100 * history.test_accuracy:.2f} % on the test set"
    out.print(text)
    out.print(f"model:  {folder.path / 'model.safetensors'}", soft_wrap=True)
    page = write_report([folder.path], folder.path / "report.html")
    out.print(f"report: {page}", soft_wrap=True)


@contextmanager
def _tracked(folder: Path, wanted: bool, done: int, show: OnRound) -> Iterator[OnRound]:
    """Log every round for TensorBoard too, if that is wanted."""
    if not wanted:
        yield show
        return
    try:
        from fedplt.report.tracking import tensorboard_rounds
    except ImportError as error:
        why = "--tensorboard needs TensorBoard: pip install 'fedplt[tracking]'"
        raise RunError(why) from error
    with tensorboard_rounds(folder / "tensorboard", done) as log:

        def both(record: RoundRecord) -> None:
            log(record)
            show(record)

        yield both


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
