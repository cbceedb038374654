"""Client apps made from files: ``node.toml`` of a deployment, or a simulation's configuration."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedplt import __version__
from fedplt.configuration import AnnouncedDevice, load_config
from fedplt.errors import ConfigError, UpdateError
from fedplt.federation import Job, job_from_config
from fedplt_flower.app.slices_app import UNLIMITED, SlicesApp, reply, reply_trained
from fedplt_flower.messages import EVALUATE, HELLO, TRAIN, UPLOAD, HelloAnswer
from fedplt_flower.node.client import NodeClient
from fedplt_flower.node.ledger import LEDGER
from fedplt_flower.node.node_config import load_node, node_device, node_job
from fedplt_flower.node.owner_limits import AdmittedOrder, load_limits
from fedplt_flower.records import from_records


class NodeApp(SlicesApp):
    """Answers with a :class:`NodeClient`, which ``find`` returns, within the owner's limits."""

    allows_other_strategies = False

    def __init__(
        self,
        find: Callable[[Context], NodeClient],
        admit: Callable[[Context, int], AdmittedOrder] = lambda *_: UNLIMITED,
    ) -> None:
        super().__init__()
        self._find, self._admit = find, admit

    def admit(self, context: Context, bytes_down: int) -> AdmittedOrder:
        return self._admit(context, bytes_down)

    def answer(self, message: Message, context: Context, admitted: AdmittedOrder) -> Message:
        action = message.metadata.message_type
        if action == UPLOAD:
            return super().answer(message, context, admitted)
        if action not in (HELLO, TRAIN, EVALUATE):
            raise UpdateError("this node does not know orders of this type.")
        header, arrays = from_records(message.content)
        torch.set_num_threads(1)  # the same bits as in the simulator
        client = self._find(context)
        if action == HELLO:
            return reply(message, _hello(client))
        if action == EVALUATE:
            return reply(message, client.evaluate(header, arrays, admitted))
        return reply_trained(message, context, *client.train(header, arrays, admitted))


def _hello(client: NodeClient) -> HelloAnswer:
    return HelloAnswer(
        client=client.client,
        num_examples=len(client.examples),
        layers=client.job.layers.fingerprint,
        version=__version__,
        profile=None if client.device is None else AnnouncedDevice.of(client.device),
    )


def client_app() -> ClientApp:
    """The app of a node in a deployment, from its ``node.toml`` and ``limits.toml``.

    The path is ``fedplt-node`` in the SuperNode's ``--node-config``. Nothing that the server sends
    names code or data.
    """

    def admit(context: Context, bytes_down: int) -> AdmittedOrder:
        node = load_node(_path(context))
        limits, ledger = load_limits(node.limits), Path(node.state) / LEDGER
        return AdmittedOrder(limits, node=node.name, bytes_down=bytes_down, ledger=ledger)

    return NodeApp(lambda context: _client_of_node(_path(context)), admit)


def _path(context: Context) -> str:
    path = context.node_config.get("fedplt-node")
    if not isinstance(path, str):
        raise ConfigError(
            "this node has no path of its node.toml: start its SuperNode with "
            "--node-config \"fedplt-node='/path/node.toml'\"."
        )
    return path


@functools.lru_cache(maxsize=1)
def _client_of_node(path: str) -> NodeClient:
    node = load_node(path)
    job = node_job(node)
    return NodeClient(job, node.client, job.examples(0), Path(node.state), node_device(node))


def simulated_client_app(config: str, state_folder: str) -> ClientApp:
    """The clients of ``fedplt run --engine flower``: all from one configuration on this machine."""

    def find(context: Context) -> NodeClient:
        client = int(context.node_config["partition-id"])
        job = _job(config)
        return NodeClient(job, client, job.examples(client), Path(state_folder))

    return NodeApp(find)


@functools.lru_cache(maxsize=1)
def _job(config: str) -> Job:
    """Made once per process: Flower's simulation uses a process for many clients."""
    return job_from_config(load_config(Path(config)))
