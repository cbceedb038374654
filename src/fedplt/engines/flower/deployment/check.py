"""``fedplt deploy check``: find problems on the server or a node before anything runs."""

from __future__ import annotations

import os
import shutil
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from fedplt.configuration import load_config
from fedplt.data import first_examples
from fedplt.engines.flower.deployment.check_connection import (
    check_node_registered,
    check_nodes_registered,
    check_server_reachable,
)
from fedplt.engines.flower.deployment.check_files import (
    Finding,
    check_ca,
    check_certificate,
    check_node_key,
    note,
    ok,
    private_file,
    problem,
    versions,
)
from fedplt.engines.flower.deployment.manifest import (
    CONNECTION,
    LOCAL,
    Address,
    Manifest,
    layers_of,
    read_manifest,
)
from fedplt.engines.flower.node.node_config import (
    NodeConfig,
    load_node,
    node_data,
    node_device,
    node_model,
    node_task,
)
from fedplt.engines.flower.node.owner_limits import load_limits
from fedplt.errors import FedpltError, RunError, did_you_mean
from fedplt.federation import participants_warning, plan_from_config, try_model
from fedplt.machine import power_source


def check_deployment(folder: Path, node: str | None = None) -> Iterator[Finding]:
    """Check a node's folder (also ``nodes/NAME`` of a whole deployment), or the server's."""
    if (folder / "node.toml").is_file():
        manifest = read_manifest(folder)
        if node is not None and node not in manifest.nodes:
            raise RunError(f"{folder} is the folder of {', '.join(manifest.nodes)}, not of {node}.")
        return check_node(folder, manifest)
    if node is not None:
        own = folder / "nodes" / node
        if not (own / "node.toml").is_file():
            known = [path.parent.name for path in folder.glob("nodes/*/node.toml")]
            hint = did_you_mean(node, known) if known else "Is this the folder of a deployment?"
            raise RunError(f"{folder} has no node {node!r}. {hint}")
        return check_node(own, read_manifest(own))
    server = folder if (folder / "superlink.sh").is_file() else folder / "server"
    if not (server / "superlink.sh").is_file():
        raise RunError(
            f"{folder} is not a deployment: it has neither server/ nor node.toml. 'fedplt deploy "
            "init' makes one."
        )
    return check_server(server, read_manifest(server))


def check_server(folder: Path, manifest: Manifest) -> Iterator[Finding]:
    yield from versions(manifest.versions)
    yield from _programs("flower-superlink", "flower-superexec", "flwr")
    yield from check_ca(folder / "ca.crt")
    yield from check_certificate(folder, manifest.address)
    for name in ("server.key", "superexec.secret"):
        yield private_file(folder / name)
    yield from _misplaced_keys(folder.parent, manifest)
    yield _connection(folder)
    ca, address = folder / "ca.crt", manifest.address
    yield from check_server_reachable(LOCAL[0], address.superlink_port, ca, expected=False)
    yield from check_nodes_registered(folder, address)
    if not address.on_this_machine:
        yield from check_server_reachable(address.hosts[0], address.port, ca, expected=False)
    yield from _run(folder.parent / "run.toml", manifest)


def _programs(*names: str) -> Iterator[Finding]:
    beside = str(Path(sys.prefix) / "bin")
    for name in names:
        if shutil.which(name) is None and shutil.which(name, path=beside) is None:
            yield problem(f"{name} is not installed", "pip install 'fedplt[flower]'")


def _misplaced_keys(folder: Path, manifest: Manifest) -> Iterator[Finding]:
    if manifest.address.on_this_machine:
        return
    if (folder / "ca" / "ca.key").exists():
        yield note("ca/ca.key is on this machine", "move ca/ to a safe place")
    if left := sorted(path.parent.name for path in folder.glob("nodes/*/node.key")):
        text = f"private keys of nodes are on this machine: {', '.join(left)}"
        yield note(text, "copy nodes/NAME to each node, and delete it here")


def _connection(folder: Path) -> Finding:
    path = folder / "flwr-home" / "config.toml"
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
        certificate = Path(values["superlink"][CONNECTION]["root-certificates"])
        same = certificate.samefile(folder / "ca.crt")
    except (OSError, ValueError, LookupError, TypeError) as error:
        reason = getattr(error, "strerror", None) or error
        return problem(f"{path} cannot be used: {reason}", "was the folder moved? Edit its paths")
    if not same:
        text = f"{path} names {certificate}, not the ca.crt beside it"
        return problem(text, "edit root-certificates there")
    return ok("flwr-home/config.toml leads to this deployment")


def _run(path: Path, manifest: Manifest) -> Iterator[Finding]:
    try:
        config = load_config(path)
        layers = layers_of(config)
    except FedpltError as error:
        yield problem(f"{path} cannot be run: {error}", "correct it")
        return
    if config.clients.num_clients != len(manifest.nodes):
        text = f"{path} has {config.clients.num_clients} clients for {len(manifest.nodes)} nodes"
        yield problem(text, "set clients.num_clients and its groups back")
    if manifest.layers is not None and layers.fingerprint != manifest.layers:
        text = "the model of run.toml has other layers than when the deployment was made"
        yield problem(text, "set [model] back, or make a new deployment: nodes refuse this run")
    if few := participants_warning(config):
        yield note(few.removeprefix("WARNING: "))
    yield ok(f"run.toml: {len(manifest.nodes)} clients, {layers.size:,} parameters")


def check_node(folder: Path, manifest: Manifest) -> Iterator[Finding]:
    yield from versions(manifest.versions)
    yield from _programs("flower-supernode", "flower-superexec")
    yield from check_ca(folder / "ca.crt")
    for name in ("node.key", "runtime.key", "superexec.secret"):
        yield private_file(folder / name)
    yield check_node_key(folder)
    address = manifest.address
    here = Address(LOCAL[:1], address.port)
    yield from check_certificate(folder, here, "runtime", "runtime-ca.crt")
    yield from check_server_reachable(
        address.hosts[0], address.port, folder / "ca.crt", expected=True
    )
    yield from check_node_registered(folder, address)
    try:
        node = load_node(folder / "node.toml")
    except FedpltError as error:
        yield problem(str(error), "correct node.toml")
        return
    if manifest.nodes.get(node.name) != node.client:
        text = f"node.toml is of {node.name}, client {node.client}; this folder is of "
        of = ", ".join(f"{name}, client {client}" for name, client in manifest.nodes.items())
        yield problem(text + of, "set name and client back: the server expects them")
    yield _writable(Path(node.state))
    yield _limits(node)
    yield from _profile(node)
    yield from _data_and_model(node, manifest)


def _writable(state: Path) -> Finding:
    try:
        state.mkdir(parents=True, exist_ok=True, mode=0o700)
        probe = state / f".probe.{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        text = f"{state} cannot be written to: {error.strerror}"
        return problem(text, "make the node's user its owner, or set state in node.toml")
    return ok(f"{state.name}/ can be written to")


def _limits(node: NodeConfig) -> Finding:
    try:
        limits = load_limits(node.limits)
    except FedpltError as error:
        return problem(str(error), "correct it: until then the node refuses everything")
    given = limits.model_dump(exclude_defaults=True)
    text = ", ".join(f"{key} = {value}" for key, value in given.items())
    if limits.mains_power_only:
        text += f" ({power_source().reason})"
    return ok(f"limits: {text}" if text else "limits.toml sets no limits")


def _profile(node: NodeConfig) -> Iterator[Finding]:
    try:
        device = node_device(node)
    except FedpltError as error:
        yield problem(str(error), "write it with 'fedplt probe MODEL --out', or correct it")
        return
    if device is not None:
        yield ok(f"profile: {device.flops_per_second / 1e9:.3g} GFLOP/s")


def _data_and_model(node: NodeConfig, manifest: Manifest) -> Iterator[Finding]:
    try:
        data = node_data(node)
        yield ok(f"data: {len(data.train):,} examples of this node")
        model, task = node_model(node), node_task(node)
        inputs, targets = first_examples(data.train)
        config = node.run_config()
        try_model(config, model, inputs, targets, task)
        layers = plan_from_config(config, model, inputs)[0].layers
    except FedpltError as error:
        yield problem(str(error), "correct node.toml, or install what it names")
        return
    if manifest.layers is None:
        yield note("the model can be built; the server's was not recorded to compare with")
    elif layers.fingerprint == manifest.layers:
        yield ok("the model is the server's")
    else:
        text = "the model's layers are not the server's"
        yield problem(text, "use the server's model code and [model] of run.toml")
