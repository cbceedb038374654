"""Where the server of a deployment is reached."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from fedplt.errors import ConfigError

LOCAL = ("127.0.0.1", "localhost")
"""In every server certificate: commands on the server itself use them."""
_LABEL = r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"


@dataclass(frozen=True)
class Address:
    """Names of the server, and the port that the nodes connect to."""

    hosts: tuple[str, ...]
    port: int

    @property
    def on_this_machine(self) -> bool:
        """Whether all nodes run on the server's machine."""
        return all(host in LOCAL for host in self.hosts)

    @property
    def public(self) -> str:
        """What the nodes connect to."""
        return join(self.hosts[0], self.port)

    @property
    def superlink_port(self) -> int:
        """The SuperLink's own port, on loopback. Nodes elsewhere come by a proxy on ``port``."""
        return self.port if self.on_this_machine else self.port + 1

    @property
    def superlink(self) -> str:
        return join(LOCAL[0], self.superlink_port)


def make_address(hosts: list[str], port: int) -> Address:
    """Refuses what is no name or address, with clear words."""
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
