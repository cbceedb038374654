"""Files of a deployment from ``templates/``: scripts, systemd units, nginx, README."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from fedplt.engines.flower.deployment.address import LOCAL, Address
from fedplt.engines.flower.deployment.nodes_file import Node
from fedplt.text import table

CONNECTION = "deployment"
"""The name of the server in Flower's connection file."""
FIRST_NODE_PORT = 9100
NODES_HOME = "/opt/fedplt"
"""Where a node's folder is on its machine, for the systemd unit."""
CONNECTIONS_PER_NODE = 8
"""A SuperNode sends two pieces at once, asks for messages, and says that it is alive."""
SUPEREXEC = (
    "import fedplt, runpy; "
    'runpy.run_path(fedplt.__path__[0] + "/engines/flower/superexec.py", run_name="__main__")'
)


@cache
def _templates() -> Environment:
    made = Environment(
        loader=PackageLoader("fedplt.engines.flower.deployment"),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["sh"] = shlex.quote
    made.globals |= {"connection": CONNECTION, "local": LOCAL[0], "superexec": SUPEREXEC}
    return made


def render(name: str, /, **values: Any) -> str:
    """The file that a template makes."""
    return _templates().get_template(name).render(environment=sys.prefix, **values)


def server_files(folder: Path, address: Address, num_nodes: int) -> dict[str, str]:
    """Files by name, for the folder ``server`` of a deployment that will be in ``folder``."""
    here, superlink = folder / "server", "fedplt-superlink.service"
    names = ("superlink.sh", "superexec.sh", "register-nodes.sh", "start-run.sh")
    found = {name: render(name, address=address) for name in names}
    found |= {
        superlink: _unit("fedplt: SuperLink", here, "superlink.sh"),
        "fedplt-superexec.service": _unit("fedplt: server app", here, "superexec.sh", [superlink]),
        "flwr-home/config.toml": render("config.toml", address=address, folder=folder),
    }
    if not address.on_this_machine:
        found["nginx.conf"] = render(
            "nginx.conf",
            address=address,
            folder=folder,
            names=" ".join(host for host in address.hosts if ":" not in host) or "_",
            name=LOCAL[1],
            connections=max(32, CONNECTIONS_PER_NODE * num_nodes),
        )
    return found


def node_files(name: str, client: int, address: Address) -> dict[str, str]:
    """Files by name, for the folder of a node."""
    about = f"The node {name}: waits for work from the server, and trains on this machine's data."
    port = node_port(client, address)
    home = Path(NODES_HOME) / name
    return {
        "supernode.sh": render("supernode.sh", about=about, address=address, port=port),
        f"fedplt-{name}.service": _unit(f"fedplt: node {name}", home, "supernode.sh"),
        "limits.toml": render("limits.toml"),
    }


def node_port(client: int, address: Address) -> int:
    """A port of its own for each node, as if all ran on one machine."""
    taken = {address.port, address.superlink_port}
    port = FIRST_NODE_PORT + client % 50_000
    return port if port not in taken else port + 50_001


def readme(folder: Path, address: Address, nodes: tuple[Node, ...], warning: str) -> str:
    """``README.md``: what to do, in which order, on which machine."""
    rows = [
        [str(node.client), node.name, "planned" if node.ratio is None else f"{node.ratio:g}"]
        for node in nodes
    ]
    return render(
        "README.md",
        address=address,
        folder=folder,
        nodes=table(["client", "name", "ratio"], rows, left=(1,)),
        first=nodes[0].name,
        home=NODES_HOME,
        planned=nodes[0].ratio is None,
        warning=warning,
    )


def _unit(about: str, folder: Path, script: str, after: Iterable[str] = ()) -> str:
    values = {"about": about, "folder": str(folder), "script": script, "after": list(after)}
    return render("unit.service", **values)
