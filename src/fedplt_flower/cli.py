"""Verbs about Flower: write and check a deployment, write an app."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from fedplt.cli.app import Group, app, out, print_json, verb
from fedplt.errors import RunError
from fedplt.text import counted

deploy_app = typer.Typer(
    cls=Group,
    no_args_is_help=True,
    help="Run on real machines: write and check a deployment on Flower.",
)
app.add_typer(deploy_app, name="deploy")

LABELS = {"ok": ("OK", "green"), "note": ("note", "yellow"), "problem": ("PROBLEM", "bold red")}


@verb(deploy_app, "init")
def deploy_init(
    folder: Annotated[Path, typer.Argument(help="A new folder.")],
    nodes: Annotated[Path, typer.Option(help="A .csv file with the columns name and ratio.")],
    config: Annotated[
        Path | None, typer.Option(help="Run configuration (default: Fashion-MNIST, 3 rounds).")
    ] = None,
    host: Annotated[
        list[str] | None,
        typer.Option(help="Name or address of the server, for nodes elsewhere (repeatable)."),
    ] = None,
    port: Annotated[int, typer.Option(help="The port that nodes connect to.")] = 8443,
) -> None:
    """Write certificates, keys, scripts and a README for a deployment on Flower."""
    with _needing_flower("deployments"):
        from fedplt_flower.deployment.create import init_deployment
        from fedplt_flower.deployment.manifest import make_address
    address = make_address(host or [], port)
    manifest, notes = init_deployment(folder, nodes, address, config)
    names = list(manifest.nodes)
    listed = ", ".join(names if len(names) <= 5 else [*names[:4], "..."])
    counts = counted(len(names), "node")
    out.print(f"{folder} is ready: a server at {address.public}, {counts} ({listed}).")
    for text in notes:
        out.print(text)
    out.print(f"What to do next: {folder / 'README.md'}")
    server = {"folder": str(folder), "server": address.public}
    print_json({**server, "nodes": names, "notes": notes})


@verb(deploy_app, "check")
def deploy_check(
    folder: Annotated[Path, typer.Argument(help="The deployment's folder, or a node's.")],
    node: Annotated[str | None, typer.Option(help="Check this node of the deployment.")] = None,
) -> None:
    """Check the server, or a node, before a run."""
    with _needing_flower("deployments"):
        from fedplt_flower.deployment.check import check_deployment
    findings = list(check_deployment(folder, node))
    problems = sum(finding.level == "problem" for finding in findings)
    for finding in findings:
        label, style = LABELS[finding.level]
        out.print(f"{label:8}", style=style, end="")
        out.print(finding.text)
        if finding.do:
            out.print(f"{'':8}-> {finding.do}")
    print_json([{"level": f.level, "text": f.text, "do": f.do} for f in findings])
    if problems:
        out.print(f"{counted(problems, 'problem')}.")
        raise typer.Exit(1)
    out.print("No problems.")


@contextmanager
def _needing_flower(what: str) -> Iterator[None]:
    """If Flower's packages are missing, show how to install them."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in ("flwr", "cryptography"):
            raise
        raise RunError(f"{what} need Flower: pip install 'fedplt[flower]'") from error


flower_app = typer.Typer(
    cls=Group, no_args_is_help=True, help="Flower apps with your own code (docs/flower.md)."
)
app.add_typer(flower_app, name="flower")


@verb(flower_app, "init")
def flower_init(
    folder: Annotated[Path, typer.Argument(help="A new folder; its name is the app's.")],
    publisher: Annotated[
        str, typer.Option(help="Your name on Flower's hub, for pyproject.toml.")
    ] = "me",
) -> None:
    """Write a Flower app that trains with FedPLT, with your own model and data to fill in.

    It runs without changes, with a synthetic data set, and passes 'flwr build'. The files follow
    Flower's quickstart: task.py (model, data, training loop), client_app.py, server_app.py.
    """
    with _needing_flower("Flower apps"):
        from fedplt_flower.app.scaffold import init_app
    package = init_app(folder, publisher=publisher)
    out.print(f"wrote {folder}: it runs without changes, on a synthetic data set.")
    out.print(f"Run it: see {folder / 'README.md'}")
    out.print(f"Your model and data: {folder / package / 'task.py'}")
    print_json({"folder": str(folder), "package": package})
