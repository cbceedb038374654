# mypy: implicit-reexport
"""Runs whose clients are Flower nodes. Nothing else in fedplt imports flwr."""

from __future__ import annotations

from fedplt.engines.flower.app.slices_app import ClientSlices, SlicesApp, train_slices
from fedplt.engines.flower.node.client_app import client_app
from fedplt.engines.flower.server.engine import FlowerEngine
from fedplt.engines.flower.server.server_app import server_app
from fedplt.engines.flower.server.simulation import FlowerSimulation
from fedplt.engines.flower.server.strategy import FedPLT
