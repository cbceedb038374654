"""Checks of the connection to the server: TCP, TLS, clocks, and whether the node is registered."""

from __future__ import annotations

import http.client
import socket
import ssl
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

from fedplt.engines.flower.deployment.check_files import Finding, note, ok, problem
from fedplt.engines.flower.deployment.manifest import Address, join

DEADLINE_SECONDS = 5.0
AHEAD_SECONDS = 4.0
BEHIND_SECONDS = 300.0
"""The SuperLink refuses signatures from more than 5 s ahead of its clock, or 305 s behind it."""


def check_server_reachable(host: str, port: int, ca: Path, *, expected: bool) -> Iterator[Finding]:
    """Connect with TLS and compare clocks; a server that is not ``expected`` to run may be down."""
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
        return  # it does not run, or the checks of its files report the problem
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
    """Nodes sign with the time of day, so the server refuses nodes with a wrong clock."""
    ahead = (here - server).total_seconds()  # up to a second too much: the header has whole ones
    do = "set the clocks, such as with 'timedatectl set-ntp true' on both"
    if ahead > AHEAD_SECONDS:
        return problem(
            f"this clock is {ahead:.0f} s ahead of the server's: it refuses this node", do
        )
    if ahead < -BEHIND_SECONDS:
        return problem(
            f"this clock is {-ahead:.0f} s behind the server's: it refuses this node", do
        )
    if ahead < -AHEAD_SECONDS:
        return note(f"this clock is {-ahead:.0f} s behind the server's", do)
    return ok("the clocks agree within seconds")


def _server_date(secured: ssl.SSLSocket) -> datetime | None:
    """The ``Date`` header of an answer."""
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
    return error.strerror or str(error)
