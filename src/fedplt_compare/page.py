"""The page of an advice: the answer first, then the curves and the details of every run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fedplt.report.page import Section, content_of, read_run, write_page
from fedplt_compare.advice import Advice
from fedplt_compare.compare import run_folder


def write_advice(folder: Path, advice: Advice) -> Path:
    """Write ``report.html`` into the folder of an advice."""
    groups = {
        outcome.strategy.title: [
            read_run(run_folder(folder, outcome.label, seed)) for seed in outcome.histories
        ]
        for outcome in advice.outcomes
    }
    texts = [advice.sentence, *advice.more, *advice.changes, *advice.how]
    answer = Section("Answer", (), advice.tables(), texts)
    content = content_of(f"Advice: {advice.setting.config.name}", groups, answer)
    scores = advice.best.scores(advice.seconds).values()
    headline = [(advice.spread(scores), advice.sentence)]
    return write_page(folder / "report.html", replace(content, headline=headline))
