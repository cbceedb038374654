"""A page: which charts and tables it shows, and its HTML with everything embedded."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader
from markupsafe import Markup

from fedplt.configuration import dump_config, follows_preset
from fedplt.federation import privacy_text
from fedplt.files import write_text
from fedplt.report.page.chart import Chart
from fedplt.report.page.client_charts import (
    away_table,
    sampling_budget,
    sampling_probabilities,
    score_histogram,
    score_quantiles,
    worst_table,
)
from fedplt.report.page.device_charts import device_chart
from fedplt.report.page.dynamics_charts import dynamics_charts, dynamics_note
from fedplt.report.page.plan_charts import plan_charts
from fedplt.report.page.read_runs import Groups, ShownRun, runs_of
from fedplt.report.page.score_charts import (
    comparison_table,
    curve_alt,
    curves_of,
    differences_chart,
)
from fedplt.report.page.summary import checklist, cost_table, headline
from fedplt.report.palette import SERIES, SERIES_ON_DARK
from fedplt.text import Table, csv_text, latex

SCRIPTS = ("charts.js", "curves.js", "page.js")
PRESET = 'It has all settings of method.preset = "recommended".'
PRIVATE_KEY = (
    "The checkpoints in the run's folder hold the key of the noise; only their owner may read them "
    "(mode 0600). Publish model.safetensors, not the folder."
)


@dataclass(frozen=True)
class Section:
    """Charts, tables and texts under one heading."""

    title: str
    charts: Sequence[Chart] = ()
    tables: Sequence[Table] = ()
    texts: Sequence[str] = ()
    listing: str = ""
    """A text in a fixed-width font, collapsed under its name."""
    listing_name: str = "As text"

    def __bool__(self) -> bool:
        return bool(self.charts or self.tables or any(self.texts) or self.listing)


@dataclass(frozen=True)
class Details:
    """The sections about one run."""

    label: str
    name: str
    sections: Sequence[Section]


@dataclass(frozen=True)
class Content:
    """Everything on a page."""

    title: str
    headline: Sequence[tuple[str, str]]
    curves: Mapping[str, Any]
    curve_alt: str
    comparison: Section
    details: Sequence[Details]
    checklist: Table
    running: bool = False
    extra: Section = field(default_factory=lambda: Section(""))
    """An additional section, such as the tables of an experiment."""


def content_of(title: str, groups: Groups, extra: Section | None = None) -> Content:
    """The content for these runs, with the details of each group's first run."""
    return Content(
        title=title,
        headline=headline(groups),
        curves=curves_of(groups),
        curve_alt=curve_alt(groups),
        comparison=Section(
            "Comparison",
            [*filter(None, [differences_chart(groups)])],
            [comparison_table(groups)] if len(runs_of(groups)) > 1 else [],
        ),
        details=[
            Details(name, runs[0].name, found)
            for name, runs in groups.items()
            if (found := _sections(runs[0]))
        ],
        checklist=checklist(groups),
        running=not all(run.is_finished for run in runs_of(groups)),
        extra=extra or Section(""),
    )


def _sections(run: ShownRun) -> list[Section]:
    if run.config is None:
        return []
    summary, spent = run.plan.summary() if run.plan else "", run.history.privacy
    client_charts = filter(None, [score_histogram(run), score_quantiles(run)])
    client_tables = filter(None, [worst_table(run), away_table(run)])
    sampling = filter(None, [sampling_probabilities(run), sampling_budget(run)])
    preset = PRESET if follows_preset(run.config, "recommended") else ""
    sections = [
        Section(
            "Who trains what", plan_charts(run), (), [run.plan_problem], summary, "The plan as text"
        ),
        Section("Time by device", [*filter(None, [device_chart(run)])]),
        Section("Clients", [*client_charts], [*client_tables]),
        Section("Client sampling", [*sampling]),
        Section("How the model moved", dynamics_charts(run), (), [dynamics_note(run)]),
        Section("Costs", (), [cost_table(run)]),
        Section("Privacy", texts=[privacy_text(spent), PRIVATE_KEY] if spent else ()),
        Section("Settings", (), (), [preset], dump_config(run.config), "config.toml"),
    ]
    return [section for section in sections if section]


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
    """Write a page that needs only a browser."""
    write_text(path, page_html(content))
    return path


def page_html(content: Content, *, live: bool = False) -> str:
    """The page; a live page loads the charting library from its server."""
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
    """A content security policy: only these scripts run, and no other host is contacted."""
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
    """The data that the page's scripts read."""
    charts = {f"all-{chart.name}": chart for chart in content.comparison.charts}
    charts |= {f"extra-{chart.name}": chart for chart in content.extra.charts}
    for number, run in enumerate(content.details):
        for section in run.sections:
            charts |= {f"run{number}-{chart.name}": chart for chart in section.charts}
    tables = [*content.comparison.tables, *content.extra.tables]
    copies = {f"{table.name}-csv": csv_text(table) for table in tables}
    copies |= {f"{table.name}-latex": latex(table) for table in tables}
    return {
        "curves": content.curves,
        "charts": {name: chart.to_json() for name, chart in charts.items()},
        "copies": copies,
    }


def embedded_json(data: object) -> str:
    r"""JSON that cannot close the script element around it.

    >>> embedded_json({"a": "</script>"})
    '{"a":"\\u003c/script\\u003e"}'
    """
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
