"""What the README and the documents show: code, and command lines."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(language: str) -> list[tuple[str, str]]:
    """Names and contents of the blocks of a language."""
    pattern = re.compile(rf"```{language}\n(.*?)```", re.DOTALL)
    return [
        (f"{page.name}:{number}", code)
        for page in PAGES
        for number, code in enumerate(pattern.findall(page.read_text()), start=1)
    ]


def command_lines() -> list[str]:
    """All that is shown for a shell, without comments; the same line only once, in order."""
    lines = [line for _, code in blocks("(?:sh|bash|console)") for line in code.splitlines()]
    known = (re.split(r"\s#", line, maxsplit=1)[0].strip() for line in lines)
    return list(dict.fromkeys(filter(None, known)))
