"""A chart as plain data: traces and layout for Plotly. The page chooses the colors."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

MAX_POINTS = 1000
"""Maximum number of points of a line in a detail chart; longer lines are thinned evenly."""


@dataclass(frozen=True)
class Chart:
    """One chart; ``alt`` is its text for screen readers."""

    name: str
    title: str
    alt: str
    traces: Sequence[dict[str, Any]]
    layout: dict[str, Any] = field(default_factory=dict)
    note: str = ""
    height: int = 320

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "traces": plain(list(self.traces)),
            "layout": plain(self.layout),
            "height": self.height,
        }


def label(text: object) -> str:
    """Escape a text from a file for Plotly, which interprets some HTML in labels.

    >>> label("<b>a & b</b>")
    '&lt;b&gt;a &amp; b&lt;/b&gt;'
    """
    return html.escape(str(text), quote=False)


def plain(value: Any) -> Any:
    """Convert to values that JSON has: no NaN, infinity or arrays; numbers with six digits.

    >>> plain({"a": [1.23456789, float("nan")], "b": np.arange(2)})
    {'a': [1.23457, None], 'b': [0, 1]}
    """
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def line(name: str, x: Iterable[Any], y: Iterable[Any], **more: Any) -> dict[str, Any]:
    return {
        "type": "scatter", "mode": "lines", "name": label(name), "x": list(x), "y": list(y), **more
    }  # fmt: skip


def hover(text: str) -> str:
    """The template of the text under the pointer, without a box for the trace's name."""
    return f"{text}<extra></extra>"


def evenly(number: int, most: int = MAX_POINTS) -> list[int]:
    """At most ``most`` evenly spaced indices below ``number``, including the first and the last.

    >>> evenly(5, 3), evenly(2)
    ([0, 2, 4], [0, 1])
    """
    if number <= most:
        return list(range(number))
    places = np.linspace(0, number - 1, most).round().astype(int)
    return [int(place) for place in np.unique(places)]


def axis(title: str, **more: Any) -> dict[str, Any]:
    return {"title": {"text": label(title)}, **more}


ROWS = {"autorange": "reversed", "type": "category"}
"""A vertical axis of names, the first on top."""
