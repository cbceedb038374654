"""Write a Flower app that trains with FedPLT: own data and own model to fill in."""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping
from pathlib import Path
from string import Template

from fedplt.engines.flower.app_project import app_project, package_of
from fedplt.engines.flower.app_templates import (
    CLIENT_APP,
    CONFIG,
    LICENSE,
    README,
    SERVER_APP,
    TASK,
)
from fedplt.errors import RunError
from fedplt.files import write_text


def init_app(folder: Path, *, publisher: str = "me") -> str:
    """Write the app into a new folder; return the name of its Python package."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunError(f"{folder} exists and is not empty: choose a new folder.")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", publisher):
        raise RunError(f"--publisher: {publisher!r} is not a name: use letters, digits, '-', '_'.")
    name = project_name(folder.resolve().name)
    package = package_of(name)
    values = {"name": name, "package": package}
    project = app_project(
        name,
        "A Flower app that trains with FedPLT",
        publisher=publisher,
        config=CONFIG,
    )
    files: Mapping[str, str] = {
        "pyproject.toml": project,
        "LICENSE": LICENSE,
        "README.md": README,
        f"{package}/__init__.py": '"""$name: a Flower app that trains with FedPLT."""\n',
        f"{package}/task.py": TASK,
        f"{package}/client_app.py": CLIENT_APP,
        f"{package}/server_app.py": SERVER_APP,
    }
    try:
        (folder / package).mkdir(parents=True)
        for place, text in files.items():
            write_text(folder / place, Template(text).substitute(values))
    except OSError as error:
        raise RunError(f"{folder} cannot be written: {error.strerror}") from error
    return package


def project_name(text: str) -> str:
    """A name that Python's packaging takes.

    >>> project_name("My first app"), project_name("2nd"), project_name("class")
    ('my-first-app', 'app-2nd', 'app-class')
    """
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    if not name or name[0].isdigit() or keyword.iskeyword(name):
        name = f"app-{name}".strip("-")
    return name
