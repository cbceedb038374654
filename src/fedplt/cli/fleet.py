"""Verbs about devices: plan a fleet, measure this machine."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedplt.cli.app import app, figures, save_picture
from fedplt.cli.model import key_values
from fedplt.errors import ConfigError, CutError, FleetError

if TYPE_CHECKING:
    from fedplt.fleet import Workload
    from fedplt.fleet.settings import TargetSettings, WorkSettings

Model = Annotated[
    str | None, typer.Option(help="A built-in model, or package.module:function (exact FLOPs).")
]
Shape = Annotated[
    str | None, typer.Option(help="Of one example, such as 3,32,32; built-in models know theirs.")
]


@app.command()
def fleet(
    devices: Annotated[Path, typer.Argument(help="Devices: a .toml or .csv file.")],
    model: Model = None,
    shape: Shape = None,
    run: Annotated[
        Path | None, typer.Option(help="Take model and local work from this run configuration.")
    ] = None,
    deadline: Annotated[float | None, typer.Option(help="Aim for this many seconds.")] = None,
    percentile: Annotated[
        float | None, typer.Option(help="Aim for this percentile of the full training times.")
    ] = None,
    min_ratio: Annotated[float | None, typer.Option(help="The smallest ratio to give.")] = None,
    freeze: Annotated[
        bool, typer.Option("--freeze", help="Devices that cannot keep up may freeze first layers.")
    ] = False,
    local_steps: Annotated[
        bool, typer.Option("--local-steps", help="... or else take fewer local steps.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
    picture: Annotated[
        Path | None, typer.Option(help="Draw times into this .png, .svg or .pdf.")
    ] = None,
) -> None:
    """What should each device train so that nobody straggles?"""
    from fedplt.fleet import fleet_json, fleet_summary, plan_fleet, read_fleet
    from fedplt.fleet.settings import target_settings, work_settings

    if deadline is not None and percentile is not None:
        raise FleetError("--deadline and --percentile: give one of them.")
    if run is not None and model is not None:
        raise FleetError("--run and --model: give one of them.")
    file = read_fleet(devices)
    try:
        work, goal = work_settings(file.work), target_settings(file.target)
    except FleetError as error:
        raise FleetError(f"{devices}: {error}") from error
    if model is not None:
        work = replace(work, cost="exact", model=model, options={}, num_parameters=0)
    if shape is not None:
        work = replace(work, shape=parse_shape(shape))
    goal = _with_flags(goal, deadline, percentile, min_ratio, freeze, local_steps)
    try:
        workload = _workload(work) if run is None else _run_workload(run)
    except (ConfigError, CutError) as error:
        if run is None and model is None:  # it is the file that names the model
            raise FleetError(f"{devices}: work.model: {error}") from error
        raise
    made = plan_fleet(
        file.devices,
        workload,
        goal.target(),
        min_ratio=goal.min_ratio,
        may_freeze=goal.may_freeze,
        may_cut_steps=goal.may_cut_steps,
    )
    typer.echo(json.dumps(fleet_json(made), indent=2) if as_json else fleet_summary(made))
    if picture:
        figures()  # says what to install where matplotlib is missing
        from fedplt.report.fleet_figures import fleet_figure

        save_picture(fleet_figure(made), picture)


@app.command()
def probe(
    model: Annotated[str, typer.Argument(help="A built-in model, or package.module:function.")],
    shape: Shape = None,
    option: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="For the model's function.")
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1)] = 64,
    passes: Annotated[int, typer.Option(min=1, help="More is slower and steadier.")] = 12,
    name: Annotated[str, typer.Option(help="Of this machine, in the profile.")] = "this-machine",
    down: Annotated[str, typer.Option(help="Its bandwidth, which is not measured.")] = "100 Mbit/s",
    up: Annotated[str, typer.Option(help="The same for uploads.")] = "20 Mbit/s",
) -> None:
    """Measure how fast this machine trains a model, and print it as a device."""
    from fedplt.client.probing import probe
    from fedplt.cutting.example import example_model
    from fedplt.fleet.devices import FIELDS
    from fedplt.fleet.quantities import parse_quantity

    bandwidths = parse_quantity(FIELDS[1], down), parse_quantity(FIELDS[2], up)
    known_shape = parse_shape(shape) if shape else ()
    found = probe(
        *example_model(model, key_values("--option", option), known_shape),
        batch_size=batch_size,
        passes=passes,
    )
    profile = found.profile(name, *bandwidths)  # refuses what no device has
    typer.echo(found.summary() + "\n\nFor a fleet file (the bandwidths were not measured):\n")
    typer.echo(f"[[device]]\nname = {json.dumps(profile.name)}")
    typer.echo(f'speed = "{profile.flops_per_second / 1e9:.3g} GFLOP/s"')
    typer.echo(f'down = "{down}"\nup = "{up}"')


def parse_shape(text: str) -> tuple[int, ...]:
    try:
        shape = tuple(int(part) for part in text.split(","))
    except ValueError:
        shape = ()
    if not shape or min(shape) < 1:
        raise FleetError(f"--shape {text}: write it like 784 or 3,32,32.")
    return shape


def _with_flags(
    goal: TargetSettings,
    deadline: float | None,
    percentile: float | None,
    min_ratio: float | None,
    freeze: bool,
    local_steps: bool,
) -> TargetSettings:
    """What the command line says goes before what the file says."""
    if deadline is not None:
        goal = replace(goal, rule="deadline", seconds=deadline, percentile=None)
    if percentile is not None:
        goal = replace(goal, rule="percentile", percentile=percentile, seconds=None)
    if min_ratio is not None:
        goal = replace(goal, min_ratio=min_ratio)
    return replace(
        goal,
        may_freeze=goal.may_freeze or freeze,
        may_cut_steps=goal.may_cut_steps or local_steps,
    )


def _workload(work: WorkSettings) -> Workload:
    if work.cost == "paper" and work.num_parameters:
        return work.paper_workload(work.num_parameters)
    from fedplt.cutting.example import example_model
    from fedplt.fleet import ExactWorkload

    _, _, layers = example_model(work.model, work.options, work.shape)
    if work.cost == "paper":
        return work.paper_workload(layers.size)
    return ExactWorkload(layers, work.local_steps, work.batch_size)


def _run_workload(path: Path) -> Workload:
    from fedplt.federation.job import workload_without_data
    from fedplt.federation.load_config import load_config

    return workload_without_data(load_config(path))
