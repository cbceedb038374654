"""Data whose server app dies once, between the two phases of its second round."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from fedplt_flower.server.engine import FlowerEngine
from tests.support.jobs import blob_data


def data():
    """The server dies where the file that FEDPLT_TEST_KILLED names does not exist yet."""
    path = os.environ.get("FEDPLT_TEST_KILLED")
    if path is not None and not Path(path).exists():
        _die_before_collecting(Path(path))
    return blob_data()


def _die_before_collecting(path):
    collect = FlowerEngine.collect

    def die(engine, clients):
        if engine.round == 1:
            path.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return collect(engine, clients)

    FlowerEngine.collect = die
