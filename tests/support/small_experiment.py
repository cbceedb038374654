"""An experiment small enough to run in tests."""

from __future__ import annotations

import sys
from pathlib import Path

from fedplt.configuration.config import RunConfig
from fedplt.configuration.config_file import override
from reproduction import runner
from reproduction.catalog import EXPERIMENTS
from reproduction.runner import Place, reproduce
from reproduction.settings import Block

SMALL = [
    "data.name=tests.support.tiny:data", "data.alpha=10.0", "clients.num_clients=3",
    "clients.groups=[{share=1.0, ratio=0.5}]",
    "model.options={num_inputs = 6, num_classes = 3}", "training.learning_rate=0.1",
    "checkpoint_every=1",
]  # fmt: skip


class SmallBlock(Block):
    def config(self, contestant, rounds, seed) -> RunConfig:
        return override(super().config(contestant, rounds, seed), SMALL)


def small_block() -> SmallBlock:
    whole = EXPERIMENTS["study"].blocks["fashion-fcn"]
    return SmallBlock("study", "fashion-fcn", whole.setting, whole.contestants[:2])


def main() -> None:
    """``OUT RESULTS ROUNDS``: reproduce the second contestant, in a process that can be killed."""
    out, results, rounds = sys.argv[1:]
    runner.fetch_data_set = lambda name, progress: None
    block = small_block()
    only = SmallBlock(block.experiment, block.pair, block.setting, block.contestants[1:])
    reproduce(only, Place(Path(out), Path(results)), [1], int(rounds), processes=1)
