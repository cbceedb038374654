"""Send orders and wait for the answers, never longer than the deadline."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from fedplt.engines.flower.wire import Answer, Order, Wire
from fedplt.federation import Interrupted

FIRST_PAUSE, LONGEST_PAUSE = 0.02, 0.5
"""Seconds between two looks for answers; short at first, since simulated clients are fast."""


def exchange(
    wire: Wire, orders: Mapping[int, Order], seconds: float, stop: Callable[[], bool]
) -> dict[int, Answer]:
    """The answers by the orders' keys; an order without one gets an error.

    At most ``wire.max_in_flight`` orders are on the way at once: each holds a copy of the model.
    What was on the way when the wire was interrupted is sent again: who does an order twice does
    the same, and one answer counts.
    """
    ends = time.monotonic() + seconds
    waiting = list(orders)
    pending: dict[str, int] = {}
    answers: dict[int, Answer] = {}
    pause, interruptions = FIRST_PAUSE, wire.interruptions
    while waiting or pending:
        if stop():
            raise Interrupted
        left = ends - time.monotonic()
        if left <= 0:
            break
        room = len(waiting) if wire.max_in_flight is None else wire.max_in_flight - len(pending)
        if waiting and room > 0:
            keys, waiting = waiting[:room], waiting[room:]
            ids = wire.push([orders[key] for key in keys], left)
            pending |= {name: key for name, key in zip(ids, keys, strict=True) if name}
            for name, key in zip(ids, keys, strict=True):
                if not name:
                    answers[key] = Answer(error="its node is not connected.")
        came = {name: answer for name, answer in wire.pull(pending).items() if name in pending}
        for name, answer in came.items():
            answers[pending[name]] = answer
        pending = {name: key for name, key in pending.items() if key not in answers}
        if wire.interruptions != interruptions:
            interruptions, lost = wire.interruptions, list(dict.fromkeys(pending.values()))
            ids = wire.push([orders[key] for key in lost], left)
            pending |= {name: key for name, key in zip(ids, lost, strict=True) if name}
        pause = FIRST_PAUSE if came else min(LONGEST_PAUSE, 1.5 * pause)
        if pending:
            time.sleep(min(pause, left))
    for key in {*pending.values(), *waiting}:
        answers[key] = Answer(error=f"no answer within {seconds:g} s.", mute=True)
    return {key: answers[key] for key in orders}
