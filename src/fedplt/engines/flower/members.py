"""Which node is which client."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable

from fedplt.engines.flower.exchange import exchange
from fedplt.engines.flower.orders import HelloAnswer, read
from fedplt.engines.flower.wire import HELLO, Answer, Order, Wire
from fedplt.errors import RunError, UpdateError
from fedplt.federation import Interrupted, Job
from fedplt.planning import Layers

HELLO_SECONDS = 120.0
PAUSE = 1.0


class Members:
    """Nodes say which client they are; the server remembers, and refuses a second claim.

    With node authentication a node's id belongs to its key. With ``pin``, nobody else may take
    the place of the node that was a client before, even while that node is away.
    """

    def __init__(self, wire: Wire, job: Job, stop: Callable[[], bool], *, pin: bool) -> None:
        self.wire, self.job, self.stop, self.pin = wire, job, stop, pin
        self.node_of: dict[int, int] = {}
        self.pinned: dict[int, int] = {}
        self._layers = job.layers.fingerprint
        self._asked: set[int] = set()

    def wait(self, least: int, seconds: float) -> None:
        """Until so many clients have joined."""
        ends = time.monotonic() + seconds
        while True:
            self.refresh()
            if len(self.node_of) >= least:
                return
            if self.stop():
                raise Interrupted
            if time.monotonic() > ends:
                raise RunError(
                    f"{len(self.node_of)} of at least {least} clients joined within {seconds:g} s "
                    "(engine.round_timeout_seconds). Are the nodes running, and registered?"
                )
            time.sleep(PAUSE)

    def refresh(self) -> None:
        """Ask new nodes who they are; forget those that are gone."""
        there = set(self.wire.nodes())
        self._asked &= there
        self.node_of = {client: node for client, node in self.node_of.items() if node in there}
        new = sorted(there - self._asked)
        if not new:
            return
        header = {"layers": self._layers}
        orders = {node: Order(node, HELLO, header) for node in new}
        for node, answer in exchange(self.wire, orders, HELLO_SECONDS, self.stop).items():
            self._asked.add(node)
            try:
                self._admit(node, answer)
            except UpdateError as error:
                warnings.warn(f"node {node} cannot join: {error}", stacklevel=2)

    def _admit(self, node: int, answer: Answer) -> None:
        if answer.error is not None:
            self._asked.discard(node)  # it may be starting: it is asked again
            raise UpdateError(answer.error)
        hello = read(HelloAnswer, answer.header)
        client, number = hello.client, self.job.plan.num_clients
        if client >= number:
            raise UpdateError(f"it says it is client {client}; clients are 0 to {number - 1}.")
        self.check(hello)
        other = self.node_of.get(client, self.pinned.get(client, node) if self.pin else node)
        if other != node:
            raise UpdateError(f"it says it is client {client}, which is node {other} already.")
        self.node_of[client] = node
        self.pinned[client] = node

    def check(self, hello: HelloAnswer) -> None:
        """Refuse a node that has another model, or other data, than the server plans for."""
        if hello.layers != self._layers:
            raise UpdateError(
                f"its model is cut into other layers ({hello.layers}) than the server's "
                f"({self._layers}): model code, options or versions differ."
            )
        expected = int(self.job.num_examples[hello.client])
        if hello.num_examples != expected:
            raise UpdateError(
                f"client {hello.client} says it has {hello.num_examples} examples; {expected} are "
                "known."
            )


def announced_examples(wire: Wire, num_clients: int, seconds: float) -> list[int]:
    """How many examples each client says it has: the first time that they all are there."""
    ends, found = time.monotonic() + seconds, dict[int, int]()
    asked: set[int] = set()
    while len(found) < num_clients:
        new = sorted(set(wire.nodes()) - asked)
        orders = {node: Order(node, HELLO, {}) for node in new}
        for node, answer in exchange(wire, orders, HELLO_SECONDS, lambda: False).items():
            if answer.error is not None:
                continue  # it may be starting: it is asked again
            asked.add(node)
            try:
                hello = read(HelloAnswer, answer.header)
            except UpdateError as error:
                warnings.warn(f"node {node} cannot join: {error}", stacklevel=2)
                continue
            if hello.client < num_clients and hello.num_examples is not None:
                found.setdefault(hello.client, hello.num_examples)
        if len(found) < num_clients:
            if time.monotonic() > ends:
                missing = sorted(set(range(num_clients)) - set(found))
                raise RunError(
                    f"clients {missing} did not join within {seconds:g} s, and the server must "
                    "know how many examples they have. Start their nodes, or give "
                    "clients.num_examples."
                )
            time.sleep(PAUSE)
    return [found[client] for client in range(num_clients)]


def hello_answer(layers: Layers, client: int, num_examples: int, version: str) -> dict[str, object]:
    return HelloAnswer(
        client=client, num_examples=num_examples, layers=layers.fingerprint, version=version
    ).model_dump()
