"""What a picture shows."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path


def svg_texts(path: Path) -> list[str]:
    """Titles, labels and legends: matplotlib draws them as shapes, each after a comment."""
    return [unescape(text) for text in re.findall(r"<!-- (.*?) -->", path.read_text())]
