"""The content of a page: what is shown of which runs, as plain data and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedplt.configuration import dump_config
from fedplt.federation import privacy_text
from fedplt.report.page.chart import Chart
from fedplt.report.page.clients import away_table, client_charts, sampling_charts, worst_table
from fedplt.report.page.compared import comparison_table, differences_chart
from fedplt.report.page.curves import curve_alt, curves_of
from fedplt.report.page.dynamics import dynamics_charts, dynamics_note
from fedplt.report.page.facts import checklist, cost_table, headline
from fedplt.report.page.plan_charts import device_chart, plan_charts
from fedplt.report.page.runs import ShownRun
from fedplt.tables import Table


@dataclass(frozen=True)
class Part:
    """Charts, tables and texts under one heading."""

    title: str
    charts: Sequence[Chart] = ()
    tables: Sequence[Table] = ()
    texts: Sequence[str] = ()
    listing: str = ""
    """A text in a fixed-width font, folded away under its name."""
    listing_name: str = "As text"

    def __bool__(self) -> bool:
        return bool(self.charts or self.tables or any(self.texts) or self.listing)


@dataclass(frozen=True)
class Details:
    """What is shown of one run."""

    label: str
    name: str
    parts: Sequence[Part]


@dataclass(frozen=True)
class Content:
    """Everything on a page."""

    title: str
    headline: Sequence[tuple[str, str]]
    curves: Mapping[str, Any]
    curve_alt: str
    comparison: Part
    details: Sequence[Details]
    checklist: Table
    running: bool = False
    extra: Part = field(default_factory=lambda: Part(""))
    """What the maker of the page adds, such as the tables of an experiment."""

    @property
    def charts(self) -> list[Chart]:
        """All charts; their names are made different by the run they belong to."""
        parts = [self.comparison, *(part for run in self.details for part in run.parts)]
        return [chart for part in parts for chart in part.charts]


def content_of(
    title: str, groups: Mapping[str, Sequence[ShownRun]], extra: Part | None = None
) -> Content:
    """What is shown of these runs: of each group, the details of its first run."""
    several = len(groups) > 1
    difference = differences_chart(groups) if several else None
    return Content(
        title=title,
        headline=headline(groups),
        curves=curves_of(groups),
        curve_alt=curve_alt(groups),
        comparison=Part(
            "Comparison",
            [difference] if difference else [],
            [comparison_table(groups)] if several or len(_runs(groups)) > 1 else [],
        ),
        details=[
            Details(name, runs[0].name, found)
            for name, runs in groups.items()
            if (found := _parts(runs[0]))
        ],
        checklist=checklist(groups),
        running=not all(run.is_finished for run in _runs(groups)),
        extra=extra or Part(""),
    )


def _runs(groups: Mapping[str, Sequence[ShownRun]]) -> list[ShownRun]:
    return [run for runs in groups.values() for run in runs]


def _privacy_texts(run: ShownRun) -> list[str]:
    if not run.history.privacy:
        return []
    key = (
        "The checkpoints in the run's folder hold the key of the noise; only their owner may read "
        "them (mode 0600). Publish model.safetensors, not the folder."
    )
    return [privacy_text(run.history.privacy), key]


def _parts(run: ShownRun) -> list[Part]:
    if run.config is None:
        return []
    device = device_chart(run)
    worst, away = worst_table(run), away_table(run)
    summary = run.plan.summary() if run.plan else ""
    parts = [
        Part(
            "Who trains what", plan_charts(run), (), [run.plan_problem], summary, "The plan as text"
        ),
        Part("Time by device", [device] if device else []),
        Part("Clients", client_charts(run), [table for table in (worst, away) if table]),
        Part("Client sampling", sampling_charts(run)),
        Part("How the model moved", dynamics_charts(run), (), [dynamics_note(run)]),
        Part("Costs", (), [cost_table(run)]),
        Part("Privacy", texts=_privacy_texts(run)),
        Part("Settings", listing=dump_config(run.config), listing_name="config.toml"),
    ]
    return [part for part in parts if part]
