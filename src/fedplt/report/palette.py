"""The colors of all pictures and charts: Matplotlib figures, pages, and drawings of the docs."""

from __future__ import annotations

SERIES = ["#1f5f99", "#e08214", "#3a923a", "#8c4fa8", "#c03d3e", "#6b5b4b", "#2aa5a0", "#b8860b"]
"""Colors of lines, bars and areas, in this order."""
SERIES_ON_DARK = [
    "#62b4f0", "#ffa159", "#5fcf7f", "#cf9be8", "#ef8f8f", "#cdb79e", "#5fd6d0", "#ecc452",
]  # fmt: skip
"""The same hues on the dark theme of a page."""
INK = "#1c2733"
"""Color of text and reference lines."""
GREY = "#607080"
MUTED = "#9aa7b4"
GRID = "#dddddd"
EMPTY = "#eef1f4"
"""Color of cells and rows that are not trained."""
