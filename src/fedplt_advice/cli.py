"""``fedplt advise``: which strategy to take for a fleet."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedplt.cli.app import Devices, Set, out, print_json, verb
from fedplt.cli.comparing import Processes, Seeds, parse_seeds, runs_shown
from fedplt.errors import ConfigError

QUICK_MINUTES = 1.8


@verb()
def advise(
    devices: Devices,
    run: Annotated[Path, typer.Option(help="Configuration with your model, data and training.")],
    seeds: Seeds = "1,2,3",
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
    processes: Processes = None,
) -> None:
    """Train several strategies on your fleet, simulated, and recommend one.

    The same command, started again, continues where it stopped.
    """
    from fedplt.configuration import load_config
    from fedplt_advice.advise import advise as run_advice
    from fedplt_advice.page import write_advice

    if quick and minutes is not None:
        raise ConfigError("--quick and --minutes: give one of them.")
    settings = load_config(run, set_ or [])
    folder = out_folder or Path("runs") / f"advise-{settings.name}-{devices.stem}"
    with runs_shown(run, set_) as shown:
        advice = run_advice(
            settings, devices, folder,
            seeds=parse_seeds(seeds), deadline_seconds=deadline_seconds, hours=hours,
            minutes=QUICK_MINUTES if quick else minutes, rates=_rates(rates), target=target,
            processes=processes, **shown,
        )  # fmt: skip
    out.print(advice.text())
    page = write_advice(folder, advice)
    out.print(f"\nresults: {folder / 'advice.json'}\nreport: {page}")
    print_json(advice.to_json)


def _rates(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",") if part.strip()]
    except ValueError as error:
        raise ConfigError(f"--rates {text}: write numbers with commas: 0.05,0.1.") from error
