"""Send orders to nodes through Flower's grid, and wait for their answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid

from fedplt.federation import Interrupted
from fedplt.server import refusal
from fedplt.text import printable
from fedplt_flower.records import HEADER, MAX_ANSWER_HEADER, Arrays, from_records, to_records

FIRST_PAUSE, LONGEST_PAUSE = 0.02, 0.5
"""Seconds between two polls for answers; short at first, since simulated clients are fast."""
SLOW_POLL_SECONDS = 3.0
"""A poll takes milliseconds, unless the SuperLink is unreachable."""
SLOW_BYTES_PER_SECOND = 1e6
"""The SuperLink, usually on the same machine, delivers answers faster than this."""


@dataclass(frozen=True, eq=False)
class Order:
    """A message to one node."""

    node: int
    action: str
    header: Mapping[str, Any]
    arrays: Arrays = field(default_factory=dict)
    records: Mapping[str, ArrayRecord | ConfigRecord] = field(default_factory=dict)
    """Extra records, for the functions of a user's app."""


@dataclass(frozen=True, eq=False)
class Answer:
    """A node's reply, or the reason why there is none."""

    header: Mapping[str, Any] = field(default_factory=dict)
    arrays: Arrays = field(default_factory=dict)
    error: str | None = None
    timed_out: bool = False


class Wire(Protocol):
    """Carries orders to nodes, and their answers back."""

    max_in_flight: int | None
    """Largest number of unanswered orders at a time; None: all orders of a round."""
    interruptions: int
    """How often the connection was interrupted; orders and answers may have been lost."""

    def nodes(self) -> list[int]:
        """The connected nodes."""

    def push(self, orders: Sequence[Order], seconds: float) -> list[str]:
        """Send orders that expire after ``seconds``; return an id for each."""

    def pull(self, ids: Iterable[str]) -> dict[str, Answer]:
        """The answers that have arrived, by order id; does not wait for others."""

    def close(self) -> None: ...


def exchange(
    wire: Wire, orders: Mapping[int, Order], seconds: float, stop: Callable[[], bool]
) -> dict[int, Answer]:
    """Send orders and wait at most ``seconds``; return the answers by the keys of their orders.

    A missing answer becomes one with an error. At most ``wire.max_in_flight`` orders are unanswered
    at a time: each holds a copy of the model. After an interruption, unanswered orders are sent
    again: a node that gets an order twice computes the same, and one answer counts.
    """
    ends = time.monotonic() + seconds
    waiting = list(orders)
    pending: dict[str, int] = {}
    answers: dict[int, Answer] = {}
    pause, interruptions = FIRST_PAUSE, wire.interruptions

    def send(keys: list[int]) -> list[int]:
        """Send these orders; return the keys of orders that cannot be sent."""
        ids = wire.push([orders[key] for key in keys], left)
        pending.update({name: key for name, key in zip(ids, keys, strict=True) if name})
        return [key for name, key in zip(ids, keys, strict=True) if not name]

    while waiting or pending:
        if stop():
            raise Interrupted
        left = ends - time.monotonic()
        if left <= 0:
            break
        room = len(waiting) if wire.max_in_flight is None else wire.max_in_flight - len(pending)
        if waiting and room > 0:
            for key in send(waiting[:room]):
                answers[key] = Answer(error="its node is not connected.")
            waiting = waiting[room:]
        came = {name: answer for name, answer in wire.pull(pending).items() if name in pending}
        for name, answer in came.items():
            answers[pending[name]] = answer
        pending = {name: key for name, key in pending.items() if key not in answers}
        if wire.interruptions != interruptions:
            interruptions = wire.interruptions
            send(list(dict.fromkeys(pending.values())))
        pause = FIRST_PAUSE if came else min(LONGEST_PAUSE, 1.5 * pause)
        if pending:
            time.sleep(min(pause, left))
    for key in {*pending.values(), *waiting}:
        answers[key] = Answer(error=f"no answer within {seconds:g} s.", timed_out=True)
    return {key: answers[key] for key in orders}


class GridWire:
    """Orders and answers as messages of Flower, inside a server app."""

    max_in_flight: int | None = None

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self.interruptions = 0
        self._one_by_one = False

    def nodes(self) -> list[int]:
        return sorted(self.grid.get_node_ids())

    def keys(self) -> dict[int, bytes]:
        """The public key (PEM) that each connected node was registered with."""
        return {node.node_id: node.public_key for node in self.grid.get_nodes()}

    def push(self, orders: Sequence[Order], seconds: float) -> list[str]:
        messages = []
        for order in orders:
            content = to_records(order.header, order.arrays)
            for name, record in order.records.items():
                content[name] = record
            messages.append(
                Message(content, dst_node_id=order.node, message_type=order.action, ttl=seconds)
            )
        return list(self.grid.push_messages(messages))

    def pull(self, ids: Iterable[str]) -> dict[str, Answer]:
        ids = list(ids)
        if not self._one_by_one:
            try:
                return self._pull(ids)
            except Exception:
                self.grid.get_node_ids()  # raises if the SuperLink failed
            # Flower cannot unpack one of the replies, and then drops all replies of this call.
            # Send their orders again, and pull replies one by one from now on.
            self._one_by_one = True
            self.interruptions += 1
            return {}
        answers: dict[str, Answer] = {}
        for name in ids:
            try:
                answers |= self._pull([name])
            except Exception as error:
                self.grid.get_node_ids()
                answers[name] = Answer(error=refusal(error))
        return answers

    def _pull(self, ids: list[str]) -> dict[str, Answer]:
        started = time.monotonic()
        replies = list(self.grid.pull_messages(ids))
        seconds = time.monotonic() - started
        answers = {reply.metadata.reply_to_message_id: answer_of(reply) for reply in replies}
        size = sum(array.nbytes for each in answers.values() for array in each.arrays.values())
        if seconds > SLOW_POLL_SECONDS + size / SLOW_BYTES_PER_SECOND:
            self.interruptions += 1  # Flower retried until the SuperLink was back
        return answers

    def close(self) -> None: ...


def answer_of(reply: Message) -> Answer:
    """A node's reply as an answer; an unreadable reply becomes an answer with an error.

    The reply of a user's ``@app.evaluate()`` has no header: one is made from its metrics.
    """
    try:
        if reply.has_error():
            reason = reply.error.reason or "no reason given"
            return Answer(error=printable(f"its node failed: {reason}"))
        if HEADER not in reply.content.config_records:
            metrics = {
                str(name): value
                for record in reply.content.metric_records.values()
                for name, value in record.items()
                if isinstance(value, (int, float))
            }
            return Answer({"metrics": metrics})
        header, arrays = from_records(reply.content, MAX_ANSWER_HEADER)
        if "refused" in header:
            return Answer(error=printable(str(header["refused"])))
        return Answer(header, arrays)
    except Exception as error:
        return Answer(error=refusal(error))
