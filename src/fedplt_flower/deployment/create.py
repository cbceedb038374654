"""``fedplt deploy init``: write the folder of a deployment from ``templates/``, with new keys."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import tomli_w

from fedplt.configuration import RunConfig, read_text
from fedplt.errors import ConfigError, FedpltError, RunError
from fedplt.federation import participants_warning
from fedplt.text import table
from fedplt_flower.app.scaffold import app_files, template_environment
from fedplt_flower.deployment import make_certificates as keys
from fedplt_flower.deployment.config_files import (
    SPLIT_FILE,
    Node,
    node_values,
    read_nodes,
    run_values,
)
from fedplt_flower.deployment.manifest import (
    CONNECTION,
    LOCAL,
    MANIFEST,
    Address,
    Manifest,
    installed_versions,
    layers_of,
)

APP = "fedplt-run"
FIRST_NODE_PORT = 9100
NODES_HOME = "/opt/fedplt"
"""The parent of a node's folder on its machine, for the systemd unit."""
CONNECTIONS_PER_NODE = 8
"""A SuperNode sends two chunks at once, polls for messages, and sends heartbeats."""


def init_deployment(
    folder: Path, nodes_csv: Path, address: Address, config: Path | None = None
) -> tuple[Manifest, list[str]]:
    """Write a deployment into a new folder, or nothing; return its manifest and warnings."""
    folder = folder.absolute()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunError(
            f"{folder} already exists, and its keys are never overwritten. Choose another folder, "
            "or delete it."
        )
    if any(character in "'\"\\$" or ord(character) < 32 for character in str(folder)):
        raise ConfigError(
            f"{folder}: Flower, nginx and systemd take no quotation marks, backslashes, '$' or "
            "line breaks in paths. Choose another."
        )
    nodes = read_nodes(nodes_csv)
    values, run = run_values(config, nodes)
    warnings = [text] if (text := participants_warning(run)) else []
    layers = None
    try:
        layers = layers_of(run).fingerprint
    except FedpltError as error:
        missing = f"Nodes cannot compare their model with the server's, which failed: {error}"
        warnings.insert(0, missing)
    clients = {node.name: node.client for node in nodes}
    manifest = Manifest(installed_versions(), address, layers, clients)
    split = {}
    if run.data.split_file is not None:
        unreadable = partial(ConfigError, key="data.split_file")
        split = {SPLIT_FILE: read_text(Path(run.data.split_file), unreadable)}
        values["data"] = {**values["data"], "split_file": str(folder / "server" / SPLIT_FILE)}

    scratch = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    scratch.mkdir(parents=True, mode=0o700)
    try:
        _make_server_keys(scratch, address)
        _write(scratch / "server", server_files(folder, manifest) | split)
        for node in nodes:
            _make_node_keys(scratch, node, address)
            _write(scratch / "nodes" / node.name, node_files(run, node, manifest) | split)
        texts = {
            "run.toml": render("run.toml", values=tomli_w.dumps(values)),
            "README.md": readme(folder, address, nodes, participants_warning(run)),
            MANIFEST: manifest.text(),
        }
        _write(scratch, texts)
        scratch.replace(folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return manifest, warnings


def _make_server_keys(scratch: Path, address: Address) -> None:
    """Write the certificate authority, and the server's key and certificate."""
    authority, server = scratch / "ca", scratch / "server"
    authority.mkdir(mode=0o700)
    (server / "keys").mkdir(parents=True, mode=0o700)
    ca_key = keys.write_server(server, "server", "ca.crt", address)
    keys.write_private(authority / "ca.key", keys.pem_private(ca_key))
    (authority / "ca.crt").write_bytes((server / "ca.crt").read_bytes())


def _make_node_keys(scratch: Path, node: Node, address: Address) -> None:
    """Write the node's private key to its folder, and the public key to the server's, too."""
    folder = scratch / "nodes" / node.name
    folder.mkdir(parents=True, mode=0o700)
    key = keys.new_key()
    public = keys.openssh_public(key, node.name)
    keys.write_private(folder / "node.key", keys.openssh_private(key))
    (folder / "node.pub").write_bytes(public)
    (scratch / "server" / "keys" / f"{node.name}.pub").write_bytes(public)
    (folder / "ca.crt").write_bytes((scratch / "ca" / "ca.crt").read_bytes())
    # For connections between the node's processes, on loopback.
    here = Address(LOCAL[:1], node_port(node.client, address))
    keys.write_server(folder, "runtime", "runtime-ca.crt", here, keys.CA_DAYS)


def _write(folder: Path, texts: Mapping[str, str]) -> None:
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        if path.suffix == ".sh":
            path.chmod(0o755)


def render(name: str, /, **values: Any) -> str:
    """The text of a template with these values."""
    templates = template_environment("fedplt_flower.deployment")
    templates.filters["sh"] = shlex.quote
    shared = {"connection": CONNECTION, "local": LOCAL[0]}
    return templates.get_template(name).render(shared, environment=sys.prefix, **values)


def server_files(folder: Path, manifest: Manifest) -> dict[str, str]:
    """File name -> text, for the folder ``server`` of a deployment that will be in ``folder``."""
    address, here, superlink = manifest.address, folder / "server", "fedplt-superlink.service"
    names = ("superlink.sh", "superexec.sh", "register-nodes.sh", "start-run.sh")
    found = {name: render(name, address=address) for name in names}
    found |= {
        MANIFEST: manifest.text(),
        superlink: _unit("fedplt: SuperLink", here, "superlink.sh"),
        "fedplt-superexec.service": _unit("fedplt: server app", here, "superexec.sh", superlink),
        "flwr-home/config.toml": render("config.toml", address=address, folder=folder),
    }
    if not address.on_this_machine:
        found["nginx.conf"] = render(
            "nginx.conf",
            address=address,
            folder=folder,
            names=" ".join(host for host in address.hosts if ":" not in host) or "_",
            name=LOCAL[1],
            connections=max(32, CONNECTIONS_PER_NODE * len(manifest.nodes)),
        )
    config = tomli_w.dumps({"config": str(folder / "run.toml"), "out": str(here / "run")})
    where = {
        "client": "no node: nodes run the installed client app",
        "server": "the server; run.toml configures the run",
    }
    modules = {
        f"{side}_app": render("app_module.py.jinja", side=side, where=where[side]) for side in where
    }
    app = app_files(APP, "The run of this deployment; start-run.sh starts it", modules, config)
    return found | {f"app/{name}": text for name, text in app.items()}


def node_files(run: RunConfig, node: Node, manifest: Manifest) -> dict[str, str]:
    """File name -> text, for the folder of a node."""
    name, address = node.name, manifest.address
    about = f"The node {name}: waits for work from the server, and trains on this machine's data."
    port = node_port(node.client, address)
    home = Path(NODES_HOME) / name
    return {
        "node.toml": render("node.toml", values=node_values(run, node, len(manifest.nodes))),
        "supernode.sh": render("supernode.sh", about=about, address=address, port=port),
        f"fedplt-{name}.service": _unit(f"fedplt: node {name}", home, "supernode.sh"),
        "limits.toml": render("limits.toml"),
        MANIFEST: replace(manifest, nodes={name: node.client}).text(),
    }


def node_port(client: int, address: Address) -> int:
    """A different port for each node, since all may run on one machine."""
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


def _unit(about: str, folder: Path, script: str, after: str = "") -> str:
    return render("unit.service", about=about, folder=str(folder), script=script, after=after)
