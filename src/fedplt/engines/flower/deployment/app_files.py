"""The Flower app that starts a run: two modules of two lines, and what Flower asks for."""

from __future__ import annotations

from pathlib import Path

import tomli_w

PACKAGE = "fedplt_run"
LICENSE = """\
Copyright the authors of fedplt.

Licensed under the Apache License, Version 2.0; you may obtain a copy at
http://www.apache.org/licenses/LICENSE-2.0
"""


def app_files(folder: Path, flwr_version: str) -> dict[str, str]:
    """Text by path, for a deployment that will be in ``folder``."""
    project = {
        "build-system": {"requires": ["hatchling"], "build-backend": "hatchling.build"},
        "project": {
            "name": "fedplt-run",
            "version": "1.0.0",
            "description": "A run of fedplt",
            "license": {"file": "LICENSE"},
            "dependencies": ["flwr>=1.41,<2"],
        },
        "tool": {
            "hatch": {"build": {"targets": {"wheel": {"packages": ["."]}}}},
            "flwr": {
                "app": {
                    "publisher": "fedplt",
                    "fab-format-version": 1,
                    "flwr-version-target": flwr_version,
                    "components": {
                        "serverapp": f"{PACKAGE}.server_app:app",
                        "clientapp": f"{PACKAGE}.client_app:app",
                    },
                    "config": {
                        "config": str(folder / "run.toml"),
                        "out": str(folder / "server" / "run"),
                        "resume": False,
                    },
                }
            },
        },
    }
    return {
        "pyproject.toml": tomli_w.dumps(project),
        "LICENSE": LICENSE,
        "README.md": "The Flower app of a fedplt deployment. `../start-run.sh` starts it.\n",
        f"{PACKAGE}/__init__.py": '"""A run of fedplt."""\n',
        f"{PACKAGE}/client_app.py": _module("client", "each node: its data and model are there"),
        f"{PACKAGE}/server_app.py": _module("server", "the server: run.toml says what is trained"),
    }


def _module(side: str, where: str) -> str:
    return (
        f'"""Runs on {where}."""\n\n'
        f"from fedplt.engines.flower import {side}_app\n\n"
        f"app = {side}_app()\n"
    )
