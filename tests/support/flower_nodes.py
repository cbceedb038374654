"""Flower nodes in this process: real messages and real client apps, without Flower's servers."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
from flwr.app import Context, Message, RecordDict

from fedplt_flower.node.client_app import NodeApp, NodeClient
from fedplt_flower.records import from_records, to_records
from fedplt_flower.server.engine import FlowerEngine
from fedplt_flower.server.wire import answer_of
from tests.support import flower_identity  # noqa: F401 (messages need one)


class MemoryWire:
    """Client k is node 100 + k. ``tamper(node, action, header, arrays)`` may change its answers.

    ``devices``: what nodes say about their devices, by client.
    """

    max_in_flight = None
    interruptions = 0

    def __init__(self, job, folder, tamper=None, devices=None):
        own = replace(job, model=copy.deepcopy(job.model))

        def find(context):
            client = int(context.node_config["partition-id"])
            device = (devices or {}).get(client)
            return NodeClient(own, client, own.examples(client), folder, device=device)

        self.app, self.tamper = NodeApp(find), tamper
        self.contexts = {
            100 + k: Context(1, 100 + k, {"partition-id": k}, RecordDict(), {})
            for k in range(job.plan.num_clients)
        }
        self.away, self.silent = set(), set()
        self.answers, self.sent = {}, []

    def nodes(self):
        return [node for node in self.contexts if node not in self.away]

    def push(self, orders, seconds):
        return [self._push(order) for order in orders]

    def _push(self, order):
        name = str(len(self.sent))
        self.sent.append(order)
        if order.node in self.silent:
            return name
        message = Message(
            to_records(order.header, order.arrays), order.node, order.action, ttl=60.0
        )
        message.metadata._message_id = name
        reply = self.app(message, self.contexts[order.node])
        if self.tamper is not None:
            reply = self._tampered(order, reply, message)
        self.answers[name] = answer_of(reply)
        return name

    def _tampered(self, order, reply, message):
        header, arrays = from_records(reply.content)
        arrays = {key: np.array(value) for key, value in arrays.items()}
        changed = self.tamper(order.node, order.action, header, arrays)
        if changed is None:
            return reply
        if not isinstance(changed, RecordDict):
            changed = to_records(*changed)
        return Message(changed, reply_to=message)

    def pull(self, ids):
        return {name: self.answers.pop(name) for name in list(ids) if name in self.answers}

    def close(self): ...


def memory_engine(folder, wires=None, **options):
    """Makes an engine for ``run_job``; ``wires`` gets its wire."""

    def make(job, stop):
        wire = MemoryWire(job, folder, **options)
        if wires is not None:
            wires.append(wire)
        return FlowerEngine(job, wire, stop)

    return make
