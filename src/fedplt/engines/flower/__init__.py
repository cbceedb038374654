# mypy: implicit-reexport
"""Runs whose clients are Flower nodes. Nothing else in fedplt imports flwr."""

from __future__ import annotations

from fedplt.engines.flower.client_app import client_app
from fedplt.engines.flower.engine import FlowerEngine
from fedplt.engines.flower.server_app import server_app
from fedplt.engines.flower.simulation import FlowerSimulation
from fedplt.engines.flower.slices_app import ClientSlices, SlicesApp, train_slices
from fedplt.engines.flower.strategy import FedPLT
