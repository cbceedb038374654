"""Which connected node is which client."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping

from fedplt.errors import FleetError, RunError, UpdateError
from fedplt.federation import Interrupted
from fedplt.fleet import DeviceProfile
from fedplt.server import read_each, refusal
from fedplt_flower.messages import HELLO, HelloAnswer, read
from fedplt_flower.server.wire import Answer, Order, Wire, exchange

HELLO_SECONDS = 120.0
PAUSE = 1.0
MAX_SKIPPED = 32
"""An unresponsive node is asked again after at most this many rounds."""
Registered = Callable[[], Mapping[int, int]]
"""Returns the client of each registered node, by node id, from the nodes' keys."""


class ConnectedNodes:
    """Nodes report which client they are; the server refuses a second claim to the same client.

    ``check`` refuses a client by raising. With node authentication a node's id belongs to its key.
    With ``registered``, the key determines the client. With ``pin``, a client belongs to its first
    node, even while that node is away.

    A node that misses a deadline is asked less and less often until it answers: in the next round,
    then after 2, 4, ... rounds, at most :data:`MAX_SKIPPED`.
    """

    hello_seconds = HELLO_SECONDS

    def __init__(
        self,
        wire: Wire,
        num_clients: int,
        check: Callable[[HelloAnswer], None],
        stop: Callable[[], bool] = lambda: False,
        *,
        pin: bool = False,
        registered: Registered | None = None,
    ) -> None:
        self.wire, self.num_clients, self.check, self.stop = wire, num_clients, check, stop
        self.pin, self.registered = pin, registered
        self.turn = 0
        """Number of started rounds, including repeated ones."""
        self._timeouts: dict[int, tuple[int, int]] = {}
        """Node -> its number of consecutive timeouts, and the turn in which it is asked again."""
        self.node_of: dict[int, int] = {}
        self.pinned: dict[int, int] = {}
        self.hellos: dict[int, HelloAnswer] = {}
        """The answer of each client when it joined."""
        self._greeted: set[int] = set()

    def wait(self, least: int, seconds: float) -> None:
        """Wait for ``least`` clients; :class:`RunError` if they do not join."""
        if not self.gather(least, seconds):
            raise RunError(
                f"{len(self.node_of)} of at least {least} clients joined within {seconds:g} s "
                "(engine.round_timeout_seconds). Are the nodes running, and registered?"
            )

    def gather(self, least: int, seconds: float) -> bool:
        """Wait at most ``seconds`` for ``least`` clients; return whether they have joined."""
        return self.until(lambda: len(self.node_of) >= least, seconds)

    def until(self, ready: Callable[[], bool], seconds: float) -> bool:
        """Greet nodes for at most ``seconds``, until ``ready()``; return its last value."""
        ends = time.monotonic() + seconds
        while True:
            # The round waits anyway, so also ask unresponsive nodes.
            self.refresh(all_nodes=not ready())
            if ready():
                return True
            if self.stop():
                raise Interrupted
            if time.monotonic() > ends:
                return False
            time.sleep(PAUSE)

    def refresh(self, *, all_nodes: bool = False) -> None:
        """Greet new nodes and forget those that left.

        ``all_nodes``: also greet unresponsive nodes whose turn has not come.
        """
        there = set(self.wire.nodes())
        self._greeted &= there
        self.node_of = {client: node for client, node in self.node_of.items() if node in there}
        self._timeouts = {node: entry for node, entry in self._timeouts.items() if node in there}
        new = sorted(n for n in there - self._greeted if all_nodes or not self.is_skipped(n))
        if not new:
            return
        try:
            clients = None if self.registered is None else self.registered()
        except Exception as error:
            warnings.warn(f"no node can join: {refusal(error)}", stacklevel=2)
            return
        orders = {node: Order(node, HELLO, {}) for node in new}
        answers = exchange(self.wire, orders, self.hello_seconds, self.stop)
        self.note(answers)
        # A node that answers with an error may still be starting: greet it again.
        self._greeted |= {node for node, answer in answers.items() if answer.error is None}
        _, refused = read_each(answers, lambda node, answer: self._admit(node, answer, clients))
        for node, why in refused.items():
            warnings.warn(f"node {node} cannot join: {why}", stacklevel=2)

    def note(self, answers: Mapping[int, Answer]) -> None:
        """Record which nodes timed out."""
        for node, answer in answers.items():
            if not answer.timed_out:
                self._timeouts.pop(node, None)
                continue
            times = self._timeouts.get(node, (0, 0))[0] + 1
            self._timeouts[node] = times, self.turn + min(2 ** min(times - 1, 30), MAX_SKIPPED)

    def is_skipped(self, node: int) -> bool:
        """Whether a node timed out and is not asked in this round."""
        return node in self._timeouts and self.turn < self._timeouts[node][1]

    def _admit(self, node: int, answer: Answer, clients: Mapping[int, int] | None) -> None:
        if answer.error is not None:
            raise UpdateError(answer.error)
        hello = read(HelloAnswer, answer.header)
        client, last = hello.client, self.num_clients - 1
        if client > last:
            raise UpdateError(f"it claims to be client {client}; clients are 0 to {last}.")
        if clients is not None and clients.get(node) != client:
            key = f"is client {clients[node]}'s" if node in clients else "is not in server/keys"
            raise UpdateError(f"it claims to be client {client}, but its key {key}.")
        self.check(hello)
        other = self.node_of.get(client, self.pinned.get(client, node) if self.pin else node)
        if clients is None and other != node:
            raise UpdateError(f"it claims to be client {client}, which is node {other} already.")
        self.hellos[client] = hello
        self.node_of[client] = self.pinned[client] = node


def announcements(
    wire: Wire,
    num_clients: int,
    seconds: float,
    *,
    examples: bool,
    devices: bool,
    registered: Registered | None = None,
) -> list[HelloAnswer]:
    """The clients' first answers; waits until all have reported what the plan needs."""
    found: dict[int, HelloAnswer] = {}

    def check(hello: HelloAnswer) -> None:
        if examples and hello.num_examples is None:
            raise UpdateError("it does not report its number of examples.")
        if devices:
            device_of(hello)
        found.setdefault(hello.client, hello)

    nodes = ConnectedNodes(wire, num_clients, check, registered=registered)
    nodes.hello_seconds = min(HELLO_SECONDS, seconds + PAUSE)
    if nodes.until(lambda: len(found) == num_clients, seconds):
        return [found[client] for client in range(num_clients)]
    missing = sorted(set(range(num_clients)) - set(found))
    needed = ["how many examples they have"] * examples
    needed += ["what their devices can do"] * devices
    raise RunError(
        f"clients {missing} did not join within {seconds:g} s, and the server must "
        f"know {' and '.join(needed)}. Start their nodes, or give "
        "clients.num_examples and fleet.announced."
    )


def device_of(hello: HelloAnswer) -> DeviceProfile:
    """The device that a node reports; :class:`UpdateError` if it reports none or a wrong one."""
    if hello.profile is None:
        raise UpdateError(
            f"client {hello.client} does not report its device, and fleet.devices is 'nodes': set "
            "profile in its node.toml ('fedplt probe --out' writes the file)."
        )
    try:
        return hello.profile.profile(hello.client)
    except FleetError as error:
        raise UpdateError(str(error)) from error
