"""The verb ``cut``: show how a model is cut."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedplt.cli.app import out, print_json, status, verb
from fedplt.errors import ConfigError, ExampleError, FedpltError

if TYPE_CHECKING:
    from torch import nn

    from fedplt.client import CheckReport
    from fedplt.planning import Layers


@verb()
def cut(
    model: Annotated[
        str,
        typer.Argument(help="fcn, cnn, resnet8, vit, text, or an import path: my_package:build."),
    ],
    example: Annotated[
        str | None,
        typer.Option(help="Import path of a function that returns an input batch."),
    ] = None,
    shape: Annotated[
        str | None,
        typer.Option(help="Instead of --example: the shape of one input, such as 3,32,32."),
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="For the model's function.")
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
) -> None:
    """Show how a model is cut: layers, sub-layers, what is left out, and why."""
    import warnings

    from fedplt.cutting.find_layers import cut as cut_model
    from fedplt.models import MODELS, build_model

    options = key_values("--option", option)
    built = build_model(model, options, seed=0)
    groups: dict[str, Any] = {}
    for name, pattern in _pairs("--group", group):
        groups.setdefault(name, []).append(pattern)
    if not groups and model in MODELS:
        groups = dict(MODELS[model].groups)
    inputs = _inputs(model, example, shape, bool(options))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the table shows the same
        layers = _tried(
            cut_model, built, inputs, groups=groups, always=always or [], never=never or [],
            fused=key_values("--fused", fused), max_sublayers=max_sublayers,
        )  # fmt: skip
    out.print(layers.summary())
    if inputs is None:
        status.print("Give --shape or --example to see how data flows.")
    report = _check(built, inputs, layers) if check else None
    checked = {} if report is None else {"check": {"is_right": report.is_right}}
    print_json(lambda: {**layers.to_json(), **checked})
    if report is not None and not report.is_right:
        raise typer.Exit(1)


def _check(model: nn.Module, inputs: Any, layers: Layers) -> CheckReport:
    from fedplt.client.self_check.check import RATIOS
    from fedplt.client.self_check.check import check as check_training
    from fedplt.planning import make_plan

    if inputs is None:
        raise ConfigError("--check needs an input: give --shape or --example.")
    report = check_training(model, inputs, plan=make_plan(layers, RATIOS))
    out.print(f"\n{report}\n{report.tensors}")
    return report


def _inputs(model: str, example: str | None, shape: str | None, has_options: bool) -> Any:
    import torch

    from fedplt.imports import import_object
    from fedplt.models import MODELS

    if example and shape:
        raise ConfigError("give either --example or --shape, not both.")
    if example:
        try:
            return import_object(example, "--example")()
        except FedpltError:
            raise
        except Exception as error:  # the user's function may raise anything
            raise ConfigError(
                f"--example: {example!r} failed: {type(error).__name__}: {error}"
            ) from error
    if shape:
        try:
            return torch.randn(2, *(int(part) for part in shape.replace("x", ",").split(",")))
        except (ValueError, RuntimeError) as error:
            raise ConfigError(
                f"--shape {shape}: write the shape of one input, such as 3,32,32."
            ) from error
    known = MODELS[model].example if model in MODELS and not has_options else None
    return known() if known else None


def _tried(cut_model: Any, model: nn.Module, inputs: Any, **settings: Any) -> Any:
    try:
        return cut_model(model, inputs, **settings)
    except ExampleError as error:
        raise ConfigError(f"{error} Give one that fits with --shape or --example.") from error


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
