"""Run a study: one resumable run folder per configuration, then tables and pictures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from fedplt.data.sources import Fetching
from fedplt.experiments.configurations import Configuration, Study
from fedplt.experiments.series import Series, series_of
from fedplt.federation.config import RunConfig
from fedplt.federation.folder import RunFolder
from fedplt.federation.job import job_from_config
from fedplt.federation.loop import OnRound
from fedplt.federation.records import History
from fedplt.files import write_text
from fedplt.plan_summary import table
from fedplt.simulator.run import prepare_resume, run_job

WatchRounds = Callable[[str, int, int], AbstractContextManager[OnRound]]
"""Called with (what runs, rounds done, rounds); gives what is told about every round."""


def run_study(
    study: Study,
    out: Path,
    *,
    rounds: int,
    seed: int,
    watch: WatchRounds,
    overrides: Sequence[str] = (),
    fetching: Fetching = nullcontext,
) -> dict[str, History]:
    """Histories by label. Finished runs are kept, stopped ones continue to the same bits."""
    histories = {}
    for configuration in study.configurations:
        config = study.config(configuration, rounds, seed, overrides)
        path = out / configuration.name
        histories[configuration.label] = _run(configuration, config, path, watch, fetching)
    return histories


def _run(
    configuration: Configuration,
    config: RunConfig,
    path: Path,
    watch: WatchRounds,
    fetching: Fetching,
) -> History:
    if not RunFolder.has_begun(path):
        RunFolder.refuse_existing(path)
        with fetching() as progress:
            job = job_from_config(config, progress)
        with watch(configuration.label, 0, config.rounds) as on_round:
            return run_job(job, path, on_round=on_round)
    folder = RunFolder.open(path)
    if folder.config() == config and (path / "model.safetensors").is_file():
        return folder.history()
    with fetching() as progress:
        job, done = prepare_resume(folder, lambda _: config, progress)
    with watch(configuration.label, done, config.rounds) as on_round:
        return run_job(job, path, resume=True, on_round=on_round)


def study_results(study: Study, out: Path, histories: dict[str, History]) -> str:
    """Both tables: the paper's configurations, and what came out here. Kept as ``tables.txt``."""
    rows = []
    for configuration in study.configurations:
        history = histories[configuration.label]
        plan = RunFolder.open(out / configuration.name).plan()
        series = series_of(history)
        rows.append(
            [
                configuration.label,
                f"{100 * plan.achieved_ratios.mean():.2f} %",
                str(history.rounds[-1].round),
                f"{100 * history.final_accuracy():.2f} %",
                _last(series, "update_norm"),
                _last(series, "effective_perturbation"),
                _divergence(series),
            ]
        )
    header = ["configuration", "achieved ratio", "rounds", "accuracy, last 10", "update norm", "EP"]
    text = f"{study.table()}\n\nHere:\n{table([*header, 'spread of EP over layers'], rows)}"
    write_text(out / "tables.txt", text + "\n")
    return text


def _last(series: Series, name: str) -> str:
    values = getattr(series, name)
    return f"{values[-1]:.4g}" if len(values) else "-"


def _divergence(series: Series) -> str:
    """Largest minus smallest effective perturbation of a layer, in the last round."""
    last = [values[-1] for values in series.layer_effective_perturbation.values() if len(values)]
    return f"{max(last) - min(last):.4g}" if last else "-"
