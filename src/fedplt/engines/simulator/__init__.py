"""The simulator: worker processes on this machine; the same bits for any number of workers."""

from fedplt.engines.simulator.engine import SimulatorEngine as SimulatorEngine
