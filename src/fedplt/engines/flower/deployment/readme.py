"""``README.md`` of a deployment: what to do, in which order, on which machine."""

from __future__ import annotations

from pathlib import Path

from fedplt.engines.flower.deployment.address import Address
from fedplt.engines.flower.deployment.nodes_file import Node
from fedplt.engines.flower.deployment.scripts import NODES_HOME
from fedplt.text import table


def readme(folder: Path, address: Address, nodes: tuple[Node, ...]) -> str:
    rows = [
        [str(node.client), node.name, "planned" if node.ratio is None else f"{node.ratio:g}"]
        for node in nodes
    ]
    first = nodes[0].name
    open_port = "" if address.on_this_machine else PROXY.format(a=address, folder=folder)
    copy = HERE if address.on_this_machine else COPY.format(home=NODES_HOME, name=first)
    return TEXT.format(
        address=address.public,
        folder=folder,
        nodes=table(["client", "name", "ratio"], rows, left=(1,)),
        first=first,
        copy=copy,
        open_port=open_port,
        superlink=address.superlink,
        home=NODES_HOME,
        probe=PROBE if nodes[0].ratio is None else "",
    )


COPY = """\
Copy each folder `nodes/NAME` to its node, over a channel that you trust (it holds the node's
private key), for instance to `{home}/NAME`, and delete it here:

```sh
rsync -a --chmod=go= nodes/{name}/ {name}:{home}/{name}/ && rm -r nodes/{name}
```

Nothing else leaves this machine. Keep `ca/` offline: it is needed only to renew the certificate.
"""
HERE = """\
All nodes run on this machine: there is nothing to copy. (For nodes elsewhere, make the deployment
with `--host NAME_OR_ADDRESS_OF_THIS_MACHINE`.)
"""
PROXY = """
The SuperLink itself listens on {a.superlink} only. The nodes come to port {a.port} through a
proxy that lets their part of it through (`/v1/fleet/`) and nothing else. With nginx:

```sh
cp server/nginx.conf /etc/nginx/conf.d/fedplt.conf && nginx -t && systemctl reload nginx
```
"""
PROBE = """
The server plans by what the devices can do. On each node, measure it for the run's model:

```sh
fedplt probe MODEL --down "100 Mbit/s" --up "20 Mbit/s" --out profile.toml    # in its folder
```
"""
TEXT = """\
# A federation of fedplt on Flower

The server is {address}. Its folder is `{folder}`; if it is moved, edit the paths in
`server/flwr-home/config.toml` and `server/*.service`. Nodes:

```
{nodes}
```

| folder | belongs to | |
|---|---|---|
| `run.toml` | the server | what is trained, and how |
| `server/` | the server | scripts, certificate, the nodes' public keys, the Flower app |
| `nodes/NAME/` | that node alone | its private key, its data (`node.toml`) and limits |
| `ca/` | a safe place | signs the server's certificate; never on a node |

Files that end in `.key` and `superexec.secret` are private: nobody but their owner may read them.

## 1. Every machine: install

```sh
pip install 'fedplt[flower]'
```

Versions must be those in `deployment.json`. Scripts look for the programs in the environment that
made this folder, then on `PATH`; set `FEDPLT_ENVIRONMENT` to use another.

## 2. Copy
{copy}
Own data, models or losses that `run.toml` and `node.toml` name by import path are installed on the
machine, or lie beside `node.toml` (on the server: in `server/`).

## 3. The server: start
{open_port}
In two terminals, or as services (`server/*.service`):

```sh
server/superlink.sh
server/superexec.sh
```

Then, once:

```sh
server/register-nodes.sh
fedplt deploy check .
```

## 4. Each node: check and start
{probe}
```sh
fedplt deploy check .              # in the node's folder; on this machine: check . --node {first}
./supernode.sh                     # or fedplt-{first}.service
```

Each owner edits `node.toml` (which data) and `limits.toml` (how much). A node that was killed, not
stopped, is refused for about a minute after its restart: start it again (the service does).

## 5. The server: run

```sh
server/start-run.sh                # Ctrl-C stops the log, not the run
```

## Follow it

- `fedplt report server/run`, at any time: scores, costs, who took part (also, one line per
  round, in `server/run/rounds.jsonl`).
- `FLWR_HOME="$PWD/server/flwr-home" flwr supernode list`: which nodes are online.
- `FLWR_HOME="$PWD/server/flwr-home" flwr list`: the runs of this server; in the same way
  `flwr log RUN_ID` and `flwr stop RUN_ID`.
- Logs of the parts: their terminals, or `journalctl -u fedplt-superlink`.

## Resume

A SuperLink, server app or node that ends is started again with its script; the SuperLink keeps its
state in `server/state.db`. A run that ended early continues from its last checkpoint:

```sh
server/start-run.sh --resume
```

## Keep the Control API closed

Flower's Control API, on {superlink}, starts code on every node and asks for no password. It
listens on loopback, so that only people with an account on the server reach it. Never set
`FEDPLT_BIND` to an address that others reach: let nodes in by the proxy (`--host` writes its
configuration), or by a private network (WireGuard, an SSH tunnel).

## Remove or add a node

Remove: `flwr supernode unregister NODE_ID`. Add: a new folder with `fedplt deploy init`, since
clients and ratios are part of the run.
"""
