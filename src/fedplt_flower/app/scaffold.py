"""``fedplt flower init``: write a Flower app from ``templates/``, with example model and data."""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from fedplt.errors import RunError
from fedplt.files import write_text


def init_app(folder: Path, *, publisher: str = "me") -> str:
    """Write an app with an example model and data into a new folder; return its package's name."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunError(f"{folder} exists and is not empty: choose a new folder.")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", publisher):
        raise RunError(f"--publisher: {publisher!r} is not a name: use letters, digits, '-', '_'.")
    name = project_name(folder.resolve().name)
    package = package_of(name)
    files = {file: file for file in ("pyproject.toml", "LICENSE", "README.md")}
    modules = ("__init__.py", "task.py", "client_app.py", "server_app.py")
    files |= {f"{package}/{module}": module for module in modules}
    values = {"description": "A Flower app that trains with FedPLT", "publisher": publisher}
    try:
        (folder / package).mkdir(parents=True)
        for path, template in files.items():
            write_text(folder / path, _render(template, name, values))
    except OSError as error:
        raise RunError(f"{folder} cannot be written: {error.strerror}") from error
    return package


def project_name(text: str) -> str:
    """A valid name of a Python project.

    >>> project_name("My first app"), project_name("2nd"), project_name("class")
    ('my-first-app', 'app-2nd', 'app-class')
    """
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    if not name or name[0].isdigit() or keyword.iskeyword(name):
        name = f"app-{name}".strip("-")
    return name


def package_of(name: str) -> str:
    """The Python package of an app.

    >>> package_of("my-app")
    'my_app'
    """
    return name.replace("-", "_")


def app_files(
    name: str, about: str, modules: Mapping[str, str], config: str = ""
) -> dict[str, str]:
    """File name -> text, for an app of fedplt with modules ``server_app`` and ``client_app``."""
    values = {"description": about, "publisher": "fedplt", "config": config}
    return {
        "pyproject.toml": _render("project.toml", name, values),
        "LICENSE": "Copyright the authors of fedplt. Apache License, Version 2.0.\n",
        "README.md": f"{about}.\n",
        f"{package_of(name)}/__init__.py": f'"""{about}."""\n',
        **{f"{package_of(name)}/{module}.py": text for module, text in modules.items()},
    }


def _render(template: str, name: str, values: Mapping[str, str]) -> str:
    found = template_environment("fedplt_flower.app").get_template(f"{template}.jinja")
    return found.render(values, name=name, package=package_of(name), installed=version("flwr"))


@cache
def template_environment(package: str) -> Environment:
    """The templates in ``templates/`` of a package; for text files, so nothing is escaped."""
    return Environment(
        loader=PackageLoader(package),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
