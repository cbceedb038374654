"""The embedded engine: worker processes on this machine, with the same bits for any number."""

from fedplt.engines.simulator.engine import SimulatorEngine as SimulatorEngine
from fedplt.engines.simulator.engine import available_cores as available_cores
