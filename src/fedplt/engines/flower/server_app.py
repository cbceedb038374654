"""Flower's server apps: of a deployment, and of the simulation that ``fedplt run`` starts."""

from __future__ import annotations

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedplt.engines.flower.grid_wire import GridWire
from fedplt.engines.flower.relay import relay


def relay_app(address: str, token: str) -> ServerApp:
    """The server app of a simulation: the round loop is in the process that started it."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        relay(GridWire(grid), address, token)

    return app
