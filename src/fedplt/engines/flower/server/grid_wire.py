"""Orders through Flower's grid, inside a server app."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from time import monotonic

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedplt.engines.flower.records import answer_of, to_records
from fedplt.engines.flower.wire import Answer, Order
from fedplt.server import refusal

LONG_SECONDS = 3.0
"""Asking for answers takes milliseconds, unless the SuperLink is away."""
SLOW_BYTES_PER_SECOND = 1e6
"""Answers come from the SuperLink, mostly on the same machine, at more than this."""


class GridWire:
    """Orders and answers as messages of Flower."""

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
        messages = [
            Message(
                self.records(order),
                dst_node_id=order.node,
                message_type=order.action,
                ttl=seconds,
            )
            for order in orders
        ]
        return list(self.grid.push_messages(messages))

    def pull(self, ids: Iterable[str]) -> dict[str, Answer]:
        ids = list(ids)
        if not self._one_by_one:
            try:
                return self._pull(ids)
            except Exception:
                self.grid.get_node_ids()  # raises if it was the SuperLink that failed
            # Flower cannot unpack one of the replies, and the others of this call are lost with
            # it. They are asked for again, each by itself from now on.
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
        started = monotonic()
        replies = list(self.grid.pull_messages(ids))
        seconds = monotonic() - started
        answers = {reply.metadata.reply_to_message_id: self.answer(reply) for reply in replies}
        size = sum(array.nbytes for each in answers.values() for array in each.arrays.values())
        if seconds > LONG_SECONDS + size / SLOW_BYTES_PER_SECOND:
            self.interruptions += 1  # Flower tried until the SuperLink was back
        return answers

    def records(self, order: Order) -> RecordDict:
        return to_records(order.header, order.arrays)

    def answer(self, reply: Message) -> Answer:
        return answer_of(reply)

    def close(self) -> None: ...
