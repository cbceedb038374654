"""Verbs about devices: plan a fleet, measure this machine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedplt.cli.app import app, figures, save_picture
from fedplt.cli.model import key_values
from fedplt.errors import ConfigError, CutError, ExampleError, FleetError

if TYPE_CHECKING:
    from fedplt.federation.fleet_config import WorkConfig
    from fedplt.fleet import Workload

Model = Annotated[
    str | None, typer.Option(help="A built-in model, or package.module:function (exact FLOPs).")
]
Shape = Annotated[
    str | None,
    typer.Option(help="Input shape of one example, such as 3,32,32 (not needed if built-in)."),
]


@app.command()
def fleet(
    devices: Annotated[Path, typer.Argument(help="Devices: a .toml or .csv file.")],
    model: Model = None,
    shape: Shape = None,
    run: Annotated[
        Path | None, typer.Option(help="Take model and local work from this run configuration.")
    ] = None,
    deadline_seconds: Annotated[
        float | None, typer.Option(help="Plan for rounds of this length.")
    ] = None,
    percentile: Annotated[
        float | None, typer.Option(help="Plan for this percentile of the full training times.")
    ] = None,
    min_ratio: Annotated[
        float | None, typer.Option(help="The smallest ratio that a device may get.")
    ] = None,
    may_freeze: Annotated[
        bool, typer.Option("--may-freeze", help="Slow devices may freeze their first layers.")
    ] = False,
    may_cut_steps: Annotated[
        bool, typer.Option("--may-cut-steps", help="Slow devices may take fewer local steps.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
    picture: Annotated[
        Path | None, typer.Option(help="Draw times into this .png, .svg or .pdf.")
    ] = None,
) -> None:
    """Plan what each device trains, so that all devices meet the round time."""
    from fedplt.federation.device_files import read_fleet
    from fedplt.federation.fleet import plan_devices
    from fedplt.fleet import fleet_json, fleet_summary

    if deadline_seconds is not None and percentile is not None:
        raise FleetError("--deadline-seconds and --percentile: give one of them.")
    for name, value in (("--model", model), ("--shape", shape)):
        if run is not None and value is not None:
            raise FleetError(f"--run and {name}: give one of them.")
    file = read_fleet(devices)
    # The command line takes precedence over the file.
    flags: dict[str, Any] = {
        "may_freeze": may_freeze or file.target.may_freeze,
        "may_cut_steps": may_cut_steps or file.target.may_cut_steps,
    }
    if deadline_seconds is not None or percentile is not None:
        flags |= {"deadline_seconds": deadline_seconds, "percentile": percentile}
    if min_ratio is not None:
        flags["min_ratio"] = min_ratio
    workload = _run_workload(run) if run else _workload(file.work, model, shape, devices)
    made = plan_devices(file.devices, workload, file.target.model_copy(update=flags))
    typer.echo(json.dumps(fleet_json(made), indent=2) if as_json else fleet_summary(made))
    if picture:
        figures()  # fails early if matplotlib is missing
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
    passes: Annotated[int, typer.Option(min=1, help="More passes: slower, more precise.")] = 12,
    name: Annotated[
        str, typer.Option(help="Name of this machine in the profile.")
    ] = "this-machine",
    down: Annotated[str, typer.Option(help="Download bandwidth (not measured).")] = "100 Mbit/s",
    up: Annotated[str, typer.Option(help="Upload bandwidth (not measured).")] = "20 Mbit/s",
    out: Annotated[
        Path | None, typer.Option(help="Also write the device to this file (.toml).")
    ] = None,
) -> None:
    """Measure how fast this machine trains a model, and print it as a device."""
    from fedplt.client.probing import probe
    from fedplt.cutting.example import example_model
    from fedplt.files import write_text
    from fedplt.fleet.quantities import DOWN, UP, parse_quantity

    bandwidths = parse_quantity(DOWN, down), parse_quantity(UP, up)
    known_shape = parse_shape(shape) if shape else ()
    with _shape_is_asked_for():
        example = example_model(model, key_values("--option", option), known_shape)
    found = probe(*example, batch_size=batch_size, passes=passes)
    profile = found.profile(name, *bandwidths)  # refuses impossible values
    device = (
        f"[[device]]\nname = {json.dumps(profile.name)}\n"
        f'speed = "{profile.flops_per_second / 1e9:.3g} GFLOP/s"\n'
        f'down = "{down}"\nup = "{up}"\n'
    )
    typer.echo(found.summary() + "\n\nFor a fleet file (the bandwidths were not measured):\n")
    typer.echo(device, nl=False)
    if out is not None:
        try:
            write_text(out, device)
        except OSError as error:
            raise FleetError(f"--out {out} cannot be written: {error.strerror}") from error


def parse_shape(text: str) -> tuple[int, ...]:
    try:
        shape = tuple(int(part) for part in text.split(","))
    except ValueError:
        shape = ()
    if not shape or min(shape) < 1:
        raise FleetError(f"--shape {text}: write it like 784 or 3,32,32.")
    return shape


def _workload(work: WorkConfig, model: str | None, shape: str | None, file: Path) -> Workload:
    """The file's workload, with the model and input shape from the command line if given."""
    from fedplt.federation.fleet import workload_from_config

    flags: dict[str, Any] = {}
    if model is not None:
        flags |= {"cost": "exact", "model": model, "options": {}, "num_parameters": None}
    if model is not None or shape is not None:
        flags["shape"] = list(parse_shape(shape)) if shape else []
    try:
        with _shape_is_asked_for():
            return workload_from_config(work.model_copy(update=flags))
    except (ConfigError, CutError) as error:
        if model is None:  # the model comes from the file
            raise FleetError(f"{file}: work.model: {error}") from error
        raise


@contextmanager
def _shape_is_asked_for() -> Iterator[None]:
    """Add the advice to give --shape to errors about a missing example input."""
    try:
        yield
    except ExampleError as error:
        raise ConfigError(
            f"{error} Give the shape of one example, without the batch, such as --shape 3,32,32."
        ) from error


def _run_workload(path: Path) -> Workload:
    from fedplt.federation.config_file import load_config
    from fedplt.federation.job import workload_without_data

    return workload_without_data(load_config(path))
