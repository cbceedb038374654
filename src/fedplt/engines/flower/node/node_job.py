"""A node's client and its gate, from its owner's ``node.toml`` and ``limits.toml``."""

from __future__ import annotations

from pathlib import Path

from fedplt.configuration import ClientsConfig
from fedplt.data import split_given
from fedplt.engines.flower.node.client import NodeClient
from fedplt.engines.flower.node.gate import Work
from fedplt.engines.flower.node.ledger import LEDGER
from fedplt.engines.flower.node.node_config import (
    NodeConfig,
    node_data,
    node_device,
    node_model,
    node_task,
)
from fedplt.engines.flower.node.owner_limits import load_limits
from fedplt.federation import Job, make_job


def node_client(node: NodeConfig) -> NodeClient:
    """The client of a node; raises what is wrong with its files, in words."""
    job = node_job(node)
    device = node_device(node)
    return NodeClient(job, node.client, job.examples(0), Path(node.state), device)


def node_work(node: NodeConfig, bytes_down: int) -> Work:
    """Let an order of so many bytes pass the node's gate, or refuse it."""
    return Work(
        load_limits(node.limits),
        node=node.name,
        bytes_down=bytes_down,
        ledger=Path(node.state) / LEDGER,
    )


def node_job(node: NodeConfig) -> Job:
    """A job of this one client: how it is trained is what the server's orders say."""
    data = node_data(node)
    config = node.run_config().model_copy(update={"clients": ClientsConfig(num_clients=1)})
    everything = split_given([list(range(len(data.train)))], len(data.train))
    return make_job(config, node_model(node), data, split=everything, task=node_task(node))
