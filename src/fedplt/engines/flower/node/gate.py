"""A node's gate: every order of the server passes it, and is done under its clock.

One rule for all kinds of orders (hello, training, upload, evaluation): hours, power, bytes and
seconds are those of ``limits.toml``.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedplt.engines.flower.node.ledger import Moment, count_bytes
from fedplt.engines.flower.node.owner_limits import Limits, within
from fedplt.errors import RunError
from fedplt.machine import power_source
from fedplt.text import bytes_text, seconds_text

LOOK_SECONDS = 5.0
"""While an order is done, hours and power are looked at this often."""


class Work:
    """An order that passed the gate. It asks again while it is done.

    ``Work(Limits())`` has no limits but that of the number of steps.
    """

    def __init__(
        self,
        limits: Limits,
        *,
        node: str = "",
        bytes_down: int = 0,
        ledger: Path | None = None,
        now: Callable[[], Moment] = Moment.now,
        mains: Callable[[], bool] = lambda: power_source().on_mains,
    ) -> None:
        """Refuses, as :class:`RunError`, an order that is not allowed here and now."""
        self._limits, self._node, self._moved = limits, node, bytes_down
        self._ledger, self._now, self._mains = ledger, now, mains
        self._began = time.monotonic()
        self._ends = self._began + (limits.seconds_per_round or math.inf)
        self._look = -math.inf
        self._day(bytes_down)  # what came was moved, even if the order is refused
        self._size(bytes_down)
        self.check()

    @property
    def on_step(self) -> Callable[[], None] | None:
        """To be called before every step of the work; None: there is nothing to look at."""
        limits = self._limits
        timed = limits.seconds_per_round is not None or limits.hours or limits.mains_power_only
        return self.check if timed else None

    @contextmanager
    def stopping(self) -> Iterator[None]:
        """Break off what takes too long, also inside of one step: Python calls :meth:`check` then.

        A single call into a library is not interrupted; its step is the last.
        """
        started = time.monotonic()
        left = self._ends - started
        if math.isinf(left) or threading.current_thread() is not threading.main_thread():
            yield
            return

        def look(*_: Any) -> None:
            self._look = -math.inf
            self.check()

        handler = signal.signal(signal.SIGALRM, look)
        # Again every second: the model's code may catch the first error.
        before, _ = signal.setitimer(signal.ITIMER_REAL, max(left, 1e-3), 1.0)
        try:
            yield
        finally:
            rest = max(before - (time.monotonic() - started), 1e-3) if before else 0
            signal.setitimer(signal.ITIMER_REAL, rest)
            signal.signal(signal.SIGALRM, handler)

    def check(self) -> None:
        """Give up an order that takes too long, or that is still done when it is not allowed."""
        moment, limits = time.monotonic(), self._limits
        if moment < self._look:
            return
        self._look = min(moment + LOOK_SECONDS, self._ends)
        if moment >= self._ends:
            longest = seconds_text(self._ends - self._began)
            taken = f"stopped after {seconds_text(moment - self._began)} s"
            self._refuse(f"more than {longest} s for an order", "seconds_per_round", taken)
        if limits.hours:
            local = self._now().local
            if not any(within(entry, local.time()) for entry in limits.hours):
                allowed = f"work outside {', '.join(limits.hours)}"
                self._refuse(allowed, "hours", f"its clock says {local:%H:%M}")
        if limits.mains_power_only and not self._mains():
            self._refuse("work on battery", "mains_power_only", "it is not on mains power")

    def admit_training(self, ratio: float, steps: int) -> None:
        """Refuse an order to train too much, before it begins."""
        limits = self._limits
        if limits.max_ratio is not None and ratio > limits.max_ratio:
            allowed = f"more than {limits.max_ratio:.3g} of the model"
            self._refuse(allowed, "max_ratio", f"it was asked for {ratio:.3g}")
        if steps > limits.max_steps:
            allowed = f"more than {limits.max_steps:,} steps in a round"
            self._refuse(allowed, "max_steps", f"it was asked for {steps:,}")

    def admit_upload(self, number: int, *, now: bool = True) -> None:
        """Refuse to send so many bytes; ``now``: they count for this order, not for a later one."""
        self._size(self._moved + number)
        self._day(number if now else 0, ahead=0 if now else number)

    def _size(self, moved: int) -> None:
        most = self._limits.bytes_per_round
        if most is not None and moved > most:
            allowed = f"more than {bytes_text(most)} for an order"
            self._refuse(allowed, "bytes_per_round", f"this one takes {bytes_text(moved)}")

    def _day(self, number: int, ahead: int = 0) -> None:
        most = self._limits.bytes_per_day
        if most is None or self._ledger is None:
            return
        try:
            used = count_bytes(self._ledger, number, self._now())
        except RunError as error:
            raise RunError(f"node {self._node}: {error}") from error
        if used + ahead > most:
            allowed = f"more than {bytes_text(most)} in a day"
            self._refuse(allowed, "bytes_per_day", f"this makes {bytes_text(used + ahead)} today")

    def _refuse(self, allowed: str, key: str, asked: str) -> None:
        raise RunError(f"node {self._node} does not allow {allowed} (limits.toml: {key}); {asked}.")
