"""Shared by all verbs: the application, the consoles, common arguments, output, pictures."""

from __future__ import annotations

import inspect
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from functools import wraps
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin, get_type_hints

import click
import typer
from rich.console import Console
from rich.markup import escape
from typer.core import TyperCommand, TyperGroup

from fedplt import __version__
from fedplt.configs import builtin_configs, builtin_fleets
from fedplt.imports import optional_module

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# No escape codes at all with NO_COLOR, not even of a progress bar.
PLAIN = bool(os.environ.get("NO_COLOR"))
if PLAIN:
    os.environ.setdefault("_TYPER_FORCE_DISABLE_TERMINAL", "1")

VERBS: dict[str, dict[str, tuple[str, ...]]] = {
    "Prepare": {
        "init": ("fedplt init --list", "fedplt init fashion-mnist"),
        "data": (),
        "data get": ("fedplt data get cifar10",),
        "cut": ("fedplt cut vit", "fedplt cut vit --check"),
        "plan": ("fedplt plan fashion-mnist", "fedplt plan fashion-mnist --picture plan.png"),
        "fleet": (
            "fedplt fleet kitchen --picture fleet.png",
            "fedplt fleet devices.csv --run mine.toml",
        ),
        "advise": (
            "fedplt advise kitchen --run fleet --quick",
            "fedplt advise devices.csv --run mine.toml --minutes 30",
        ),
        "probe": ("fedplt probe fcn", 'fedplt probe resnet8 --up "5 Mbit/s" --down "50 Mbit/s"'),
        "privacy": ("fedplt privacy run.toml", "fedplt privacy run.toml --epsilon 8"),
    },
    "Train": {
        "run": (
            "fedplt run fashion-mnist",
            "fedplt run fashion-mnist --set rounds=20 --set training.batch_size=32",
        ),
        "resume": ("fedplt resume runs/fashion-mnist-seed1",),
        "watch": ("fedplt watch runs",),
    },
    "Look at results": {
        "evaluate": ("fedplt evaluate runs/fashion-mnist-seed1 my_data:load",),
        "report": (
            "fedplt report runs/fashion-mnist-seed1",
            "fedplt report runs/fedplt-seed1 runs/fedplt-seed2 runs/fedavg-seed1 "
            "runs/fedavg-seed2 --out both.html",
        ),
        "curve": ("fedplt curve runs/fashion-mnist-seed1 --picture curve.png",),
        "export": ("fedplt export runs/fashion-mnist-seed1 --out rounds.csv",),
    },
    "Compare methods": {
        "methods": ("fedplt methods",),
        "compare": (
            "fedplt compare fashion-mnist --option feddrop.scaler=false",
            "fedplt compare fashion-mnist --methods fedplt,fedavg,fedpmt --seeds 1,2,3 "
            "--set rounds=30",
        ),
    },
    "Real machines": {
        "deploy": (),
        "deploy init": ("fedplt deploy init fl --nodes nodes.csv",),
        "deploy check": ("fedplt deploy check fl", "fedplt deploy check fl --node n2"),
        "flower": (),
        "flower init": ("fedplt flower init my-app",),
    },
}
"""All verbs in the order of use, under their headings in the help, each with examples."""


class Group(TyperGroup):
    """A group of verbs that suggests a known verb for a mistyped one, once."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        # From click 8.4 on, its own error has the suggestion that typer adds, too.
        self.suggest_commands = not hasattr(click.exceptions, "NoSuchCommand")


class _InOrder(Group):
    """Lists the verbs under their headings, in the order of use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        order = [verb for verbs in VERBS.values() for verb in verbs]
        return sorted(super().list_commands(ctx), key=order.index)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        command = super().get_command(ctx, cmd_name)
        if isinstance(command, (TyperGroup, TyperCommand)):
            command.rich_help_panel = next(title for title in VERBS if cmd_name in VERBS[title])
        return command


app = typer.Typer(
    cls=_InOrder,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Federated learning on unequal devices by partial layer training (FedPLT).",
)


def _console(stderr: bool = False) -> Console:
    terminal = False if PLAIN else None
    return Console(
        stderr=stderr,
        highlight=False,
        markup=False,
        emoji=False,
        force_terminal=terminal,
        soft_wrap=True,  # terminals wrap lines themselves; files and pipes get long lines
    )


