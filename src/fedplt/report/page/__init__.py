# mypy: implicit-reexport
"""Runs as one self-contained HTML page with interactive charts.

``read_runs`` reads the runs, the ``*_charts`` modules and ``summary`` turn them into charts and
tables (plain data), and ``html_page`` makes the page. The content of a run's files is only data: it
is escaped, and no code that a file names is imported.
"""

from __future__ import annotations

from fedplt.report.page.html_page import (
    Content,
    Section,
    content_of,
    environment,
    page_html,
    page_script,
    plotly_source,
    security_policy,
    style,
    write_page,
)
from fedplt.report.page.read_runs import (
    Groups,
    ShownRun,
    client_summary,
    compared_runs,
    read_groups,
    read_run,
    run_folders,
    scores_by_client,
)
from fedplt.report.page.score_charts import comparison_table
