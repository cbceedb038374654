"""The verb that runs the paper's experiments."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedplt.cli.app import app, err, out
from fedplt.cli.comparing import parse_seeds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedplt.experiments import Block, Place

QUICK_ROUNDS, QUICK_SEEDS = 30, "1,2"


@app.command()
def reproduce(
    experiment: Annotated[
        str | None, typer.Argument(help="exp1, exp2, exp3, study or relu-logits; nothing: a list.")
    ] = None,
    pair: Annotated[
        str | None, typer.Option(help="fashion-fcn, cifar-fcn or cifar-resnet (default: all).")
    ] = None,
    methods: Annotated[
        str | None, typer.Option(help="Contestants by commas, such as fedavg,fedplt.")
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="By commas (default: 1,2,3).")] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Default: the paper's.")] = None,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="30 rounds, two seeds, fashion-fcn, in a folder of its own."),
    ] = False,
    out_folder: Annotated[
        Path | None, typer.Option("--out", help="Folder of the runs (default: runs/reproduce).")
    ] = None,
    results: Annotated[
        Path | None, typer.Option(help="Folder of tables and figures (default: OUT/results).")
    ] = None,
    processes: Annotated[
        int | None, typer.Option(help="Runs at a time (default: one per core).", min=1)
    ] = None,
    train: Annotated[
        bool, typer.Option("--train/--no-train", help="Or only write down what is there.")
    ] = True,
) -> None:
    """Run the paper's experiments; the same command continues them, more seeds or rounds add."""
    from fedplt.experiments import Place, find_blocks

    folder = out_folder or Path("runs") / ("reproduce-quick" if quick else "reproduce")
    place = Place(folder, results or folder / "results")
    numbers = parse_seeds(seeds or (QUICK_SEEDS if quick else "1,2,3"))
    length = rounds or (QUICK_ROUNDS if quick else None)
    if experiment is None:
        _list(place, numbers, length)
        return
    names = [name.strip() for name in methods.split(",")] if methods else None
    chosen = pair or ("fashion-fcn" if quick else None)
    problems = 0
    for block in find_blocks(experiment, chosen, names):
        problems += (
            _run(block, place, numbers, length, processes) if train else _record(block, place)
        )
    if problems:
        raise typer.Exit(1)


def _record(block: Block, place: Place) -> int:
    from fedplt.experiments import record

    recorded = record(block, place)
    if not recorded.runs:
        err.print(f"{block.experiment}, {block.pair}: no run has ended yet.")
        return 1
    return 0


def _run(
    block: Block, place: Place, seeds: list[int], rounds: int | None, processes: int | None
) -> int:
    from fedplt.experiments import reproduce as run_block
    from fedplt.report.live import fetch_progress
    from fedplt.report.live_comparison import comparison_progress

    out.print(f"{block.experiment}, {block.setting.title}: {_state(block, place, seeds, rounds)}")
    try:
        with comparison_progress(err) as watch:
            failed = run_block(
                block, place, seeds, rounds or block.setting.rounds,
                processes=processes, watch=watch, fetching=lambda: fetch_progress(err),
            )  # fmt: skip
    except KeyboardInterrupt:
        err.print("stopped and saved. The same command continues it.")
        raise typer.Exit(130) from None
    out.print(f"{place.runs_file(block)}", soft_wrap=True)
    for (name, seed), why in failed.items():
        err.print(f"{name}, seed {seed}: {why}", soft_wrap=True)
    return len(failed)


def _list(place: Place, seeds: list[int], rounds: int | None) -> None:
    from fedplt.experiments import EXPERIMENTS
    from fedplt.text import table

    rows = []
    for experiment in EXPERIMENTS.values():
        for block in experiment.blocks.values():
            names = ", ".join(contestant.name for contestant in block.contestants)
            rows.append([experiment.name, block.pair, *_cells(block, place, seeds, rounds), names])
    header = ["experiment", "pair", "rounds", "done", "time left", "contestants"]
    typer.echo(table(header, rows, left=(0, 1, 5)))
    typer.echo(
        f"\nseeds {', '.join(map(str, seeds))}; done in {place.out}, of all runs; the time left is "
        "for this machine's cores, as rounds took here or elsewhere.\n"
        + "\n".join(f"{e.name}: {e.title}" for e in EXPERIMENTS.values())
    )


def _cells(block: Block, place: Place, seeds: Sequence[int], rounds: int | None) -> list[str]:
    from fedplt.engines.simulator.engine import available_cores
    from fedplt.experiments import counts, seconds_left
    from fedplt.text import duration_text

    length = rounds or block.setting.rounds
    number = counts(block, place, seeds, length)
    left = seconds_left(block, place, seeds, length, available_cores())
    time = f"about {duration_text(left)}" if left else "-"
    return [str(length), f"{number['done']} of {number['runs']}", time]


def _state(block: Block, place: Place, seeds: Sequence[int], rounds: int | None) -> str:
    length, done, time = _cells(block, place, seeds, rounds)
    return f"{length} rounds, {done} runs are done" + (f", {time} left" if time != "-" else "")
