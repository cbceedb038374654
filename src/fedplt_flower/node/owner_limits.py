"""A node owner's policy: ``limits.toml`` beside ``node.toml``. A missing key allows everything.

max_ratio = 0.25                  # fraction of the model that may be trained here
max_steps = 10_000                # training steps in a round
bytes_per_round = "50 MB"         # of one order, down and up together
bytes_per_day = "2 GB"
seconds_per_round = 300.0         # of one order, by this node's clock
hours = ["22:00-06:00"]           # local time
mains_power_only = true

For every order of the server (hello, training, upload, evaluation), an :class:`AdmittedOrder`
enforces the limits, before and while the node executes it.
"""

from __future__ import annotations

import math
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import time as TimeOfDay  # noqa: N812
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PositiveFloat, field_validator

from fedplt.configuration import load_section
from fedplt.errors import ConfigError, RunError
from fedplt.fleet import MEMORY, parse_quantity, power_source
from fedplt.schema import Section
from fedplt.text import bytes_text, seconds_text
from fedplt_flower.node.daily_bytes import Moment, count_bytes

CHECK_SECONDS = 5.0
"""Seconds between two checks of hours and power while an order is executed."""


def _bytes(value: Any) -> Any:
    return round(parse_quantity(MEMORY, value)) if isinstance(value, str) else value


Bytes = Annotated[int, BeforeValidator(_bytes), Field(gt=0)]


class Limits(Section):
    """Limits on orders; None or empty: no limit."""

    max_ratio: Annotated[float, Field(gt=0, le=1)] | None = None
    """Largest fraction of the model that may be trained here."""
    max_steps: Annotated[int, Field(gt=0)] = 1_000_000
    """Largest number of training steps in a round. The default is far above any real round."""
    bytes_per_round: Bytes | None = None
    """Download plus upload of an order: a number, or a text such as "50 MB"."""
    bytes_per_day: Bytes | None = None
    seconds_per_round: PositiveFloat | None = None
    """An order that takes longer is stopped."""
    hours: list[str] = []  # noqa: RUF012 (pydantic copies it)
    """When work is allowed, in local time: "22:00-06:00" spans midnight."""
    mains_power_only: bool = False

    @field_validator("hours")
    @classmethod
    def _readable(cls, hours: list[str]) -> list[str]:
        for entry in hours:
            parse_hours(entry)
        return hours


def load_limits(path: str | Path) -> Limits:
    """Read ``limits.toml``; a file that does not exist allows everything."""
    path = Path(path)
    if not path.exists() and not path.is_symlink():
        return Limits()
    if path.exists() and not path.is_file():  # reading a pipe could block for ever
        raise ConfigError(f"{path} cannot be read: it is not an ordinary file.")
    return load_section(Limits, path, ConfigError)


def parse_hours(text: str) -> tuple[int, int]:
    """Minutes since midnight of the start and the end of ``"HH:MM-HH:MM"``.

    >>> parse_hours("22:00-06:30")
    (1320, 390)
    """
    match = re.fullmatch(r"\s*(\d\d?):(\d\d)\s*-\s*(\d\d?):(\d\d)\s*", text)
    like = "write it like '22:00-06:00'"
    if match is None:
        raise ValueError(f"{text!r} is no time of the day: {like}.")
    numbers = [int(part) for part in match.groups()]
    start, end = 60 * numbers[0] + numbers[1], 60 * numbers[2] + numbers[3]
    if numbers[1] > 59 or numbers[3] > 59 or start >= 24 * 60 or end > 24 * 60:
        raise ValueError(f"{text!r} has an hour or minute that no day has: {like}.")
    if start == end:
        raise ValueError(f"{text!r} is empty: {like}. The whole day is '00:00-24:00'.")
    return start, end


def within(hours: str, moment: TimeOfDay) -> bool:
    """Whether the moment lies in the hours; the end is not included.

    >>> within("22:00-06:00", TimeOfDay(23, 59)), within("22:00-06:00", TimeOfDay(6, 0))
    (True, False)
    """
    start, end = parse_hours(hours)
    minute = 60 * moment.hour + moment.minute
    return start <= minute < end if start < end else minute >= start or minute < end


class AdmittedOrder:
    """An order within the owner's limits, checked again while it is executed."""

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
        """Raises :class:`RunError` for an order that is not allowed now."""
        self._limits, self._node, self._moved = limits, node, bytes_down
        self._ledger, self._now, self._mains = ledger, now, mains
        self._began = time.monotonic()
        self._ends = self._began + (limits.seconds_per_round or math.inf)
        self._next_check = -math.inf
        self._day(bytes_down)  # refused orders count, too: they were received
        self._size(bytes_down)
        self.check()

    @property
    def on_step(self) -> Callable[[], None] | None:
        """Call this before every training step; None if no limit depends on time or power."""
        limits = self._limits
        timed = limits.seconds_per_round is not None or limits.hours or limits.mains_power_only
        return self.check if timed else None

    @contextmanager
    def stopping(self) -> Iterator[None]:
        """Interrupt an order at its deadline, even within a step, but not within a library call."""
        started = time.monotonic()
        left = self._ends - started
        if math.isinf(left) or threading.current_thread() is not threading.main_thread():
            yield
            return

        def look(*_: Any) -> None:
            self._next_check = -math.inf
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
        """Raise if the order has taken too long, or is not allowed any more."""
        moment, limits = time.monotonic(), self._limits
        if moment < self._next_check:
            return
        self._next_check = min(moment + CHECK_SECONDS, self._ends)
        if moment >= self._ends:
            longest = seconds_text(self._ends - self._began)
            taken = f"stopped after {seconds_text(moment - self._began)} s"
            self._refuse(f"more than {longest} s for an order", "seconds_per_round", taken)
        if limits.hours:
            local = self._now().local
            if not any(within(entry, local.time()) for entry in limits.hours):
                allowed = f"work outside {', '.join(limits.hours)}"
                self._refuse(allowed, "hours", f"its clock shows {local:%H:%M}")
        if limits.mains_power_only and not self._mains():
            self._refuse("work on battery", "mains_power_only", "it is not on mains power")

    def admit_training(self, ratio: float, steps: int) -> None:
        """Refuse an order to train too much, before training."""
        limits = self._limits
        if limits.max_ratio is not None and ratio > limits.max_ratio:
            allowed = f"more than {limits.max_ratio:.3g} of the model"
            self._refuse(allowed, "max_ratio", f"the order is for {ratio:.3g}")
        if steps > limits.max_steps:
            allowed = f"more than {limits.max_steps:,} steps in a round"
            self._refuse(allowed, "max_steps", f"the order is for {steps:,}")

    def admit_upload(self, number: int, *, now: bool = True) -> None:
        """Refuse to send too many bytes; ``now=False``: a later order will send them."""
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
