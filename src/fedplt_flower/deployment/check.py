"""``fedplt deploy check``: find problems on the server or a node before anything runs."""

from __future__ import annotations

import http.client
import shutil
import socket
import ssl
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path

import httpx
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key
from flwr.proto.control_pb2 import ListNodesRequest
from flwr.proto.fleet_pb2 import ActivateNodeRequest
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.error import ApiErrorCode, FlowerError
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.protobuf.client import ProtobufClientInterceptor
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from fedplt.configuration import load_config
from fedplt.data import first_examples
from fedplt.errors import FedpltError, RunError, did_you_mean
from fedplt.federation import participants_warning, plan_from_config, try_model
from fedplt.fleet import power_source
from fedplt_flower.deployment.check_files import (
    Finding,
    check_ca,
    check_certificate,
    check_node_key,
    guarded,
    note,
    ok,
    private_file,
    problem,
    reason_of,
    versions,
)
from fedplt_flower.deployment.manifest import (
    CONNECTION,
    LOCAL,
    Address,
    Manifest,
    join,
    layers_of,
    read_manifest,
)
from fedplt_flower.node.node_config import NodeConfig, load_node, node_data, node_device, node_model
from fedplt_flower.node.owner_limits import load_limits

DEADLINE_SECONDS = 5.0
AHEAD_SECONDS = 4.0
BEHIND_SECONDS = 300.0
"""A SuperLink refuses signatures over 5 s in the future or 305 s old; the check is stricter."""


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
    yield from guarded(_run(folder.parent / "run.toml", manifest), "correct it")


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
        raise RunError(f"{path} cannot be run: {error}") from error
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
    yield from guarded(_node_files(folder, manifest), "correct node.toml")


def _node_files(folder: Path, manifest: Manifest) -> Iterator[Finding]:
    node = load_node(folder / "node.toml")
    if manifest.nodes.get(node.name) != node.client:
        text = f"node.toml is of {node.name}, client {node.client}; this folder is of "
        of = ", ".join(f"{name}, client {client}" for name, client in manifest.nodes.items())
        yield problem(text + of, "set name and client back: the server expects them")
    yield _writable(Path(node.state))
    yield from guarded(_limits(node), "correct it: until then the node refuses everything")
    profile = "write it with 'fedplt probe MODEL --out', or correct it"
    yield from guarded(_profile(node), profile)
    code = "correct node.toml, or install what it names"
    yield from guarded(_data_and_model(node, manifest), code)


def _writable(state: Path) -> Finding:
    try:
        state.mkdir(parents=True, exist_ok=True, mode=0o700)
        tempfile.TemporaryFile(dir=state).close()
    except OSError as error:
        text = f"{state} cannot be written to: {error.strerror}"
        return problem(text, "make the node's user its owner, or set state in node.toml")
    return ok(f"{state.name}/ can be written to")


def _limits(node: NodeConfig) -> Iterator[Finding]:
    limits = load_limits(node.limits)
    given = limits.model_dump(exclude_defaults=True)
    text = ", ".join(f"{key} = {value}" for key, value in given.items())
    if limits.mains_power_only:
        text += f" ({power_source().reason})"
    yield ok(f"limits: {text}" if text else "limits.toml sets no limits")


def _profile(node: NodeConfig) -> Iterator[Finding]:
    if (device := node_device(node)) is not None:
        yield ok(f"profile: {device.flops_per_second / 1e9:.3g} GFLOP/s")


def _data_and_model(node: NodeConfig, manifest: Manifest) -> Iterator[Finding]:
    data = node_data(node)
    yield ok(f"data: {len(data.train):,} examples of this node")
    model, task = node_model(node), node.task.task()
    inputs, targets = first_examples(data.train)
    config = node.run_config()
    try_model(config, model, inputs, targets, task)
    layers = plan_from_config(config, model, inputs)[0].layers
    if manifest.layers is None:
        yield note("the model can be built; the server's was not recorded to compare with")
    elif layers.fingerprint == manifest.layers:
        yield ok("the model is the server's")
    else:
        text = "the model's layers are not the server's"
        yield problem(text, "use the server's model code and [model] of run.toml")


