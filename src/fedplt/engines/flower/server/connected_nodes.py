"""Which connected node is which client."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Collection, Mapping

from fedplt.engines.flower.messages import HELLO, HelloAnswer, read
from fedplt.engines.flower.server.wire import Answer, Order, Wire, exchange
from fedplt.errors import FleetError, RunError, UpdateError
from fedplt.federation import Interrupted, Job
from fedplt.fleet import DeviceProfile
from fedplt.server import read_each, refusal

HELLO_SECONDS = 120.0
PAUSE = 1.0
MAX_SKIPPED = 32
"""An unresponsive node is asked again after at most this many rounds."""
Registered = Callable[[], Mapping[int, int]]
"""The client of each registered node, by node id: what the server knows from their keys."""


class ConnectedNodes:
    """Nodes report which client they are; the server refuses a second claim to the same client.

    With node authentication a node's id belongs to its key. With ``registered``, the key determines
    the client. With ``pin``, a client stays with its first node, even while that node is away.

    A node that gives no answer before a deadline is asked less and less often: in the next round,
    then after 2, 4, ... rounds, at most :data:`MAX_SKIPPED`, until it answers.
    """

    hello_seconds = HELLO_SECONDS

    def __init__(
        self,
        wire: Wire,
        job: Job,
        stop: Callable[[], bool],
        *,
        pin: bool,
        registered: Registered | None = None,
    ) -> None:
        self.wire, self.job, self.stop, self.pin = wire, job, stop, pin
        self.registered = registered
        self.turn = 0
        """Number of started rounds, including repeated ones."""
        self._timeouts: dict[int, tuple[int, int]] = {}
        """By node: its number of consecutive timeouts, and the turn in which it is asked again."""
        self.node_of: dict[int, int] = {}
        self.pinned: dict[int, int] = {}
        self.devices: dict[int, DeviceProfile] = {}
        """Reported by the clients, if the run is replanned while it runs."""
        fleet = job.config.fleet
        self._plans_by_devices = fleet is not None and fleet.replan == "on-change"
        self._layers = job.layers.fingerprint
        self._greeted: set[int] = set()

    def wait(self, least: int, seconds: float) -> None:
        """Wait for so many clients; :class:`RunError` if they do not join."""
        if not self.gather(least, seconds):
            raise RunError(
                f"{len(self.node_of)} of at least {least} clients joined within {seconds:g} s "
                "(engine.round_timeout_seconds). Are the nodes running, and registered?"
            )

    def gather(self, least: int, seconds: float) -> bool:
        """Wait at most ``seconds`` for so many clients; return whether they have joined."""
        ends = time.monotonic() + seconds
        while True:
            # While clients are missing, there is time to ask unresponsive nodes, too.
            self.refresh(all_nodes=len(self.node_of) < least)
            if len(self.node_of) >= least:
                return True
            if self.stop():
                raise Interrupted
            if time.monotonic() > ends:
                return False
            time.sleep(PAUSE)

    def refresh(self, *, all_nodes: bool = False) -> None:
        """Greet new nodes and forget those that left.

        ``all_nodes``: greet unresponsive ones although it is not their turn.
        """
        there = set(self.wire.nodes())
        self._greeted &= there
        self.node_of = {client: node for client, node in self.node_of.items() if node in there}
        self._timeouts = {node: entry for node, entry in self._timeouts.items() if node in there}
        new = {n for n in there - self._greeted if all_nodes or not self.is_skipped(n)}
        seconds, header = self.hello_seconds, {"layers": self._layers}
        answers = greet(
            self.wire, new, header, seconds, self.stop, self._admit,
            self.job.plan.num_clients, self.registered,
        )  # fmt: skip
        self.note(answers)
        self._greeted |= {node for node, answer in answers.items() if answer.error is None}

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

    def _admit(self, node: int, hello: HelloAnswer) -> None:
        client = hello.client
        self.check(hello)
        device = device_of(hello) if self._plans_by_devices else None
        other = self.node_of.get(client, self.pinned.get(client, node) if self.pin else node)
        if self.registered is None and other != node:
            raise UpdateError(f"it says it is client {client}, which is node {other} already.")
        if device is not None:
            self.devices[client] = device
        self.node_of[client] = node
        self.pinned[client] = node

    def check(self, hello: HelloAnswer) -> None:
        """Refuse a node with another model, or other data, than the server plans for."""
        if hello.layers != self._layers:
            raise UpdateError(
                f"its model is cut into other layers ({hello.layers}) than the server's "
                f"({self._layers}): model code, options or versions differ."
            )
        expected = int(self.job.num_examples[hello.client])
        if hello.num_examples != expected:
            raise UpdateError(
                f"client {hello.client} reports {hello.num_examples} examples; {expected} are "
                "known."
            )


def greet(
    wire: Wire,
    nodes: Collection[int],
    header: Mapping[str, str],
    seconds: float,
    stop: Callable[[], bool],
    admit: Callable[[int, HelloAnswer], None],
    num_clients: int,
    registered: Registered | None,
) -> dict[int, Answer]:
    """Ask nodes who they are and call ``admit`` for each client of this run; warn of others.

    A node whose answer is an error may be starting: greet it again. Without a readable list of
    registered keys no node is greeted.
    """
    if not nodes:
        return {}
    try:
        clients = None if registered is None else registered()
    except Exception as error:
        warnings.warn(f"no node can join: {refusal(error)}", stacklevel=3)
        return {}

    def take(node: int, answer: Answer) -> None:
        if answer.error is not None:
            raise UpdateError(answer.error)
        hello = read(HelloAnswer, answer.header)
        client = hello.client
        if client >= num_clients:
            raise UpdateError(f"it says it is client {client}; clients are 0 to {num_clients - 1}.")
        if clients is not None and clients.get(node) != client:
            key = f"is client {clients[node]}'s" if node in clients else "is not in server/keys"
            raise UpdateError(f"it says it is client {client}, but its key {key}.")
        admit(node, hello)

    orders = {node: Order(node, HELLO, header) for node in sorted(nodes)}
    answers = exchange(wire, orders, seconds, stop)
    for node, why in read_each(answers, take)[1].items():
        warnings.warn(f"node {node} cannot join: {why}", stacklevel=3)
    return answers


def announcements(
    wire: Wire,
    num_clients: int,
    seconds: float,
    *,
    examples: bool,
    devices: bool,
    registered: Registered | None = None,
) -> list[HelloAnswer]:
    """What each client reports when it joins; waits until all have reported what is needed."""
    ends, found = time.monotonic() + seconds, dict[int, HelloAnswer]()
    greeted: set[int] = set()

    def admit(node: int, hello: HelloAnswer) -> None:
        if examples and hello.num_examples is None:
            raise UpdateError("it does not report its number of examples.")
        if devices:
            device_of(hello)
        found.setdefault(hello.client, hello)

    while True:
        answers = greet(
            wire, set(wire.nodes()) - greeted, {}, min(HELLO_SECONDS, seconds + PAUSE),
            lambda: False, admit, num_clients, registered,
        )  # fmt: skip
        greeted |= {node for node, answer in answers.items() if answer.error is None}
        if len(found) == num_clients:
            return [found[client] for client in range(num_clients)]
        if time.monotonic() > ends:
            missing = sorted(set(range(num_clients)) - set(found))
            needed = ["how many examples they have"] * examples
            needed += ["what their devices can do"] * devices
            raise RunError(
                f"clients {missing} did not join within {seconds:g} s, and the server must "
                f"know {' and '.join(needed)}. Start their nodes, or give "
                "clients.num_examples and fleet.announced."
            )
        time.sleep(PAUSE)


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