out = _console()
"""The answer of a verb, on stdout; silent with --quiet and --json."""
status = _console(stderr=True)
"""Progress and hints; silent with --quiet."""
err = _console(stderr=True)
"""Errors and warnings; never silent."""


def _by_name(known: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """Shell completion of built-in names and files."""

    def complete(incomplete: str) -> list[str]:
        folder, start = os.path.split(incomplete)
        files = [path for path in Path(folder or ".").glob(f"{start}*") if path.name[0] != "."]
        names = [f"{path}/" if path.is_dir() else str(path) for path in sorted(files)]
        return [*(name for name in known() if name.startswith(incomplete)), *names]

    return complete


Config = Annotated[
    Path,
    typer.Argument(
        help="A TOML file, or a built-in configuration by name (fedplt init --list).",
        autocompletion=_by_name(builtin_configs),
    ),
]
Devices = Annotated[
    Path,
    typer.Argument(
        help="Devices: a .toml or .csv file, or a built-in fleet by name (kitchen).",
        autocompletion=_by_name(builtin_fleets),
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a key, e.g. training.batch_size=32; KEY= alone: its default.",
    ),
]
Folder = Annotated[Path, typer.Argument(help="A run's folder.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors and warnings only.")]
Json = Annotated[bool, typer.Option("--json", help="Print the answer as JSON, and nothing else.")]

_as_json = False


def verb(
    group: typer.Typer = app, name: str | None = None, examples: bool = True
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a verb. Every verb takes --quiet and --json, and calls :func:`print_json` once.

    ``examples``: show the examples in ``VERBS`` below the help.
    """

    def register(function: Callable[..., None]) -> Callable[..., None]:
        @wraps(function)
        def run(*, quiet: bool = False, as_json: bool = False, **given: Any) -> None:
            global _as_json
            _as_json, out.quiet, status.quiet = as_json, quiet or as_json, quiet
            function(**given)

        more = {"quiet": Quiet, "as_json": Json}
        hints = {
            key: _literal(hint)
            for key, hint in (get_type_hints(function, include_extras=True) | more).items()
        }
        kind = inspect.Parameter.KEYWORD_ONLY
        parameters = [
            parameter.replace(annotation=hints[parameter.name], kind=kind)
            for parameter in inspect.signature(function).parameters.values()
        ]
        parameters += [
            inspect.Parameter(option, kind, default=False, annotation=hints[option])
            for option in more
        ]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = hints
        epilog = _examples(function) if examples else None
        group.command(name, help=_help(function), epilog=epilog)(run)
        return function

    return register


def _help(function: Callable[..., None]) -> str:
    """The docstring with one line per paragraph, which terminals wrap to their width."""
    paragraphs = (inspect.getdoc(function) or "").split("\n\n")
    return escape("\n\n".join(text.replace("\n", " ") for text in paragraphs))


def _examples(function: Callable[..., None]) -> str:
    name = function.__name__.replace("_", " ")
    shown = [line for verbs in VERBS.values() for line in verbs.get(name, ())]
    assert shown, f"VERBS lacks {name!r}"
    # An empty line between two lines, or else the help joins them.
    return escape("\n\n".join(["Examples:" if len(shown) > 1 else "Example:", *shown]))


def _literal(hint: Any) -> Any:
    """Escape markup in the help of an option: ``[privacy]`` is a section, not a style."""
    if get_origin(hint) is not Annotated:
        return hint
    kind, info, *more = get_args(hint)
    info = copy(info)  # several verbs share it
    info.help = escape(info.help or "")
    return Annotated[kind, info, *more]


def print_json(answer: Callable[[], Any] | Any) -> None:
    """With --json, print the answer: plain values, or a function that returns them."""
    if _as_json:
        values = answer() if callable(answer) else answer
        typer.echo(json_text(values))


def json_text(values: Any) -> str:
    """Values as JSON; NaN and infinity, which JSON lacks, become null."""
    return json.dumps(_finite(values), indent=2, default=str, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fedplt {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None: ...


def figures() -> ModuleType:
    """The drawing module; without matplotlib, the error shows how to install it."""
    optional_module("matplotlib", "a picture", "'fedplt[pictures]'")
    from fedplt.report import figures

    return figures


def save_picture(figure: Figure, picture: Path) -> None:
    figures().save_figure(figure, picture)
    status.print(f"picture: {picture}")
