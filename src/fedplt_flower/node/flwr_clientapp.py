"""``flwr-clientapp`` of a node: runs the client app of the installed fedplt.

Code that the server sends is neither unpacked nor imported.
"""

from __future__ import annotations

import signal
from typing import Any

from flwr.supernode.cli import flwr_clientapp
from flwr.supernode.runtime import run_clientapp as flower

from fedplt.errors import RunError
from fedplt_flower.node.client_app import client_app

OURS: dict[str, Any] = {
    "install_from_fab": lambda *_, **__: None,
    "get_load_client_app_fn": lambda **_: lambda *__: client_app(),
}
"""Replacements of Flower's functions that unpack and import what the server sent."""


def main() -> None:
    for name, function in OURS.items():
        if not hasattr(flower, name):
            raise RunError(
                f"this version of Flower has no {flower.__name__}.{name}: its nodes would run the "
                "server's code. Install the version of deployment.json."
            )
        setattr(flower, name, function)
    # Shells let background jobs ignore SIGINT, with which Flower ends processes.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    flwr_clientapp()


if __name__ == "__main__":
    main()
