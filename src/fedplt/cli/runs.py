"""Verbs about runs: plan, run, resume, report, curve."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Annotated

import typer

from fedplt.cli.app import (
    NO_MATPLOTLIB,
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
from fedplt.errors import RunError
from fedplt.text import SAMPLE_STD

if TYPE_CHECKING:
    from fedplt.federation.folder import RunFolder


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
    from fedplt.federation.config_file import load_config
    from fedplt.federation.config_places import placing
    from fedplt.federation.job import plan_without_data

    with placing(config, set_ or []):
        made = plan_without_data(load_config(config, set_ or []))
    out.print(made.summary(), soft_wrap=True)
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
) -> None:
    """Train as a configuration describes and write a report."""
    from fedplt.engines.start import run_job
    from fedplt.federation.config import default_folder
    from fedplt.federation.config_file import load_config
    from fedplt.federation.config_places import placing
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
    with placing(config, overrides), fetch_progress(status) as progress:
        job = job_from_config(settings, progress)
    out.print(job.plan.summary() + "\n", soft_wrap=True)
    if job.devices and job.devices.plan:
        out.print(fleet_summary(job.devices.plan) + "\n", soft_wrap=True)
    with (
        placing(config, overrides),
        _stopping(path),
        rounds_progress(out, 0, settings.rounds) as on_round,
    ):
        run_job(job, path, on_round=on_round)
    _finish(RunFolder.open(path))


@verb()
def resume(folder: Folder, set_: Set = None) -> None:
    """Continue a run that was stopped or killed, to the same bits."""
    from fedplt.engines.start import prepare_resume, run_job
    from fedplt.federation.config import RunConfig
    from fedplt.federation.config_file import override
    from fedplt.federation.config_places import placing
    from fedplt.federation.folder import RunFolder
    from fedplt.report.live import fetch_progress, rounds_progress

    def change(config: RunConfig) -> RunConfig:
        return override(config, set_ or [])

    with placing(folder / "config.toml", set_ or []), fetch_progress(status) as progress:
        job, done = prepare_resume(RunFolder.open(folder), change, progress)
    out.print(f"{done} of {job.config.rounds} rounds are done.")
    with _stopping(folder), rounds_progress(out, done, job.config.rounds) as on_round:
        run_job(job, folder, resume=True, on_round=on_round)
    _finish(RunFolder.open(folder))


@verb()
def report(folder: Folder) -> None:
    """Write an HTML page about a run: curve, plan, costs."""
    from fedplt.federation.folder import RunFolder

    path = _report(RunFolder.open(folder))
    out.print(f"report: {path}", soft_wrap=True)
    print_json({"report": str(path)})


@verb()
def curve(
    folders: Annotated[list[Path], typer.Argument(help="Folders of runs.")],
    picture: Annotated[Path, typer.Option(help="A .png, .svg or .pdf file.")] = Path("curve.png"),
) -> None:
    """Draw accuracy curves; runs that differ only in their seed become mean and spread."""
    from fedplt.federation.folder import RunFolder, by_configuration

    different = {folder.resolve(): folder for folder in folders}
    groups = by_configuration([RunFolder.open(folder) for folder in different.values()])
    found = {}
    for name, histories in groups.items():
        finals = [100 * history.final_accuracy() for history in histories]
        spread = stdev(finals) if len(finals) > 1 else None
        shown = "" if spread is None else f" +- {spread:.2f}"
        note = "one run" if spread is None else f"{len(finals)} runs, +- {SAMPLE_STD}"
        out.print(
            f"{name}: {fmean(finals):.2f}{shown} % ({note}; mean of the last 10 evaluations: "
            f"{', '.join(f'{value:.2f}' for value in finals)})",
            soft_wrap=True,
        )
        found[name] = {"accuracy": finals, "mean": fmean(finals), "sample_std": spread}
    save_picture(figures().accuracy_figure(groups), picture)
    print_json({"picture": str(picture), "runs": found})


def _finish(folder: RunFolder) -> None:
    """Print the result and write the report."""
    history, model = folder.history(), folder.path / "model.safetensors"
    last = min(10, len(history.accuracy))
    text = f"accuracy {100 * history.final_accuracy():.2f} % (mean of the last {last} evaluations)"
    if history.test_accuracy is not None:
        text += f", {100 * history.test_accuracy:.2f} % on the test set"
    out.print(text)
    out.print(f"model:  {model}", soft_wrap=True)
    report = None
    try:
        report = str(_report(folder))
        out.print(f"report: {report}", soft_wrap=True)
    except RunError as error:
        err.print(f"no report: {error}", soft_wrap=True)
    record = history.rounds[-1]
    print_json(
        {
            "folder": str(folder.path),
            "rounds": record.round,
            "accuracy_last_10": history.final_accuracy(),
            "test_accuracy": history.test_accuracy,
            "total": vars(record.total),
            "model": str(model),
            "report": report,
        }
    )


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
