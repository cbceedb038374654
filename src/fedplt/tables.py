"""Tables as plain values, as Markdown, as LaTeX (booktabs) and as text for a terminal."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from fedplt.text import table as columns

_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "±": r"$\pm$", "†": r"$^\dagger$", "<": r"$<$", ">": r"$>$", "≤": r"$\le$",
}  # fmt: skip


@dataclass(frozen=True)
class Table:
    """A table with a caption above and notes below. The first column is for names."""

    name: str
    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()


def markdown(table: Table) -> str:
    """As Markdown; numbers are aligned to the right, names to the left."""
    rule = ["---", *("---" if name == "verdict" else "---:" for name in table.header[1:])]
    rows = [table.header, rule, *table.rows]
    lines = [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows]
    return "\n".join([f"**{table.title}**", "", *lines, *_notes(table.notes)]) + "\n"


def _notes(notes: Sequence[str]) -> list[str]:
    return [line for note in notes for line in ("", *textwrap.wrap(note, 110))]


def latex(table: Table) -> str:
    """As a LaTeX ``table*`` as wide as the text; needs the packages booktabs and graphicx."""
    aligned = "l" + "r" * (len(table.header) - 1)
    notes = "\n\n".join(escape(note) for note in table.notes)
    return "\n".join(
        [
            r"\begin{table*}[t]",
            r"\centering",
            rf"\caption{{{escape(table.title)}}}",
            rf"\label{{tab:{table.name}}}",
            r"\resizebox{\textwidth}{!}{%",
            rf"\begin{{tabular}}{{{aligned}}}",
            r"\toprule",
            _line(table.header),
            r"\midrule",
            *map(_line, table.rows),
            r"\bottomrule",
            r"\end{tabular}}",
            *([r"\par\footnotesize", notes] if notes else []),
            r"\end{table*}",
            "",
        ]
    )


def _line(cells: Sequence[str]) -> str:
    return " & ".join(map(escape, cells)) + r" \\"


def escape(text: str) -> str:
    """
    >>> escape("-0.25 ± 1 %")
    '$-$0.25 $\\\\pm$ 1 \\\\%'
    """
    plain = "".join(_LATEX.get(character, character) for character in text)
    return re.sub(r"(?<![\w-])-(?=\d)", "$-$", plain)


def plain(table: Table) -> str:
    """As text for a terminal."""
    notes = [textwrap.fill(note, 100) for note in table.notes]
    return "\n\n".join([table.title, columns(table.header, table.rows), *notes])
