"""Which node is which client."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable

from fedplt.engines.flower.exchange import exchange
from fedplt.engines.flower.orders import HelloAnswer, read
from fedplt.engines.flower.wire import HELLO, Answer, Order, Wire
from fedplt.errors import FleetError, RunError, UpdateError
from fedplt.federation import Interrupted, Job
from fedplt.fleet import DeviceProfile

HELLO_SECONDS = 120.0
PAUSE = 1.0


class Members:
    """Nodes say which client they are; the server remembers, and refuses a second claim.

    With node authentication a node's id belongs to its key. With ``pin``, nobody else may take
    the place of the node that was a client before, even while that node is away.
    """

    hello_seconds = HELLO_SECONDS

    def __init__(self, wire: Wire, job: Job, stop: Callable[[], bool], *, pin: bool) -> None:
        self.wire, self.job, self.stop, self.pin = wire, job, stop, pin
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
            self.refresh()
            if len(self.node_of) >= least:
                return True
            if self.stop():
                raise Interrupted
            if time.monotonic() > ends:
                return False
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
        for node, answer in exchange(self.wire, orders, self.hello_seconds, self.stop).items():
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
        if self._plans_by_devices:
            self.devices[client] = device_of(hello)
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


def announcements(
    wire: Wire, num_clients: int, seconds: float, *, examples: bool, devices: bool
) -> list[HelloAnswer]:
    """What each client says when it joins; waits until they all have said what is needed."""
    ends, found = time.monotonic() + seconds, dict[int, HelloAnswer]()
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
                if hello.client >= num_clients or (examples and hello.num_examples is None):
                    continue
                if devices:
                    device_of(hello)
            except UpdateError as error:
                warnings.warn(f"node {node} cannot join: {error}", stacklevel=2)
                continue
            found.setdefault(hello.client, hello)
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
