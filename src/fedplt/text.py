"""Numbers, tables and objects as text: for a terminal, in Markdown, LaTeX, CSV and notebooks."""

from __future__ import annotations

import csv
import html
import io
import re
import textwrap
from collections.abc import Collection, Sequence
from dataclasses import MISSING, dataclass, fields
from itertools import takewhile
from typing import Any

SAMPLE_STD = "sample standard deviation (n - 1)"
"""The meaning of every ``+-``: runs and clients are a sample."""


def bytes_text(number: float) -> str:
    """
    >>> bytes_text(25_321_880)
    '25.3 MB'
    """
    return _scaled(number, "B")


def counted(number: int, noun: str) -> str:
    """A number with its noun, in the singular or plural.

    >>> counted(1, "round"), counted(0, "client"), counted(1200, "local step")
    ('1 round', '0 clients', '1,200 local steps')
    """
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def flops_text(number: float) -> str:
    """
    >>> flops_text(1.5e12)
    '1.5 TFLOP'
    """
    return _scaled(number, "FLOP")


def seconds_text(seconds: float) -> str:
    """
    >>> seconds_text(12.346), seconds_text(0.000123), seconds_text(1e-16)
    ('12.35', '0.00012', '0.00')
    """
    small = 1e-9 < abs(seconds) < 0.1  # less is rounding
    return f"{seconds:.2g}" if small else f"{seconds:.2f}"


def duration_text(seconds: float) -> str:
    """
    >>> duration_text(75), duration_text(7322)
    ('1:15', '2:02:02')
    """
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def printable(text: str, most: int = 2000) -> str:
    r"""Text from outside as one line of printable characters, cut to ``most`` of them.

    It can neither start a new line of a log nor send control codes to a terminal.

    >>> printable("ok\nround 9: 99 %\x1b[2J")
    'ok\\nround 9: 99 %\\x1b[2J'
    """
    cut = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in text[:most])
    return "".join(cut)[:most]


def csv_cell(value: object) -> object:
    """A value for a CSV file; spreadsheets must not read a text as a formula.

    >>> csv_cell("=HYPERLINK(1)"), csv_cell("-1.5 ± 0.2"), csv_cell("-1+A1"), csv_cell(-1.5)
    ("'=HYPERLINK(1)", '-1.5 ± 0.2', "'-1+A1", -1.5)
    """
    plain = r"([^-+=@\s\uff0b\uff0d\uff1d\uff20].*|[-+][\d .,±%]*)?"
    if not isinstance(value, str) or re.fullmatch(plain, value, re.S):
        return value
    return f"'{value}"


def shortened(name: str, width: int = 32) -> str:
    """A long name without its middle: names differ at the beginning and the end.

    >>> shortened("base_model.model.encoder.layer.11.attention.self.query.lora_A.default")
    'base_model.mo...ora_A.default'
    >>> shortened("fc1")
    'fc1'
    """
    if len(name) <= width:
        return name
    left = (width - 3) // 2
    return f"{name[:left]}...{name[len(name) - (width - 3 - left) :]}"


def short_names(names: Sequence[str], width: int = 32) -> list[str]:
    """Dotted names for a table or a picture, without what all long ones share.

    They stay different from each other, if need be by being longer than ``width``.

    >>> layers = [f"base_model.model.encoder.layer.{i}.query.lora_A.default" for i in (0, 11)]
    >>> short_names([*layers, "head"])
    ['...layer.0...', '...layer.11...', 'head']
    >>> short_names(["fc1", "fc2"])
    ['fc1', 'fc2']
    """
    long = [name.split(".") for name in names if len(name) > width]
    most = min(map(len, long), default=1) - 1  # at least one part is left
    start = _shared(long, most)
    end = _shared([parts[::-1] for parts in long], most - start)
    start = max(0, start - 1)  # keep the word before a number
    end = max(0, end - (start + end >= most))
    result = []
    for name in names:
        if len(name) <= width:
            result.append(name)
            continue
        parts = name.split(".")
        text = ".".join(parts[start : len(parts) - end])
        text = ("..." if start else "") + text + ("..." if end else "")
        result.append(text if len(text) <= width else "..." + text[3 - width :])
    different = len(set(result)) == len(set(names))
    return result if different else short_names(names, 2 * width)


