"""The Flower app that starts a run: two modules of two lines, and what Flower asks for."""

from __future__ import annotations

from pathlib import Path

import tomli_w

from fedplt.engines.flower.app_project import app_project, package_of

APP = "fedplt-run"
LICENSE = """\
Copyright the authors of fedplt.

Licensed under the Apache License, Version 2.0; you may obtain a copy at
http://www.apache.org/licenses/LICENSE-2.0
"""


def app_files(folder: Path) -> dict[str, str]:
    """Text by path, for a deployment that will be in ``folder``."""
    config = {"config": str(folder / "run.toml"), "out": str(folder / "server" / "run")}
    settings = f"[tool.flwr.app.config]\n{tomli_w.dumps(config)}"
    package = package_of(APP)
    return {
        "pyproject.toml": app_project(APP, "A run of fedplt", config=settings),
        "LICENSE": LICENSE,
        "README.md": "The Flower app of a fedplt deployment. `../start-run.sh` starts it.\n",
        f"{package}/__init__.py": '"""A run of fedplt."""\n',
        f"{package}/client_app.py": _module("client", "no node: theirs is the installed one"),
        f"{package}/server_app.py": _module("server", "the server: run.toml says what is trained"),
    }


def _module(side: str, where: str) -> str:
    return (
        f'"""Runs on {where}."""\n\n'
        f"from fedplt.engines.flower import {side}_app\n\n"
        f"app = {side}_app()\n"
    )
