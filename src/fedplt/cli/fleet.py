"""Verbs about devices: plan a fleet, measure this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedplt.cli.app import Devices, figures, out, print_json, save_picture, verb
from fedplt.cli.prepare import advising, key_values, parse_shape
from fedplt.errors import ConfigError, CutError, FleetError

if TYPE_CHECKING:
    from fedplt.configuration import WorkConfig
    from fedplt.fleet import Workload

Model = Annotated[
    str | None, typer.Option(help="A built-in model, or package.module:function (exact FLOPs).")
]
Shape = Annotated[
    str | None,
    typer.Option(help="Input shape of one example, such as 3,32,32 (for your own model)."),
]

GIVE_SHAPE = "Give the shape of one example, without the batch, such as --shape 3,32,32."


@verb()
def fleet(
    devices: Devices,
    model: Model = None,
    shape: Shape = None,
    run: Annotated[
        Path | None, typer.Option(help="Take model, work and target from this configuration.")
    ] = None,
    local_steps: Annotated[
        int | None, typer.Option(min=1, help="Local steps of a round (default: 16).")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Examples in a batch (default: 64).")
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
    picture: Annotated[
        Path | None, typer.Option(help="Draw times into this .png, .svg or .pdf.")
    ] = None,
) -> None:
    """Plan what each device trains, so that all devices finish a round in time."""
    from fedplt.configuration import load_config, placing, read_fleet
    from fedplt.federation.job import workload_without_data
    from fedplt.fleet import FleetTarget, fleet_json, fleet_summary, plan_deadlines, plan_fleet

    if deadline_seconds is not None and percentile is not None:
        raise FleetError("--deadline-seconds and --percentile: give one of them.")
    work_flags: dict[str, Any] = {"--model": model, "--shape": shape}
    work_flags |= {"--local-steps": local_steps, "--batch-size": batch_size}
    for name, value in work_flags.items():
        if run is not None and value is not None:
            raise FleetError(f"--run and {name}: give one of them.")
    file = read_fleet(devices)
    config, workload = None, None
    if run:
        with placing(run):
            config = load_config(run)
            workload = workload_without_data(config)
    target = file.target if config is None or config.fleet is None else config.fleet
    # The command line takes precedence over the files.
    settings = target.model_dump(include=set(FleetTarget.model_fields))
    if deadline_seconds is not None or percentile is not None:
        settings |= {"deadline_seconds": deadline_seconds, "percentile": percentile}
    settings |= _given(
        min_ratio=min_ratio, may_freeze=may_freeze or None, may_cut_steps=may_cut_steps or None
    )
    work = file.work.model_copy(update=_given(local_steps=local_steps, batch_size=batch_size))
    planned = workload or _workload(work, model, shape, devices)
    made = plan_fleet(file.devices, planned, **settings)
    choices = plan_deadlines(made, planned) if made.late or made.rule == "everyone" else []
    out.print(fleet_summary(made, choices))
    others = [choice for choice in choices if choice.seconds != made.target_seconds]
    if others:
        out.print(f"Choose one with --deadline-seconds {others[0].seconds:g}.")
    print_json(lambda: fleet_json(made, choices))
    if picture:
        save_picture(figures().fleet_figure(made), picture)


@verb()
def probe(
    model: Annotated[str, typer.Argument(help="A built-in model, or package.module:function.")],
    shape: Shape = None,
    option: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Argument of the model function.")
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Examples in a batch.")] = 64,
    passes: Annotated[int, typer.Option(min=1, help="Timed passes; more are more precise.")] = 12,
    name: Annotated[
        str, typer.Option(help="Name of this machine in the profile.")
    ] = "this-machine",
    down: Annotated[str, typer.Option(help="Download bandwidth (not measured).")] = "100 Mbit/s",
    up: Annotated[str, typer.Option(help="Upload bandwidth (not measured).")] = "20 Mbit/s",
    out_file: Annotated[
        Path | None, typer.Option("--out", help="Also write the device to this file (.toml).")
    ] = None,
) -> None:
    """Measure how fast this machine trains a model, and print it as a device."""
    import tomli_w

    from fedplt.client.speed_probe import probe
    from fedplt.cutting.find_layers import example_model
    from fedplt.files import write_text
    from fedplt.fleet.devices import DOWN, UP, parse_quantity

    bandwidths = parse_quantity(DOWN, down), parse_quantity(UP, up)
    known_shape = parse_shape(shape) if shape else ()
    with advising(GIVE_SHAPE):
        example = example_model(model, key_values("--option", option), known_shape)
    found = probe(*example, batch_size=batch_size, passes=passes)
    profile = found.profile(name, *bandwidths)  # refuses impossible values
    device = {
        "name": profile.name,
        "speed": f"{profile.flops_per_second / 1e9:.3g} GFLOP/s",
        "down": down,
        "up": up,
    }
    text = f"[[device]]\n{tomli_w.dumps(device)}"
    # Printed as a comment: `fedplt probe fcn > device.toml` makes a fleet file.
    lines = [*found.summary().splitlines(), "The bandwidths were not measured."]
    out.print("\n".join(f"# {line}".rstrip() for line in lines))
    out.print("\n" + text, end="")
    print_json(device)
    if out_file is not None:
        write_text(out_file, text)


def _given(**flags: Any) -> dict[str, Any]:
    return {name: value for name, value in flags.items() if value is not None}


def _workload(work: WorkConfig, model: str | None, shape: str | None, file: Path) -> Workload:
    """The file's workload, with the model and input shape from the command line if given."""
    from fedplt.federation.assigned_devices import workload_from_config

    flags: dict[str, Any] = {}
    if model is not None:
        flags |= {"cost": "exact", "model": model, "options": {}, "num_parameters": None}
    if model is not None or shape is not None:
        flags["shape"] = list(parse_shape(shape)) if shape else []
    try:
        with advising(GIVE_SHAPE):
            return workload_from_config(work.model_copy(update=flags))
    except (ConfigError, CutError) as error:
        if model is None:  # the model comes from the file
            raise FleetError(f"{file}: work.model: {error}") from error
        raise
