"""Read a CSV file row by row; errors name the line."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from fedplt.errors import FedpltError


def csv_rows(
    text: str,
    path: Path,
    error_type: type[FedpltError],
    check_columns: Callable[[list[str]], None],
    example: str,
) -> Iterator[tuple[str, dict[str, str]]]:
    """Where each row stands (for messages), and its values by column; empty cells are left out.

    The first line names the columns (``example`` shows how); ``check_columns`` raises
    ``error_type`` if they are wrong. Lines that start with ``#`` are comments.
    """
    lines = text.splitlines()
    first = next((line for line in lines if line.strip() and not line.startswith("#")), None)
    if first is None:
        raise error_type(f"{path} is empty. Its first line names the columns: {example}.")
    reader = csv.reader(io.StringIO(text), delimiter=max(",;\t", key=first.count))
    header: list[str] = []
    for cells in _parsed(reader, path, error_type):
        values = [cell.strip() for cell in cells]
        if not any(values) or values[0].startswith("#"):
            continue
        place = f"{path}, line {reader.line_num}"
        if not header:
            header = values
            try:
                check_columns(header)
            except error_type as error:
                raise error_type(f"{place}: {error}") from error
        elif len(values) != len(header):
            raise error_type(
                f"{place}: {len(values)} values for {len(header)} columns ({', '.join(header)})."
            )
        else:
            yield place, {key: value for key, value in zip(header, values, strict=True) if value}


def _parsed(
    reader: Iterable[list[str]], path: Path, error_type: type[FedpltError]
) -> Iterator[list[str]]:
    try:
        yield from reader
    except csv.Error as error:  # such as a cell of a megabyte
        raise error_type(f"{path} is not valid CSV: {error}") from error
