# mypy: implicit-reexport
"""Runs as one self-contained HTML page with interactive charts.

``runs`` reads what is shown, the modules in between make charts and tables of it (plain data), and
``render`` makes the page. Whatever comes from a run's files is data: it is escaped, and nothing
that a file names is imported.
"""

from __future__ import annotations

from fedplt.report.page.content import Content, content_of
from fedplt.report.page.render import page_html, plotly_source, write_page
from fedplt.report.page.runs import (
    ShownRun,
    compared_runs,
    read_groups,
    read_run,
    run_folders,
    scalars,
)