def _shared(names: Sequence[Sequence[str]], most: int) -> int:
    """The number of leading parts that all of several names share, at most ``most``."""
    shared = takewhile(lambda parts: len(set(parts)) == 1, zip(*names, strict=False))
    return min(most, len(list(shared))) if len(names) > 1 else 0


def _scaled(number: float, unit: str) -> str:
    prefixes = iter(" kMGT")
    while (prefix := next(prefixes)) != "T" and abs(number) >= 1000:
        number /= 1000
    return f"{number:.{0 if prefix == ' ' else 1}f} {prefix.strip()}{unit}"


def table(
    header: Sequence[str], rows: Sequence[Sequence[str]], left: Collection[int] = (0,)
) -> str:
    """Align columns with spaces: those in ``left`` to the left, the others to the right."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]

    def line(row: Sequence[str]) -> str:
        cells = [
            cell.ljust(width) if i in left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        return "  ".join(cells).rstrip()

    return "\n".join([line(header), line(["-" * width for width in widths]), *map(line, rows)])


REPR = 240
"""Longest ``repr`` of a public object: consoles and notebooks print it."""


def brief(item: Any) -> str:
    """A short ``repr`` of a dataclass: defaults are left out, large values are only described.

    Set ``__repr__ = brief`` in the class; a dataclass keeps a ``__repr__`` that is defined there.
    """
    given = [
        f"{field.name}={_described(getattr(item, field.name))}"
        for field in fields(item)
        if field.repr and not _is_default(getattr(item, field.name), field)
    ]
    return shortened(f"{type(item).__name__}({', '.join(given)})", REPR)


def _is_default(value: Any, field: Any) -> bool:
    default = field.default if field.default_factory is MISSING else field.default_factory()
    return type(value) is type(default) and bool(value == default)


def _described(value: Any) -> str:
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"<{value.dtype}, shape {tuple(value.shape)}>"
    text = repr(value)
    if len(text) <= 40:
        return text
    kind = type(value).__name__
    return f"<{kind} of {len(value)}>" if isinstance(value, Collection) else f"<{kind}>"


def html_text(text: str) -> str:
    """A printed table for a notebook."""
    return f"<pre>{html.escape(text)}</pre>"


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
    notes = [line for note in table.notes for line in ("", *textwrap.wrap(note, 110))]
    return "\n".join([f"**{table.title}**", "", *lines, *notes]) + "\n"


def latex(table: Table) -> str:
    """As a LaTeX ``table*`` as wide as the text; needs the packages booktabs and graphicx."""
    aligned = "l" + "r" * (len(table.header) - 1)
    notes = "\n\n".join(_latex_text(note) for note in table.notes)
    return "\n".join(
        [
            r"\begin{table*}[t]",
            r"\centering",
            rf"\caption{{{_latex_text(table.title)}}}",
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
    return " & ".join(map(_latex_text, cells)) + r" \\"


_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "±": r"$\pm$", "†": r"$^\dagger$", "<": r"$<$", ">": r"$>$", "≤": r"$\le$",
}  # fmt: skip


def _latex_text(text: str) -> str:
    """
    >>> _latex_text("-0.25 ± 1 %")
    '$-$0.25 $\\\\pm$ 1 \\\\%'
    """
    plain = "".join(_LATEX.get(character, character) for character in text)
    return re.sub(r"(?<![\w-])-(?=\d)", "$-$", plain)


def csv_text(table: Table) -> str:
    """As CSV."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerows([csv_cell(cell) for cell in row] for row in [table.header, *table.rows])
    return out.getvalue()


def plain(content: Table) -> str:
    """As text for a terminal."""
    notes = [textwrap.fill(note, 100) for note in content.notes]
    return "\n\n".join([content.title, table(content.header, content.rows), *notes])
