"""Which node is which client."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping

from fedplt.engines.flower.messages import HelloAnswer, read
from fedplt.engines.flower.server.exchange import exchange
from fedplt.engines.flower.wire import HELLO, Answer, Order, Wire
from fedplt.errors import FleetError, RunError, UpdateError
from fedplt.federation import Interrupted, Job
from fedplt.fleet import DeviceProfile
from fedplt.server import read_each, refusal

HELLO_SECONDS = 120.0
PAUSE = 1.0
MAX_SKIPPED = 32
"""A mute node is asked again at the latest after this many rounds."""
Registered = Callable[[], Mapping[int, int]]
"""The client of each registered node, by the node's id: what the server knows from their keys."""


class Members:
    """Nodes say which client they are; the server remembers, and refuses a second claim.

    With node authentication a node's id belongs to its key. With ``registered``, the key decides
    which client a node may be. With ``pin``, nobody else may take the place of the node that was a
    client before, even while that node is away.

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
        """Rounds that were begun, repeated ones included."""
        self._mute: dict[int, tuple[int, int]] = {}
        """By node: how often in a row it gave no answer, and the turn when it is asked again."""
        self.node_of: dict[int, int] = {}
        self.pinned: dict[int, int] = {}
        self.devices: dict[int, DeviceProfile] = {}
        """What clients say about their devices, if the run plans by it while it runs."""
        fleet = job.config.fleet
        self._plans_by_devices = fleet is not None and fleet.replan == "on-change"
        self._layers = job.layers.fingerprint
        self._asked: set[int] = set()

    def wait(self, least: int, seconds: float) -> None:
        """Until so many clients have joined; :class:`RunError` if they do not."""
        if not self.gather(least, seconds):
            raise RunError(
                f"{len(self.node_of)} of at least {least} clients joined within {seconds:g} s "
                "(engine.round_timeout_seconds). Are the nodes running, and registered?"
            )

    def gather(self, least: int, seconds: float) -> bool:
        """Wait for so many clients, but not longer than this; whether they are there."""
        ends = time.monotonic() + seconds
        while True:
            # Where clients are missing, there is time to ask mute nodes, too.
            self.refresh(all_nodes=len(self.node_of) < least)
            if len(self.node_of) >= least:
                return True
            if self.stop():
                raise Interrupted
            if time.monotonic() > ends:
                return False
            time.sleep(PAUSE)

    def refresh(self, *, all_nodes: bool = False) -> None:
        """Ask new nodes who they are; forget those that are gone.

        ``all_nodes``: ask mute ones although it is not their turn.
        """
        there = set(self.wire.nodes())
        self._asked &= there
        self.node_of = {client: node for client, node in self.node_of.items() if node in there}
        self._mute = {node: entry for node, entry in self._mute.items() if node in there}
        new = sorted(n for n in there - self._asked if all_nodes or not self.is_skipped(n))
        clients = client_of_nodes(self.registered) if new else None
        if not new or clients is NOT_KNOWN:
            return
        header = {"layers": self._layers}
        orders = {node: Order(node, HELLO, header) for node in new}
        answers = exchange(self.wire, orders, self.hello_seconds, self.stop)
        self.note(answers)
        # A node without an answer may be starting: it is asked again.
        self._asked |= {node for node, answer in answers.items() if answer.error is None}
        _, refused = read_each(answers, lambda node, answer: self._admit(node, answer, clients))
        for node, why in refused.items():
            warnings.warn(f"node {node} cannot join: {why}", stacklevel=2)

    def note(self, answers: Mapping[int, Answer]) -> None:
        """Remember which nodes were mute."""
        for node, answer in answers.items():
            if not answer.mute:
                self._mute.pop(node, None)
                continue
            times = self._mute.get(node, (0, 0))[0] + 1
            self._mute[node] = times, self.turn + min(2 ** min(times - 1, 30), MAX_SKIPPED)

    def is_skipped(self, node: int) -> bool:
        """Whether a node was mute, and is not asked in this round."""
        return node in self._mute and self.turn < self._mute[node][1]

    def _admit(self, node: int, answer: Answer, clients: Mapping[int, int] | None) -> None:
        hello = hello_of(node, answer, self.job.plan.num_clients, clients)
        client = hello.client
        self.check(hello)
        device = device_of(hello) if self._plans_by_devices else None
        other = self.node_of.get(client, self.pinned.get(client, node) if self.pin else node)
        if clients is None and other != node:
            raise UpdateError(f"it says it is client {client}, which is node {other} already.")
        if device is not None:
            self.devices[client] = device
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


NOT_KNOWN: Mapping[int, int] = {}
"""The clients of the nodes' keys cannot be read at the moment: nobody can join."""


def client_of_nodes(registered: Registered | None) -> Mapping[int, int] | None:
    """The client of each registered node; None if keys do not decide it."""
    try:
        return None if registered is None else registered()
    except Exception as error:
        warnings.warn(f"no node can join: {refusal(error)}", stacklevel=3)
        return NOT_KNOWN


def hello_of(
    node: int, answer: Answer, num_clients: int, clients: Mapping[int, int] | None
) -> HelloAnswer:
    """What a node says when it joins; :class:`UpdateError` if it is no client of this run."""
    if answer.error is not None:
        raise UpdateError(answer.error)
    hello = read(HelloAnswer, answer.header)
    client = hello.client
    if client >= num_clients:
        raise UpdateError(f"it says it is client {client}; clients are 0 to {num_clients - 1}.")
    if clients is not None and clients.get(node) != client:
        key = f"is client {clients[node]}'s" if node in clients else "is not in server/keys"
        raise UpdateError(f"it says it is client {client}, but its key {key}.")
    return hello


def announcements(
    wire: Wire,
    num_clients: int,
    seconds: float,
    *,
    examples: bool,
    devices: bool,
    registered: Registered | None = None,
) -> list[HelloAnswer]:
    """What each client says when it joins; waits until they all have said what is needed."""
    ends, found = time.monotonic() + seconds, dict[int, HelloAnswer]()
    asked: set[int] = set()

    def take(node: int, answer: Answer) -> None:
        hello = hello_of(node, answer, num_clients, clients)
        if examples and hello.num_examples is None:
            raise UpdateError("it does not say how many examples it has.")
        if devices:
            device_of(hello)
        found.setdefault(hello.client, hello)

    while len(found) < num_clients:
        clients = client_of_nodes(registered)
        new = [] if clients is NOT_KNOWN else sorted(set(wire.nodes()) - asked)
        orders = {node: Order(node, HELLO, {}) for node in new}
        answers = exchange(wire, orders, min(HELLO_SECONDS, seconds + PAUSE), lambda: False)
        # A node without an answer may be starting: it is asked again.
        asked |= {node for node, answer in answers.items() if answer.error is None}
        for node, why in read_each(answers, take)[1].items():
            warnings.warn(f"node {node} cannot join: {why}", stacklevel=2)
        if len(found) < num_clients:
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
    return [found[client] for client in range(num_clients)]


def device_of(hello: HelloAnswer) -> DeviceProfile:
    """The device that a node says it has; :class:`UpdateError` if it says none, or nonsense."""
    if hello.profile is None:
        raise UpdateError(
            f"client {hello.client} does not say what its device can do, and fleet.devices is "
            "'nodes': set profile in its node.toml ('fedplt probe --out' writes the file)."
        )
    try:
        return hello.profile.profile(hello.client)
    except FleetError as error:
        raise UpdateError(str(error)) from error
