"""``pyproject.toml`` of a Flower app: what Flower asks for, alike in all apps that we write."""

from __future__ import annotations

from importlib.metadata import version

FLWR = ">=1.41,<2"
TEXT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "1.0.0"
description = "{description}"
license = {{file = "LICENSE"}}
# Flower installs what is listed here afresh for every run, except flwr itself. Packages of the
# environment that runs flwr, such as fedplt and torch, can be imported without being listed.
dependencies = ["flwr{flwr}"]

[tool.hatch.build.targets.wheel]
packages = ["{package}"]

[tool.flwr.app]
publisher = "{publisher}"
fab-format-version = 1
flwr-version-target = "{installed}"

[tool.flwr.app.components]
serverapp = "{package}.server_app:app"
clientapp = "{package}.client_app:app"

{config}"""


def package_of(name: str) -> str:
    """The Python package of an app.

    >>> package_of("my-app")
    'my_app'
    """
    return name.replace("-", "_")


def app_project(
    name: str,
    description: str,
    *,
    publisher: str = "fedplt",
    config: str = "[tool.flwr.app.config]\n",
) -> str:
    """The file of an app whose package has ``server_app.py`` and ``client_app.py``."""
    return TEXT.format(
        name=name,
        package=package_of(name),
        description=description,
        publisher=publisher,
        flwr=FLWR,
        installed=version("flwr"),
        config=config,
    )
