"""Write the folder of a deployment, all of it or nothing."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path

from fedplt.configuration import RunConfig
from fedplt.engines.flower.deployment import keys
from fedplt.engines.flower.deployment.address import Address
from fedplt.engines.flower.deployment.app_files import app_files
from fedplt.engines.flower.deployment.nodes_file import Node, read_nodes
from fedplt.engines.flower.deployment.record import (
    RECORD,
    Record,
    installed_versions,
    layers_of,
)
from fedplt.engines.flower.deployment.run_file import (
    SPLIT_FILE,
    node_text,
    run_text,
    run_values,
)
from fedplt.engines.flower.deployment.scripts import node_files, node_port, readme, server_files
from fedplt.errors import ConfigError, FedpltError, RunError
from fedplt.federation import participants_warning


def init_deployment(
    folder: Path, nodes_csv: Path, address: Address, config: Path | None = None
) -> tuple[Record, list[str]]:
    """Write a deployment into a new folder; return its record and what its owner should know."""
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
    layers, missing = _layers(run)
    names = {node.name: node.client for node in nodes}
    record = Record(installed_versions(), address, layers, names)
    split = None
    if run.data.split_file is not None:
        split = _read_split(Path(run.data.split_file))
        values["data"] = {**values["data"], "split_file": str(folder / "server" / SPLIT_FILE)}

    scratch = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    scratch.mkdir(parents=True, mode=0o700)
    try:
        _write_server(scratch, folder, record)
        for node in nodes:
            _write_node(scratch, record, run, node, split)
        texts = {
            "run.toml": run_text(values),
            "README.md": readme(folder, address, nodes, participants_warning(run)),
            RECORD: record.text(),
        }
        if split is not None:
            texts[f"server/{SPLIT_FILE}"] = split
        _write(scratch, texts)
        scratch.replace(folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    if missing:
        missing = f"Nodes cannot compare their model with the server's, which failed: {missing}"
    return record, [text for text in (missing, participants_warning(run)) if text]


def _layers(run: RunConfig) -> tuple[str | None, str]:
    try:
        return layers_of(run).fingerprint, ""
    except FedpltError as error:
        return None, str(error)


def _read_split(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"data.split_file: {path} cannot be read: {error}") from error


def _write_server(scratch: Path, folder: Path, record: Record) -> None:
    """The certificate authority and the folder of the server."""
    address = record.address
    (scratch / "ca").mkdir(mode=0o700)
    server = scratch / "server"
    (server / "keys").mkdir(parents=True, mode=0o700)
    ca_key, server_key = keys.new_key(), keys.new_key()
    ca = keys.make_ca(ca_key)
    certificate = keys.make_server_certificate(server_key, ca, ca_key, address)
    keys.write_private(scratch / "ca" / "ca.key", keys.pem_private(ca_key))
    keys.write_private(server / "server.key", keys.pem_private(server_key))
    keys.write_private(server / "superexec.secret", secrets.token_hex(32).encode())
    for path in (scratch / "ca" / "ca.crt", server / "ca.crt"):
        path.write_bytes(keys.pem_certificate(ca))
    (server / "server.pem").write_bytes(keys.pem_certificate(certificate))
    texts = {
        RECORD: record.text(),
        **server_files(folder, address, len(record.nodes)),
        **{f"app/{path}": text for path, text in app_files(folder).items()},
    }
    _write(server, texts)


def _write_node(
    scratch: Path, record: Record, run: RunConfig, node: Node, split: str | None
) -> None:
    """A node's folder, which is copied to its machine; its public key is the server's."""
    folder = scratch / "nodes" / node.name
    folder.mkdir(parents=True, mode=0o700)
    key = keys.new_key()
    public = keys.openssh_public(key, node.name)
    keys.write_private(folder / "node.key", keys.openssh_private(key))
    (folder / "node.pub").write_bytes(public)
    (scratch / "server" / "keys" / f"{node.name}.pub").write_bytes(public)
    (folder / "ca.crt").write_bytes((scratch / "ca" / "ca.crt").read_bytes())
    keys.write_runtime(folder, node_port(node.client, record.address))
    own = Record(record.versions, record.address, record.layers, {node.name: node.client})
    texts = {
        "node.toml": node_text(run, node, len(record.nodes)),
        **node_files(node.name, node.client, record.address),
        RECORD: own.text(),
    }
    if split is not None:
        texts[SPLIT_FILE] = split
    _write(folder, texts)


def _write(folder: Path, texts: Mapping[str, str]) -> None:
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        if path.suffix == ".sh":
            path.chmod(0o755)
