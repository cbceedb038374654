"""The verb ``init``: copy a built-in configuration, to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedplt.builtin import builtin_configs, builtin_fleets, copy_config, describe
from fedplt.cli.app import out, print_json, verb


@verb()
def init(
    config: Annotated[
        str,
        typer.Argument(
            help="Which one to copy, by name.",
            autocompletion=lambda incomplete: [
                n for n in builtin_configs() if n.startswith(incomplete)
            ],
        ),
    ] = "fashion-mnist",
    folder: Annotated[Path, typer.Option("--out", help="The folder to put it into.")] = Path(),
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
