"""The Flower app of a node: answers the server's orders with a :class:`NodeClient`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message
from flwr.clientapp import ClientApp

from fedplt import __version__
from fedplt.configuration import AnnouncedDevice, load_config
from fedplt.engines.flower.messages import HelloAnswer, TrainHeader, UploadHeader, read
from fedplt.engines.flower.node.client import UNLIMITED, NodeClient
from fedplt.engines.flower.node.gate import Work
from fedplt.engines.flower.node.node_config import load_node
from fedplt.engines.flower.node.node_job import node_client, node_work
from fedplt.engines.flower.records import from_records, to_records
from fedplt.engines.flower.wire import (
    EVALUATE,
    HELLO,
    TRAIN,
    UPLOAD,
    dump_header,
    load_header,
)
from fedplt.errors import ConfigError, FedpltError, RunError, UpdateError
from fedplt.federation import Job, job_from_config

FindNode = Callable[[Context], NodeClient]
Gate = Callable[[Context, int], Work]
"""Lets an order of so many bytes pass, or refuses it."""
Given = tuple[dict[str, Any], dict[str, Any]]
Act = Callable[[Context, Work, Any, Any], Given]
PARKED = "fedplt-update"
"""Where an update waits until the server asks for it: in the node's memory."""


def _let_pass(context: Context, bytes_down: int) -> Work:
    return UNLIMITED


def client_app_of(find: FindNode, gate: Gate = _let_pass) -> ClientApp:
    """A client app around a function that gives the node's client; all orders pass the gate."""

    def find_node(context: Context) -> NodeClient:
        torch.set_num_threads(1)  # the same bits as in the simulator
        return find(context)

    return _GatedApp(
        {
            HELLO: functools.partial(_hello, find_node),
            TRAIN: functools.partial(_train, find_node),
            UPLOAD: upload_parked,
            EVALUATE: functools.partial(_evaluate, find_node),
        },
        gate,
    )


class _GatedApp(ClientApp):
    """Every message passes the gate, also one of a type that the app does not know."""

    def __init__(self, acts: Mapping[str, Act], gate: Gate) -> None:
        super().__init__()
        self._acts, self._gate = acts, gate

    def __call__(self, message: Message, context: Context) -> Message:
        act = self._acts.get(message.metadata.message_type, _unknown)
        return answering(act, self._gate)(message, context)


def _unknown(context: Context, work: Work, header: Any, arrays: Any) -> Given:
    raise UpdateError("this node does not know orders of this type.")


def answering(act: Act, gate: Gate = _let_pass) -> Callable[[Message, Context], Message]:
    """A handler of messages; what goes wrong is an answer in words, not a dead process."""

    def handle(message: Message, context: Context) -> Message:
        arrays: dict[str, Any] = {}
        try:
            size = sum(record.count_bytes() for record in message.content.values())
            work = gate(context, size)
            with work.stopping():
                header, arrays = act(context, work, *from_records(message.content))
        except FedpltError as error:
            header = {"refused": str(error)}
        except Exception as error:  # the node's model and data may raise anything
            header = {"refused": f"{type(error).__name__}: {error}"}
        return Message(to_records(header, arrays), reply_to=message)

    return handle


def _hello(find: FindNode, context: Context, work: Work, header: Any, arrays: Any) -> Given:
    node = find(context)
    answer = HelloAnswer(
        client=node.client,
        num_examples=len(node.examples),
        layers=node.job.layers.fingerprint,
        version=__version__,
        profile=None if node.device is None else AnnouncedDevice.of(node.device),
    )
    return answer.model_dump(), {}


def _train(find: FindNode, context: Context, work: Work, header: Any, arrays: Any) -> Given:
    answer, numbers = find(context).train(header, arrays, work)
    if read(TrainHeader, header).upload:
        return answer, numbers
    park(context, answer, numbers["update"])
    return answer, {}


def park(context: Context, answer: Mapping[str, Any], update: Any) -> None:
    """Keep an update until the server asks for it."""
    told = {key: answer[key] for key in ("client", "round", "plan")}
    context.state[PARKED] = ArrayRecord({"update": Array(np.asarray(update))})
    context.state[PARKED + "-of"] = ConfigRecord({"header": dump_header(told)})


def upload_parked(context: Context, work: Work, header: Any, arrays: Any) -> Given:
    asked, state = read(UploadHeader, header), context.state
    if PARKED not in state.array_records:
        raise RunError("the update is gone: this node was restarted since it trained.")
    told = load_header(state.config_records[PARKED + "-of"]["header"])
    if read(UploadHeader, told) != asked:
        raise UpdateError(
            f"the update here is client {told['client']}'s of round {told['round'] + 1}; round "
            f"{asked.round + 1} was asked."
        )
    update = state.array_records[PARKED]["update"].numpy()
    work.admit_upload(update.nbytes)
    del state[PARKED]
    return told, {"update": update}


def _evaluate(find: FindNode, context: Context, work: Work, header: Any, arrays: Any) -> Given:
    return find(context).evaluate(header, arrays, work), {}


def client_app() -> ClientApp:
    """The app of a node of a deployment, from the node's own ``node.toml``.

    Its path is ``fedplt-node`` in the SuperNode's ``--node-config``. Nothing that the server sends
    names code or data.
    """

    def find(context: Context) -> NodeClient:
        return _node(_path(context))

    def gate(context: Context, bytes_down: int) -> Work:
        return node_work(load_node(_path(context)), bytes_down)

    return client_app_of(find, gate)


def _path(context: Context) -> str:
    path = context.node_config.get("fedplt-node")
    if not isinstance(path, str):
        raise ConfigError(
            "this node does not say where its node.toml is: start its SuperNode with "
            "--node-config \"fedplt-node='/path/node.toml'\"."
        )
    return path


@functools.lru_cache(maxsize=1)
def _node(path: str) -> NodeClient:
    return node_client(load_node(path))


def simulated_client_app(config: str, state_folder: str) -> ClientApp:
    """The clients of ``fedplt run --engine flower``: all from one configuration on this machine."""

    def find(context: Context) -> NodeClient:
        client = int(context.node_config["partition-id"])
        job = _job(config)
        return NodeClient(job, client, job.examples(client), Path(state_folder))

    return client_app_of(find)


@functools.lru_cache(maxsize=1)
def _job(config: str) -> Job:
    """Made once per process: Flower's simulation uses a process for many clients."""
    return job_from_config(load_config(Path(config)))
