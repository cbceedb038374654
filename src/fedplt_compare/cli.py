"""``fedplt compare`` and ``fedplt advise``: methods, or strategies for a fleet, side by side."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from fedplt.cli.app import (
    Config,
    Devices,
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

Seeds = Annotated[str, typer.Option(help="Comma-separated.")]
Processes = Annotated[
    int | None, typer.Option(help="Runs at a time (default: one per core).", min=1)
]
DEFAULT = (
    "fedplt-recommended", "fedplt", "fedavg", "fedpmt", "heterofl", "fedrolex", "feddrop",
)  # fmt: skip
"""Methods compared by default, besides the configuration's own method."""
QUICK_MINUTES = 1.8


@verb()
def compare(
    config: Config,
    methods: Annotated[
        str | None,
        typer.Option(
            help=f"Names, or my_file:MyMethod, comma-separated (default: {','.join(DEFAULT)})."
        ),
    ] = None,
    seeds: Seeds = "1,2,3",
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="METHOD.KEY=VALUE", help="Set an option of one method."),
    ] = None,
    set_: Set = None,
    out_folder: Annotated[
        Path | None, typer.Option("--out", help="Folder of all runs (default: runs/compare-NAME).")
    ] = None,
    target: Annotated[
        float | None,
        typer.Option(help="Report the cost to reach this score, such as an accuracy of 0.7."),
    ] = None,
    processes: Processes = None,
) -> None:
    """Compare methods on the same data, initial weights and budgets.

    The same command, started again, continues where it stopped.
    """
    from fedplt.configuration import load_config
    from fedplt.files import write_text
    from fedplt.report.page import content_of, read_run, write_page
    from fedplt_compare.compare import compare as run_comparison
    from fedplt_compare.compare import run_folder

    settings = load_config(config, set_ or [])
    names = [n.strip() for n in methods.split(",") if n.strip()] if methods else [*DEFAULT]
    if not methods and settings.method["name"] not in names:
        names.append(settings.method["name"])
    chosen = _with_options(names, settings.method, option or [])
    folder = out_folder or Path("runs") / f"compare-{settings.name}"
    with runs_shown(config, set_) as shown:
        found = run_comparison(
            settings, chosen, parse_seeds(seeds), folder,
            target=target, processes=processes, **shown,
        )  # fmt: skip
    out.print(found.text(target))
    out.print(f"\nresults: {folder / 'comparison.json'}")
    write_text(folder / "comparison.tex", found.latex(target))
    out.print(f"tables for LaTeX: {folder / 'comparison.tex'}")
    groups = {
        label: [read_run(run_folder(folder, label, seed)) for seed in runs.histories]
        for label, runs in found.methods.items()
    }
    page = write_page(folder / "report.html", content_of(f"Comparison: {settings.name}", groups))
    out.print(f"report: {page}")
    print_json(lambda: found.to_json(target))
    try:
        save_picture(figures().comparison_figure(found.histories), folder / "comparison.png")
    except RunError as error:
        err.print(f"no picture: {error}")
    if found.problems:
        raise typer.Exit(1)


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
        typer.Option(help="Compare after this many simulated hours (default: all planned rounds)."),
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(help="Stop after this many minutes; drop weak strategies early.")
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
    from fedplt_compare.advise import advise as run_advice
    from fedplt_compare.page import write_advice

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


@contextmanager
def runs_shown(config: Path, overrides: list[str] | None) -> Iterator[dict[str, Any]]:
    """Arguments that show the progress of several runs; after Ctrl-C, print how to continue."""
    from fedplt.configuration import placing
    from fedplt_compare.progress import comparison_progress

    try:
        with placing(config, overrides or []), comparison_progress(status) as watch:
            yield {"watch": watch, "fetching": lambda: fetch_progress(status)}
    except KeyboardInterrupt:
        err.print("stopped and saved. Start it again to continue.")
        raise typer.Exit(130) from None


def parse_seeds(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise ConfigError(f"--seeds {text}: write whole numbers with commas: 1,2,3.") from error


def _with_options(
    names: list[str], configured: dict[str, Any], options: list[str]
) -> dict[str, dict[str, Any]]:
    """The methods to compare; options under ``[method]`` apply to the method named there only."""
    from fedplt.configuration import PRESET_NAMES, parse_value

    chosen: dict[str, dict[str, Any]] = {}
    for name in dict.fromkeys(names):
        label = name.rpartition(":")[2]  # my_file:MyMethod gets the label MyMethod
        if label in chosen:
            raise ConfigError(f"--methods: {chosen[label]['name']} and {name} have the same name.")
        chosen[label] = dict(PRESET_NAMES.get(name, {"name": name}))
    own = configured["name"].rpartition(":")[2]
    if chosen.get(own, {}).get("name") == configured["name"]:
        chosen[own] = dict(configured)
    elif len(configured) > 1:
        keys = ", ".join(f"method.{key}" for key in configured if key != "name")
        raise ConfigError(
            f"set for {own}, which is not compared. Add {own} to --methods, or take it out "
            "of the configuration and give options with --option METHOD.KEY=VALUE.",
            key=keys,
        )
    for option in options:
        key, equals, raw = option.partition("=")
        method, dot, name = key.strip().partition(".")
        if not (equals and dot and name):
            raise ConfigError(f"--option {option}: write METHOD.KEY=VALUE.")
        if method not in chosen:
            raise ConfigError(
                f"--option {option}: {method} is not compared. {did_you_mean(method, chosen)}"
            )
        if name == "name":
            raise ConfigError(f"--option {option}: choose methods by --methods, not by this key.")
        chosen[method][name] = parse_value(raw)
    return chosen


def _rates(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",") if part.strip()]
    except ValueError as error:
        raise ConfigError(f"--rates {text}: write numbers with commas: 0.05,0.1.") from error
