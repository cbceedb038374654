# mypy: implicit-reexport
"""Engines that run the clients, and the functions that start a run."""

from __future__ import annotations

from fedplt.engines.cores import available_cores
from fedplt.engines.own_model import train
from fedplt.engines.start import prepare_resume, resume, run, run_job
