"""Flower client apps that answer the server's orders, within the limits of the node's owner."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message
from flwr.clientapp import ClientApp

from fedplt import __version__
from fedplt.configuration import AnnouncedDevice, load_config
from fedplt.errors import ConfigError, FedpltError, RunError, UpdateError
from fedplt.federation import Job, job_from_config
from fedplt_flower.messages import (
    EVALUATE,
    HELLO,
    TRAIN,
    UPLOAD,
    HelloAnswer,
    Strict,
    TrainAnswer,
    UploadHeader,
    read,
)
from fedplt_flower.node.client import NodeClient
from fedplt_flower.node.ledger import LEDGER
from fedplt_flower.node.node_config import load_node, node_device, node_job
from fedplt_flower.node.owner_limits import AdmittedOrder, Limits, load_limits
from fedplt_flower.records import Arrays, dump_header, from_records, load_header, to_records

_log = logging.getLogger("flwr")
UNLIMITED = AdmittedOrder(Limits(max_steps=2**62))
UPDATE = "fedplt-update"
"""The record of an update that the server has not requested yet, in the node's memory."""


class AnsweringApp(ClientApp):
    """Answers every order: an exception becomes an answer, so that the server gets the reason."""

    def admit(self, context: Context, bytes_down: int) -> AdmittedOrder:
        """Check an order of this size, of any type, against the owner's limits."""
        return UNLIMITED

    def answer(self, message: Message, context: Context, admitted: AdmittedOrder) -> Message:
        raise NotImplementedError

    def __call__(self, message: Message, context: Context) -> Message:
        try:
            size = sum(record.count_bytes() for record in message.content.values())
            admitted = self.admit(context, size)
            with admitted.stopping():
                return self.answer(message, context, admitted)
        except FedpltError as error:
            reason = str(error)
        except Exception as error:  # the model and the data may raise anything
            reason = f"{type(error).__name__}: {error}"
            _log.exception("fedplt: the order failed")
        return Message(to_records({"refused": reason}, {}), reply_to=message)


def reply(message: Message, answer: Strict, arrays: Arrays | None = None) -> Message:
    return Message(to_records(answer.model_dump(), arrays or {}), reply_to=message)


def reply_trained(
    message: Message, context: Context, answer: TrainAnswer, update: Any, *, upload: bool
) -> Message:
    """Reply with the update, or store it until the server requests it."""
    if upload:
        return reply(message, answer, {"update": update})
    header = answer.model_dump(include={"client", "round", "plan"})
    context.state[UPDATE] = ArrayRecord({"update": Array(np.asarray(update))})
    context.state[UPDATE + "-of"] = ConfigRecord({"header": dump_header(header)})
    return reply(message, answer)


def reply_upload(
    message: Message, context: Context, admitted: AdmittedOrder = UNLIMITED
) -> Message:
    """Reply with the stored update."""
    order, state = read(UploadHeader, from_records(message.content)[0]), context.state
    if UPDATE not in state.array_records:
        raise RunError("the update is gone: this node was restarted since it trained.")
    stored = read(UploadHeader, load_header(state.config_records[UPDATE + "-of"]["header"]))
    if stored != order:
        raise UpdateError(
            f"the stored update is client {stored.client}'s of round {stored.round + 1}; the order "
            f"is for round {order.round + 1}."
        )
    update = state.array_records[UPDATE]["update"].numpy()
    admitted.admit_upload(update.nbytes)
    del state[UPDATE]
    return reply(message, stored, {"update": update})


class NodeApp(AnsweringApp):
    """Answers with a :class:`NodeClient`, which ``find`` returns."""

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
        if action not in (HELLO, TRAIN, UPLOAD, EVALUATE):
            raise UpdateError("this node does not know orders of this type.")
        if action == UPLOAD:
            return reply_upload(message, context, admitted)
        header, arrays = from_records(message.content)
        torch.set_num_threads(1)  # the same bits as in the simulator
        client = self._find(context)
        if action == HELLO:
            return reply(message, _hello(client))
        if action == EVALUATE:
            return reply(message, client.evaluate(header, arrays, admitted))
        order, answer, update = client.train(header, arrays, admitted)
        return reply_trained(message, context, answer, update, upload=order.upload)


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
