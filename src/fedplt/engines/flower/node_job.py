"""A node's client, from what its owner wrote into ``node.toml`` and ``limits.toml``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from pathlib import Path

from fedplt.configuration import ClientsConfig
from fedplt.data import split_given
from fedplt.engines.flower.ledger import LEDGER, add_bytes, bytes_used
from fedplt.engines.flower.limits import Limits, load_limits, refusal
from fedplt.engines.flower.node import NodeConfig, node_data, node_device, node_model, node_task
from fedplt.engines.flower.node_client import NodeClient
from fedplt.engines.flower.power import power
from fedplt.errors import RunError
from fedplt.federation import Job, make_job


def node_client(node: NodeConfig) -> NodeClient:
    """The client of a node; raises what is wrong with its files, in words."""
    job = node_job(node)
    guard = OwnerLimits(node.name, load_limits(node.limits), Path(node.state) / LEDGER)
    device = node_device(node)
    return NodeClient(job, node.client, job.examples(0), Path(node.state), guard, device)


def node_job(node: NodeConfig) -> Job:
    """A job of this one client: how it is trained is what the server's orders say."""
    data = node_data(node)
    config = node.run_config().model_copy(update={"clients": ClientsConfig(num_clients=1)})
    everything = split_given([list(range(len(data.train)))], len(data.train))
    return make_job(config, node_model(node), data, split=everything, task=node_task(node))


class OwnerLimits:
    """Refuses what the owner does not allow, and writes down the bytes that were moved."""

    def __init__(self, name: str, limits: Limits, ledger: Path) -> None:
        self.name, self.limits, self.ledger = name, limits, ledger

    def __call__(
        self, ratio: float, bytes_down: int, bytes_up: int
    ) -> AbstractContextManager[None]:
        return self._round(ratio, bytes_down, bytes_up)

    @contextmanager
    def _round(self, ratio: float, bytes_down: int, bytes_up: int) -> Iterator[None]:
        now = datetime.now()
        why = refusal(
            self.limits,
            node=self.name,
            ratio=ratio,
            bytes_down=bytes_down,
            bytes_up=bytes_up,
            expected_seconds=None,
            now=now,
            on_mains=power().on_mains,
            bytes_today=bytes_used(self.ledger, now.date()),
        )
        if why is not None:
            add_bytes(self.ledger, now.date(), bytes_down)
            raise RunError(why)
        add_bytes(self.ledger, now.date(), bytes_down + bytes_up)
        yield
