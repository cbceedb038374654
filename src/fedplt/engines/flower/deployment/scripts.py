"""Shell scripts and systemd units that start the parts of a deployment."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path

from fedplt.engines.flower.deployment.address import LOCAL, Address

CONNECTION = "deployment"
"""The name of the server in Flower's connection file."""
FIRST_NODE_PORT = 9100
NODES_HOME = "/opt/fedplt"
"""Where a node's folder is on its machine, for the systemd unit."""


def server_scripts(address: Address, environment: Path) -> dict[str, str]:
    """Scripts by name, for the folder ``server``."""
    tls = '--ssl-ca-certfile ca.crt --ssl-certfile server.pem --ssl-keyfile "$HERE/server.key"'
    secret = '--superexec-auth-secret-file "$HERE/superexec.secret"'
    superlink = f"""\
# Whoever reaches this port can start code on every node: keep it on loopback (README.md).
exec flower-superlink --host "${{FEDPLT_BIND:-{LOCAL[0]}}}" --port {address.superlink_port} \\
    {tls} \\
    --enable-supernode-auth --isolation process --database "$HERE/state.db" \\
    {secret} --disable-runtime-dependency-installation
"""
    superexec = f"""\
exec flower-superexec --runtime-api-address {address.superlink} \\
    --root-certificates "$HERE/ca.crt" {secret}
"""
    return {
        "superlink.sh": _script(
            "The SuperLink: nodes and the server app talk to each other through it.",
            environment, "flower-superlink", superlink,
        ),
        "superexec.sh": _script(
            "Runs the server app. A process of its own: a run survives a SuperLink that crashes.",
            environment, "flower-superexec", superexec,
        ),
        "register-nodes.sh": _script(
            "Registers the nodes' public keys: only these nodes may join. May be run again.",
            environment, "flwr", REGISTER,
        ),
        "start-run.sh": _script(
            "Starts the run of ../run.toml and shows its log; --resume continues it.",
            environment, "flwr", START,
        ),
    }  # fmt: skip


REGISTER = f"""\
failed=0
for key in keys/*.pub; do
    name="$(basename "$key" .pub)"
    if said="$(flwr supernode register "$key" {CONNECTION} --name "$name" 2>&1)"; then
        echo "$name: registered"
    else
        case "$said" in
        *"already in use"*) echo "$name: was registered before" ;;
        *) echo "$name: $said" >&2; failed=1 ;;
        esac
    fi
done
exit "$failed"
"""
START = f"""\
RESUME=false
case "${{1:-}}" in
"") ;;
--resume) RESUME=true ;;
*) echo "usage: start-run.sh [--resume]" >&2; exit 2 ;;
esac
exec flwr run "$HERE/app" {CONNECTION} --stream \\
    --run-config "config='$(dirname "$HERE")/run.toml' out='$HERE/run' resume=$RESUME"
"""


def node_script(name: str, client: int, address: Address, environment: Path) -> str:
    port = node_port(client, address)
    body = f"""\
# The port is for processes of this node alone, on loopback.
exec flower-supernode --superlink "${{FEDPLT_SUPERLINK:-{address.public}}}" \\
    --root-certificates ca.crt --auth-supernode-private-key "$HERE/node.key" \\
    --port "${{FEDPLT_NODE_PORT:-{port}}}" --node-config "fedplt-node='$HERE/node.toml'"
"""
    about = f"The node {name}: waits for work from the server, and trains on this machine's data."
    return _script(about, environment, "flower-supernode", body)


def node_port(client: int, address: Address) -> int:
    """A port of its own for each node, as if all ran on one machine."""
    taken = {address.port, address.superlink_port}
    port = FIRST_NODE_PORT + client % 50_000
    return port if port not in taken else port + 50_001


def _script(about: str, environment: Path, program: str, body: str) -> str:
    return f"""\
#!/bin/sh
# {about}
set -eu
umask 077
cd "$(dirname "$0")"
HERE="$(pwd -P)"
# The Python environment with fedplt and Flower; without it, programs are looked up on PATH.
[ -n "${{FEDPLT_ENVIRONMENT:-}}" ] || FEDPLT_ENVIRONMENT={shlex.quote(str(environment))}
if [ -d "$FEDPLT_ENVIRONMENT/bin" ]; then PATH="$FEDPLT_ENVIRONMENT/bin:$PATH"; fi
export PATH FLWR_HOME="$HERE/flwr-home"
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1
export FLWR_SUPEREXEC_TASK_POLL_INTERVAL="${{FLWR_SUPEREXEC_TASK_POLL_INTERVAL:-0.2}}"
if ! command -v {program} > /dev/null; then
    echo "{program} is not installed: pip install 'fedplt[flower]', and set" \\
        "FEDPLT_ENVIRONMENT to the folder of that Python environment." >&2
    exit 127
fi
{body}"""


def connection_file(folder: Path, address: Address) -> str:
    """Flower's ``config.toml``: how commands on the server reach the SuperLink."""
    certificate = str(folder / "server" / "ca.crt").replace("\\", "\\\\").replace('"', '\\"')
    return f"""\
[superlink]
default = "{CONNECTION}"

[superlink.{CONNECTION}]
address = "{address.superlink}"
root-certificates = "{certificate}"
"""


def proxy_file(folder: Path, address: Address) -> str:
    """For nginx: what the nodes need is let through, the Control API is not."""
    return f"""\
# Nodes connect to port {address.port}; only the part of the SuperLink that nodes need is behind it.
# Put this file into /etc/nginx/conf.d/ (it is for the http section).
server {{
    listen {address.port} ssl;
    listen [::]:{address.port} ssl;
    server_name {" ".join(host for host in address.hosts if ":" not in host) or "_"};
    ssl_certificate {folder}/server/server.pem;
    ssl_certificate_key {folder}/server/server.key;
    ssl_protocols TLSv1.2 TLSv1.3;
    client_max_body_size 0;
    proxy_request_buffering off;
    proxy_read_timeout 300s;

    location /v1/fleet/ {{
        proxy_pass https://{address.superlink};
        proxy_ssl_trusted_certificate {folder}/server/ca.crt;
        proxy_ssl_verify on;
        proxy_ssl_name {LOCAL[1]};
        proxy_http_version 1.1;
    }}
    location / {{
        return 403;
    }}
}}
"""


def server_units(folder: Path) -> dict[str, str]:
    here = folder / "server"
    return {
        "fedplt-superlink.service": _unit("fedplt: SuperLink", here, "superlink.sh"),
        "fedplt-superexec.service": _unit(
            "fedplt: server app", here, "superexec.sh", ["fedplt-superlink.service"]
        ),
    }


def node_unit(name: str) -> str:
    return _unit(f"fedplt: node {name}", Path(NODES_HOME) / name, "supernode.sh")


def _unit(about: str, folder: Path, script: str, after: Iterable[str] = ()) -> str:
    path = str(folder).replace("%", "%%")
    return f"""\
# Copy this file to /etc/systemd/system, then: systemctl daemon-reload, systemctl enable --now
# with its name. User and WorkingDirectory must be there, and the folder must belong to the user.
[Unit]
Description={about}
Wants=network-online.target
After={" ".join(["network-online.target", *after])}

[Service]
User=fedplt
WorkingDirectory={path}
ExecStart=/bin/sh {script}
# A node that was killed is refused until the server misses it, after about a minute.
Restart=always
RestartSec=10
NoNewPrivileges=true
PrivateTmp=true

[Install]
WantedBy=multi-user.target
"""
