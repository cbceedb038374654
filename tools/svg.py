"""A few shapes as SVG text: pictures that are the same bytes on every machine."""

from __future__ import annotations

from collections.abc import Iterable
from xml.sax.saxutils import escape

from fedplt.report.palette import EMPTY, GREY, INK

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"


def box(x: float, y: float, width: float, height: float, fill: str, *, line: str = "none") -> str:
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="2" '
        f'fill="{fill}" stroke="{line}"/>'
    )


def text(
    x: float, y: float, words: str, *, size: int = 14, color: str = INK, at: str = "start",
    bold: bool = False,
) -> str:  # fmt: skip
    weight = ' font-weight="600"' if bold else ""
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{color}" '
        f'text-anchor="{at}"{weight}>{escape(words)}</text>'
    )


def arrow(x1: float, y1: float, x2: float, y2: float, color: str = GREY) -> str:
    return (
        f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{color}" '
        f'stroke-width="2" marker-end="url(#tip)"/>'
    )


def stack(
    x: float, y: float, width: float, height: float, rows: int, colors: dict[int, str],
    *, gap: float = 2,
) -> str:  # fmt: skip
    """A matrix as its rows from top to bottom; rows without a color are pale."""
    each = (height - gap * (rows - 1)) / rows
    return "".join(
        box(x, round(y + row * (each + gap), 2), width, round(each, 2), colors.get(row, EMPTY))
        for row in range(rows)
    )


def picture(width: int, height: int, parts: Iterable[str], title: str) -> str:
    tip = (
        '<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        f'orient="auto"><path d="M0 0L8 4L0 8z" fill="{GREY}"/></marker>'
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="{FONT}" role="img">\n'
        f"<title>{escape(title)}</title><defs>{tip}</defs>\n"
        f'<rect width="{width}" height="{height}" rx="8" fill="#fff"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )
