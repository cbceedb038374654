"""Verbs to look at runs: watch them live, export their records."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedplt.cli.app import out, print_json, verb
from fedplt.errors import ConfigError, RunError
from fedplt.text import counted

NO_SERVER = "fedplt watch needs a web server: pip install 'fedplt[watch]'"


@verb()
def watch(
    folder: Annotated[Path, typer.Argument(help="Folder with the folders of runs.")] = Path("runs"),
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free one.")] = 8000,
    host: Annotated[
        str, typer.Option(help="Address to listen on; others than this machine's are open to all.")
    ] = "127.0.0.1",
    name: Annotated[
        list[str] | None,
        typer.Option(help="A host name under which the page may be reached, besides localhost."),
    ] = None,
) -> None:
    """Show runs in the browser, live; reads only, and only for this machine without --host."""
    if not folder.is_dir():
        raise RunError(f"{folder} is not a folder. Name the one that has your runs.")
    try:
        from fedplt.report.watch import make_server, watch_app
    except ImportError as error:
        raise RunError(NO_SERVER) from error
    names = [*(name or []), *([] if host in ("0.0.0.0", "::") else [host])]
    if host in ("0.0.0.0", "::") and not name:
        raise ConfigError(
            f"--host {host}: give the host name or address of the page with --name, "
            "such as --name lab-server; requests for other names are refused."
        )
    server = make_server(watch_app(folder.resolve(), names), host, port)
    sockets = [server.config.bind_socket()] if port == 0 else None
    shown = sockets[0].getsockname()[1] if sockets else port
    address = f"http://{f'[{host}]' if ':' in host else host}:{shown}"
    out.print(f"{address}  (Ctrl-C ends it)")
    print_json({"address": address})
    server.run(sockets)


@verb()
def export(
    folders: Annotated[
        list[Path], typer.Argument(help="Folders of runs, or the folder of a comparison.")
    ],
    table: Annotated[
        str, typer.Option(help="rounds, layers (diagnostics), clients or comparison.")
    ] = "rounds",
    file: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="A .csv or .parquet file (default: TABLE.csv); of a comparison also .tex or .md.",
        ),
    ] = None,
) -> None:
    """Write the records of runs as a tidy table, or their comparison: CSV, Parquet, LaTeX."""
    from fedplt.errors import did_you_mean
    from fedplt.report.export import TABLES, export, export_comparison
    from fedplt.report.page import read_groups, read_run, run_folders

    known = [*TABLES, "comparison"]
    if table not in known:
        raise ConfigError(f"--table {table}: {did_you_mean(table, known)}")
    path = file or Path(f"{table}.csv")
    if table == "comparison":
        number = export_comparison(read_groups(folders), path)
    else:
        number = export([read_run(folder) for folder in run_folders(folders)], table, path)
    out.print(f"{path}: {counted(number, 'row')}")
    print_json({"file": str(path), "rows": number})
