"""``fedplt advise``: which strategy to take for a fleet."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedplt.cli.app import Devices, Set, err, out, print_json, status, verb
from fedplt.cli.comparing import parse_seeds
from fedplt.cli.prepare import fetch_progress
from fedplt.errors import ConfigError

QUICK_MINUTES = 1.8


@verb()
def advise(
    devices: Devices,
    run: Annotated[Path, typer.Option(help="Configuration with your model, data and training.")],
    seeds: Annotated[str, typer.Option(help="Seeds, comma-separated.")] = "1,2,3",
    deadline_seconds: Annotated[
        float | None, typer.Option(help="Length of a round (default: the planner's choice).")
    ] = None,
    hours: Annotated[
        float | None,
        typer.Option(help="Compare after so many simulated hours (default: all planned rounds)."),
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(help="Take at most so many minutes; drop weak strategies early.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Take two minutes at most.")] = False,
    rates: Annotated[
        str, typer.Option(help="Learning rates to try with every strategy, comma-separated.")
    ] = "",
    target: Annotated[
        float | None, typer.Option(help="Report the time to this score, such as 0.7.")
    ] = None,
    set_: Set = None,
    out_folder: Annotated[
        Path | None,
        typer.Option("--out", help="Folder of all runs (default: runs/advise-NAME-DEVICES)."),
    ] = None,
    processes: Annotated[
        int | None, typer.Option(help="Runs at a time (default: one per core).", min=1)
    ] = None,
) -> None:
    """Train several strategies on your fleet, simulated, and recommend one.

    The same command, started again, continues where it stopped.
    """
    from fedplt.comparison import advise as run_advice
    from fedplt.comparison.progress import comparison_progress
    from fedplt.configuration import load_config, placing
    from fedplt.report.page import write_advice

    if quick and minutes is not None:
        raise ConfigError("--quick and --minutes: give one of them.")
    settings = load_config(run, set_ or [])
    folder = out_folder or Path("runs") / f"advise-{settings.name}-{devices.stem}"
    try:
        with placing(run, set_ or []), comparison_progress(status) as watch:
            advice = run_advice(
                settings, devices, folder,
                seeds=parse_seeds(seeds), deadline_seconds=deadline_seconds, hours=hours,
                minutes=QUICK_MINUTES if quick else minutes, rates=_rates(rates), target=target,
                processes=processes, watch=watch, fetching=lambda: fetch_progress(status),
            )  # fmt: skip
    except KeyboardInterrupt:
        err.print("stopped and saved. Start it again to continue.")
        raise typer.Exit(130) from None
    out.print(advice.text())
    page = write_advice(folder, advice)
    out.print(f"\nresults: {folder / 'advice.json'}\nreport: {page}")
    print_json(advice.to_json)


def _rates(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",") if part.strip()]
    except ValueError as error:
        raise ConfigError(f"--rates {text}: write numbers with commas: 0.05,0.1.") from error
