"""The verb that runs the paper's experiments."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedplt.cli.app import Set, app, err, figures, out, save_picture

if TYPE_CHECKING:
    from fedplt.federation.loop import OnRound


@app.command()
def reproduce(
    experiment: Annotated[str, typer.Argument(help="study-fcn or study-resnet.")],
    rounds: Annotated[int, typer.Option(min=1, help="The paper draws 1000.")] = 300,
    out_folder: Annotated[
        Path | None, typer.Option("--out", help="Folder (default: runs/EXPERIMENT-seedN).")
    ] = None,
    seed: Annotated[int, typer.Option(min=0)] = 1,
    set_: Set = None,
    tables: Annotated[
        bool, typer.Option("--tables", help="Only show the paper's table; train nothing.")
    ] = False,
) -> None:
    """Run an experiment of the paper; call it again to continue it, or for more rounds."""
    from fedplt.experiments import find_study, run_study, series_of, study_results
    from fedplt.federation.engine import Interrupted
    from fedplt.progress import fetch_progress, rounds_progress

    study = find_study(experiment)
    if tables:
        typer.echo(study.table())
        return
    folder = out_folder or Path("runs") / f"{experiment}-seed{seed}"

    @contextmanager
    def watch(what: str, done: int, rounds: int) -> Iterator[OnRound]:
        out.print(f"{what}: {done} of {rounds} rounds are done." if done else f"{what}:")
        with rounds_progress(out, done, rounds) as on_round:
            yield on_round

    figures()  # says now, not after hours, where matplotlib is missing
    from fedplt.report.study_figures import layers_figure, model_figure

    try:
        histories = run_study(
            study, folder,
            rounds=rounds, seed=seed, watch=watch, overrides=set_ or [],
            fetching=lambda: fetch_progress(err),
        )  # fmt: skip
    except Interrupted:
        err.print("stopped and saved. The same command continues it.")
        raise typer.Exit(130) from None
    typer.echo("\n" + study_results(study, folder, histories))
    series = {label: series_of(history) for label, history in histories.items()}
    save_picture(model_figure(histories, series), folder / "model.png")
    save_picture(layers_figure(series), folder / "layers.png")
