"""``deployment.json``, in every folder of a deployment: versions, server address, model, nodes."""

from __future__ import annotations

import ipaddress
import json
import platform
import re
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from fedplt import __version__
from fedplt.configuration import RunConfig
from fedplt.errors import ConfigError, RunError
from fedplt.federation import plan_without_data
from fedplt.planning import Layers

FORMAT = 2
MANIFEST = "deployment.json"
CONNECTION = "deployment"
"""The name of the server in Flower's connection file."""
LOCAL = ("127.0.0.1", "localhost")
"""Names in every server certificate, because commands on the server itself use them."""
_LABEL = r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"


@dataclass(frozen=True)
class Address:
    """The server's host names, and the port that the nodes connect to."""

    hosts: tuple[str, ...]
    port: int

    @property
    def on_this_machine(self) -> bool:
        """Whether all nodes run on the server's machine."""
        return all(host in LOCAL for host in self.hosts)

    @property
    def public(self) -> str:
        """The address that nodes connect to."""
        return join(self.hosts[0], self.port)

    @property
    def superlink_port(self) -> int:
        """The SuperLink's port on loopback. Remote nodes connect to a proxy on ``port``."""
        return self.port if self.on_this_machine else self.port + 1

    @property
    def superlink(self) -> str:
        return join(LOCAL[0], self.superlink_port)


def make_address(hosts: list[str], port: int) -> Address:
    if not 1 <= port <= 65_534:
        raise ConfigError(f"--port {port}: give one from 1 to 65534, such as 8443.")
    for host in hosts:
        if not is_ip(host) and not re.fullmatch(rf"{_LABEL}(\.{_LABEL})*", host):
            raise ConfigError(
                f"--host {host}: give a name or an address without scheme and port, such as "
                "fl.example.org or 192.168.1.7 (the port is --port)."
            )
    return Address(tuple(dict.fromkeys(hosts)) or LOCAL[:1], port)


def is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def join(host: str, port: int) -> str:
    """
    >>> join("fl.example.org", 8443), join("::1", 8443)
    ('fl.example.org:8443', '[::1]:8443')
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@dataclass(frozen=True)
class Manifest:
    """The content of ``deployment.json``."""

    versions: dict[str, str]
    address: Address
    layers: str | None
    """Fingerprint of the model's layers; None if ``init`` could not build the model."""
    nodes: dict[str, int]
    """Node name -> client id; the manifest in a node's folder lists only this node."""

    def text(self) -> str:
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=2) + "\n"


def read_manifest(folder: Path) -> Manifest:
    path = folder / MANIFEST
    try:
        values: Any = json.loads(path.read_text(encoding="utf-8"))
        if values.pop("format") != FORMAT:
            raise RunError(
                f"{path} was written by another version of fedplt. Make the deployment again with "
                "'fedplt deploy init', or install that version."
            )
        return TypeAdapter(Manifest).validate_python(values)
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise RunError(
            f"{path} cannot be read ({error}): copy the folder again from where 'fedplt deploy "
            "init' made it."
        ) from error


def installed_versions() -> dict[str, str]:
    packages = {package: version(package) for package in ("flwr", "torch")}
    return {"fedplt": __version__, "python": platform.python_version(), **packages}


def layers_of(config: RunConfig) -> Layers:
    """The layers of the run's model; ratios, which may be planned later, do not matter."""
    return plan_without_data(config.model_copy(update={"fleet": None})).layers
