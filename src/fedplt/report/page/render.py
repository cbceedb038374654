"""Make the HTML page from its content: escaped, with everything embedded, and no network."""

from __future__ import annotations

import base64
import csv
import gzip
import hashlib
import io
import json
from functools import cache
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, PackageLoader
from markupsafe import Markup

from fedplt.files import write_text
from fedplt.report.page.content import Content
from fedplt.report.palette import SERIES, SERIES_ON_DARK
from fedplt.tables import Table, latex
from fedplt.text import csv_cell

SCRIPTS = ("charts.js", "curves.js", "page.js")


@cache
def plotly_source() -> str:
    """The charting library: plotly.js, its bundle of charts with two axes (MIT license)."""
    packed = files("fedplt.report.page").joinpath("plotly-cartesian.min.js.gz").read_bytes()
    return gzip.decompress(packed).decode()


@cache
def _text(name: str) -> str:
    return files("fedplt.report.page").joinpath(name).read_text(encoding="utf-8")


@cache
def environment() -> Environment:
    return Environment(
        loader=PackageLoader("fedplt.report.page", ""),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def write_page(path: Path, content: Content) -> Path:
    """Write a page that needs nothing but a browser."""
    write_text(path, page_html(content))
    return path


def page_html(content: Content, *, live: bool = False) -> str:
    """The page; a live one takes the charting library from the server that shows it."""
    library = None if live else Markup(plotly_source())
    return (
        environment()
        .get_template("page.html")
        .render(
            content=content,
            style=style(),
            script=Markup(page_script()),
            plotly=library,
            data=Markup(embedded_json(page_data(content))),
            policy=None if live else security_policy(plotly_source(), page_script()),
            live=live,
        )
    )


def style() -> Markup:
    return Markup(_text("page.css"))


def page_script() -> str:
    colors = json.dumps({"light": SERIES, "dark": SERIES_ON_DARK})
    return "\n".join(['"use strict";', f"const COLORS = {colors};", *map(_text, SCRIPTS)])


def security_policy(*scripts: str, sources: str = "", connect: str = "'none'") -> str:
    """A content security policy: only these scripts run, and nothing is fetched from elsewhere."""
    hashes = [
        f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
        for text in scripts
    ]
    return (
        f"default-src 'none'; script-src {' '.join([*hashes, sources]).strip()}; "
        f"style-src 'unsafe-inline'; img-src data: blob:; connect-src {connect}; "
        "base-uri 'none'; form-action 'none'"
    )


def page_data(content: Content) -> dict[str, object]:
    """What the scripts of the page read."""
    charts = {f"all-{chart.name}": chart for chart in content.comparison.charts}
    charts |= {f"extra-{chart.name}": chart for chart in content.extra.charts}
    for number, run in enumerate(content.details):
        for part in run.parts:
            charts |= {f"run{number}-{chart.name}": chart for chart in part.charts}
    tables = [*content.comparison.tables, *content.extra.tables]
    copies = {f"{table.name}-csv": csv_text(table) for table in tables}
    copies |= {f"{table.name}-latex": latex(table) for table in tables}
    return {
        "curves": content.curves,
        "charts": {name: chart.to_json() for name, chart in charts.items()},
        "copies": copies,
    }


def embedded_json(data: object) -> str:
    r"""JSON that cannot end the script element it stands in.

    >>> embedded_json({"a": "</script>"})
    '{"a":"\\u003c/script\\u003e"}'
    """
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def csv_text(table: Table) -> str:
    """A table as CSV."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerows([csv_cell(cell) for cell in row] for row in [table.header, *table.rows])
    return out.getvalue()
