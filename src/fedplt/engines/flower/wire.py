"""What the server and its nodes say to each other, whatever carries it.

A message is an action, a header of plain values (JSON) and a few flat float32 arrays. Nothing of
it is trusted: who reads a message checks it field by field, and no name in it is ever imported.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedplt.errors import UpdateError

Arrays = Mapping[str, NDArray[np.float32]]
HELLO, TRAIN, UPLOAD, EVALUATE = "query.hello", "train.local", "train.upload", "evaluate.kept"
"""Which client are you; train; send the update of the last training; evaluate for yourself."""
MAX_HEADER = 64_000_000
"""Characters of an order's header; an assignment of a large sub-model lists its units in it."""
MAX_ANSWER = 2_000_000
"""Characters of an answer's header: room for the sums of a metric with 100,000 of them."""
MAX_DEPTH = 32


@dataclass(frozen=True, eq=False)
class Order:
    """A message to one node."""

    node: int
    action: str
    header: Mapping[str, Any]
    arrays: Arrays = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Answer:
    """A node's reply, or why there is none."""

    header: Mapping[str, Any] = field(default_factory=dict)
    arrays: Arrays = field(default_factory=dict)
    error: str | None = None
    mute: bool = False
    """Nothing came before the deadline."""


class Wire(Protocol):
    """Carries orders to nodes, and their answers back."""

    max_in_flight: int | None
    """Orders that may be on the way at once; None: all of a round."""
    interruptions: int
    """How often the way to the nodes was broken: orders and answers may be lost since."""

    def nodes(self) -> list[int]:
        """The nodes that are connected at the moment."""

    def push(self, orders: Sequence[Order], seconds: float) -> list[str]:
        """Send; give an id for each order. After ``seconds`` an order is void."""

    def pull(self, ids: Iterable[str]) -> dict[str, Answer]:
        """The answers to these orders that have come, by id; does not wait for others."""

    def close(self) -> None: ...


def dump_header(header: Mapping[str, Any]) -> str:
    return json.dumps(header, separators=(",", ":"))


def load_header(text: Any, most: int = MAX_HEADER) -> dict[str, Any]:
    """Plain values of a foreign message; :class:`UpdateError` for anything else.

    Size and depth are bounded before the text is parsed.
    """
    if not isinstance(text, str) or len(text) > most:
        raise UpdateError(f"its header is missing or longer than {most} characters.")
    if _depth(text) > MAX_DEPTH:
        raise UpdateError("its header is nested too deeply.")
    try:
        header = json.loads(text, parse_constant=float)
    except ValueError as error:  # bad JSON, and numbers of thousands of digits
        raise UpdateError(f"its header cannot be read: {error}") from error
    if not isinstance(header, dict):
        raise UpdateError("its header is not a table.")
    return header


def _depth(text: str) -> int:
    """At most this many brackets are open at once (those inside of texts count, too)."""
    codes = np.frombuffer(text.encode("utf-8", "replace"), dtype=np.uint8)
    opened = ((codes == ord("[")) | (codes == ord("{"))).astype(np.int8)
    closed = ((codes == ord("]")) | (codes == ord("}"))).astype(np.int8)
    depth = (opened - closed).cumsum(dtype=np.int32)
    # Closing brackets inside of a text do not make room for more open ones after it.
    return int((depth - np.minimum.accumulate(np.minimum(depth, 0))).max(initial=0))
