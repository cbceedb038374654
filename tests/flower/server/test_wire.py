"""Orders through Flower's grid."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from flwr.app import Message

from fedplt_flower.records import to_records
from fedplt_flower.server import wire as wire_module
from fedplt_flower.server.wire import GridWire
from tests.support import flower_identity  # noqa: F401 (messages need one)


class SlowGrid:
    """Asking for answers takes some seconds."""

    def __init__(self, clock, seconds, numbers):
        self.clock, self.seconds, self.numbers = clock, seconds, numbers

    def pull_messages(self, ids):
        self.clock.now += self.seconds
        order = Message(to_records({}, {}), 7, "train", ttl=60.0)
        order.metadata._message_id = "one"
        arrays = {"update": np.zeros(self.numbers, dtype=np.float32)}
        return [Message(to_records({}, arrays), reply_to=order)] if self.numbers else []


@pytest.mark.parametrize(
    ("seconds", "numbers", "interruptions"),
    [(0.1, 10, 0), (4, 0, 1), (4, 10, 1), (4, 5_000_000, 0), (40, 5_000_000, 1)],
)
def test_large_answers_take_their_time(monkeypatch, seconds, numbers, interruptions):
    """Else orders were sent again, with the model, although nothing was lost."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(wire_module.time, "monotonic", lambda: clock.now)
    wire = GridWire(SlowGrid(clock, seconds, numbers))
    assert list(wire.pull(["one"])) == (["one"] if numbers else [])
    assert wire.interruptions == interruptions


class UnreadableReply:
    """Flower raises while it unpacks the reply to the order "bad"; other replies are lost."""

    def __init__(self, superlink_is_away=False):
        self.superlink_is_away = superlink_is_away

    def get_node_ids(self):
        if self.superlink_is_away:
            raise ConnectionError("no SuperLink")
        return [7]

    def pull_messages(self, ids):
        if "bad" in ids:
            raise KeyError("\x1b[2J unknown class")
        order = Message(to_records({}, {}), 7, "train", ttl=60.0)
        order.metadata._message_id = "one"
        return [Message(to_records({"round": 1}, {}), reply_to=order)]


def test_a_reply_that_flower_cannot_unpack_is_a_refusal_of_that_reply():
    wire = GridWire(UnreadableReply())
    assert wire.pull(["one", "bad"]) == {} and wire.interruptions == 1  # orders are sent again
    answers = wire.pull(["one", "bad"])
    assert answers["one"].header == {"round": 1} and answers["one"].error is None
    assert "KeyError" in answers["bad"].error and answers["bad"].error.isprintable()
    assert wire.interruptions == 1


def test_a_superlink_that_fails_is_no_refusal():
    with pytest.raises(ConnectionError):
        GridWire(UnreadableReply(superlink_is_away=True)).pull(["one", "bad"])