def check_server_reachable(host: str, port: int, ca: Path, *, expected: bool) -> Iterator[Finding]:
    """Connect with TLS and compare clocks; a server that is down is a problem if ``expected``."""
    address = join(host, port)
    try:
        context = ssl.create_default_context(cafile=str(ca))
    except (OSError, ssl.SSLError):
        return  # the check of the certificate reports it
    try:
        raw = socket.create_connection((host, port), timeout=DEADLINE_SECONDS)
    except OSError as error:
        text = f"nothing answers at {address} ({_reason(error)})"
        if expected:
            yield problem(text, "start the server (superlink.sh), open the port, check the name")
        else:
            yield note(text, "start superlink.sh; before that, this is expected")
        return
    try:
        with raw, context.wrap_socket(raw, server_hostname=host) as secured:
            yield ok(f"{address} answers, with a certificate of this deployment's CA")
            date = _server_date(secured)
    except ssl.SSLCertVerificationError as error:
        do = "is it the right server, and the ca.crt of this deployment?"
        yield problem(f"{address} has a certificate that is refused: {error.verify_message}", do)
        return
    except OSError as error:  # also ssl.SSLError and timeouts
        do = "something else may be listening there: check address and port"
        yield problem(f"{address} does not speak TLS ({_reason(error)})", do)
        return
    if date is not None:
        yield compare_clocks(date, datetime.now(UTC))


def check_nodes_registered(folder: Path, address: Address) -> Iterator[Finding]:
    """On the server: whether the SuperLink, if it runs, knows the keys of all nodes."""
    found = sorted(folder.glob("keys/*.pub"))
    try:
        ca = (folder / "ca.crt").read_bytes()
        given = {path.stem: load_ssh_public_key(path.read_bytes()) for path in found}
        with ControlHttpClient.from_server_address(address.superlink, False, ca, []) as control:
            nodes = control.ListNodes(ListNodesRequest()).nodes_info
        known = {bytes(node.public_key) for node in nodes}
    except (OSError, ValueError, UnsupportedAlgorithm, httpx.HTTPError):
        return  # the SuperLink does not run, or the checks of its files report the problem
    missing = [
        name
        for name, key in given.items()
        if isinstance(key, ec.EllipticCurvePublicKey) and public_key_to_bytes(key) not in known
    ]
    if missing:
        yield problem(f"not registered: {', '.join(missing)}", "run register-nodes.sh")
    elif given:
        yield ok(f"the keys of {len(given)} nodes are registered")


def check_node_registered(folder: Path, address: Address) -> Iterator[Finding]:
    """On a node: whether the server knows its key.

    Sends a heartbeat interval that is not allowed. A SuperLink refuses unknown keys first, and this
    interval second; either way its state does not change.
    """
    try:
        ca = (folder / "ca.crt").read_bytes()
        key = load_ssh_private_key((folder / "node.key").read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        public = key.public_key()
        request = ActivateNodeRequest(
            public_key=public_key_to_bytes(public), heartbeat_interval=0.0
        )
        interceptors: list[ProtobufClientInterceptor] = [
            RuntimeVersionHttpInterceptor(component_name="SuperNode"),
            NodeAuthHttpInterceptor(key, public),
        ]
        with FleetHttpClient.from_server_address(address.public, False, ca, interceptors) as fleet:
            fleet.ActivateNode(request)
    except httpx.HTTPStatusError as error:
        yield from _refusal(error.response)
    except (OSError, ValueError, AssertionError, UnsupportedAlgorithm, httpx.HTTPError):
        return  # no connection, or no key: other checks report it


def _refusal(response: httpx.Response) -> Iterator[Finding]:
    error = FlowerError.from_json(response.text)
    code = None if error is None else error.code
    if code == ApiErrorCode.FLEET_INVALID_HEARTBEAT_INTERVAL:
        yield ok("the server knows this node's key")
    elif code == ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED:
        do = "run register-nodes.sh on the server, with this node's node.pub in its keys/"
        yield problem("the server does not know this node's key", do)
    else:
        yield note(
            f"the server did not answer whether it knows this key (HTTP {response.status_code})"
        )


def compare_clocks(server: datetime, here: datetime) -> Finding:
    """Compare clocks: signatures contain the time, so the server refuses a wrong clock."""
    ahead = (here - server).total_seconds()  # up to 1 s too large: the header has whole seconds
    do = "set the clocks, such as with 'timedatectl set-ntp true' on both"
    where = f"{abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} the server's"
    if ahead > AHEAD_SECONDS or ahead < -BEHIND_SECONDS:
        return problem(f"this clock is {where}: it refuses this node", do)
    if ahead < -AHEAD_SECONDS:
        return note(f"this clock is {where}", do)
    return ok("the clocks agree within seconds")


def _server_date(secured: ssl.SSLSocket) -> datetime | None:
    """The ``Date`` header of the server's answer; None if it sent none."""
    request = b"HEAD / HTTP/1.1\r\nHost: fedplt\r\nConnection: close\r\n\r\n"
    try:
        secured.sendall(request)
        answer = http.client.HTTPResponse(secured, method="HEAD")
        answer.begin()
        return parsedate_to_datetime(answer.headers["Date"])
    except (OSError, http.client.HTTPException, TypeError, ValueError):
        return None


def _reason(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {DEADLINE_SECONDS:g} s"
    return reason_of(error)
