"""The study of section III: its tables, its runs in small, its pictures."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from fedplt import ConfigError, History, RunError
from fedplt.experiments import STUDIES, Series, find_study, run_study, series_of, study_results
from fedplt.experiments.configurations import Study
from fedplt.federation.records import RoundRecord, Totals
from fedplt.report.study_figures import layers_figure, model_figure

FCN, RESNET = STUDIES["study-fcn"], STUDIES["study-resnet"]

# (study, configuration, ratio in percent, X, Std(X)) as printed
TABLES = [
    (FCN, "full", 100.0, (0.708, 0.231, 0.058, 0.002), 0.278),
    (FCN, "deep-heavy", 25.6, (0.222, 0.615, 0.154, 0.009), 0.2245),
    (FCN, "shallow-dominant", 24.4, (0.872, 0.095, 0.024, 0.009), 0.361),
    (RESNET, "full", 100.0, (0.00598, 0.06193, 0.18537, 0.73805, 0.00868), 0.27677),
    (RESNET, "deep-heavy", 34.75, (0.00108, 0.01114, 0.06669, 0.89613, 0.02497), 0.34878),
    (RESNET, "shallow-dominant", 35.38, (0.01690, 0.17505, 0.26198, 0.52154, 0.02452), 0.18556),
]


@pytest.mark.parametrize(("study", "name", "percent", "contributions", "std"), TABLES)
def test_the_papers_tables(study: Study, name, percent, contributions, std):
    configuration = next(entry for entry in study.configurations if entry.name == name)
    found = configuration.allocation(study.paper_sizes)
    assert 100 * found.ratio == pytest.approx(percent, abs=0.05)
    assert found.contributions == pytest.approx(contributions, abs=1e-3)
    assert found.contributions_std == pytest.approx(std, abs=1e-3)


def test_the_least_spread_is_the_papers_bold_one():
    for study, best in ((FCN, "deep-heavy"), (RESNET, "shallow-dominant")):
        spread = {
            entry.name: entry.allocation(study.paper_sizes).contributions_std
            for entry in study.configurations
        }
        assert min(spread, key=spread.get) == best


def test_the_tables_are_printed():
    assert "(0.08, 0.68, 0.68, 1.00)" in FCN.table()
    assert "0.1856" in RESNET.table()
    with pytest.raises(ConfigError, match="Did you mean 'study-fcn'"):
        find_study("study-fnc")


def test_the_configurations_fit_their_models():
    from fedplt.federation.job import plan_without_data

    for study in (FCN, RESNET):
        for configuration in study.configurations:
            plan = plan_without_data(study.config(configuration, rounds=1, seed=1))
            assert [layer.name for layer in plan.layers] == list(study.layer_names)
            wanted = configuration.allocation(plan.layers.sizes).ratio
            assert plan.achieved_ratios.mean() == pytest.approx(wanted, rel=0.05)


SMALL = [
    "data.name=tests.tiny:data", "data.alpha=10.0", "clients.num_clients=3",
    "model.options={num_inputs = 6, num_classes = 3}", "training.learning_rate=0.1",
    "engine.workers=1", "checkpoint_every=1",
]  # fmt: skip


def run(out, rounds, told, **settings):
    @contextmanager
    def watch(what, done, total):
        told.append((what, done, total))
        yield lambda record: None

    return run_study(FCN, out, rounds=rounds, seed=1, watch=watch, overrides=SMALL, **settings)


def test_a_small_study_runs_continues_and_is_kept(tmp_path):
    told: list = []
    labels = ["Full model", "Deep-heavy", "Shallow-dominant"]
    histories = run(tmp_path, 1, told)
    assert told == [(label, 0, 1) for label in labels]
    assert list(histories) == labels
    assert (
        histories["Full model"].rounds[0].cost.bytes_up
        > histories["Deep-heavy"].rounds[0].cost.bytes_up
    )
    text = study_results(FCN, tmp_path, histories)
    assert "100.00 %" in text
    assert (tmp_path / "tables.txt").read_text().startswith("FCN on Fashion-MNIST")
    told.clear()
    more = run(tmp_path, 2, told)
    assert told == [(label, 1, 2) for label in labels]
    assert [len(history.rounds) for history in more.values()] == [2, 2, 2]
    told.clear()
    again = run(tmp_path, 2, told)
    assert not told
    assert [h.accuracy for h in again.values()] == [h.accuracy for h in more.values()]
    begun = next(path for path in tmp_path.iterdir() if path.is_dir())
    for file in begun.iterdir():  # as if it had been killed before its first checkpoint
        if file.name not in ("config.toml", "plan.json", ".lock"):
            file.unlink()
    third = run(tmp_path, 2, told)
    assert [(done, total) for _, done, total in told] == [(0, 2)]
    assert [h.accuracy for h in third.values()] == [h.accuracy for h in more.values()]
    with pytest.raises(RunError, match=r"data\.alpha"):
        run_study(
            FCN, tmp_path, rounds=2, seed=1, watch=None,
            overrides=[*SMALL, "data.alpha=9.0"],
        )  # fmt: skip


def histories_with(diagnostics):
    records = [
        SimpleNamespace(round=i, accuracy=i / 10, diagnostics=diagnostics(i)) for i in (1, 2, 3)
    ]
    return History(records)


def by_name(i):
    layer = {"update_magnitude": 1.0, "effective_perturbation": 0.1 * i}
    whole = {"update_magnitude": 4.0 * i**2, "effective_perturbation": 1 / i}
    return {**whole, "layers": {"fc1": layer, "fc2": layer}}


def test_series_are_read_from_the_records():
    series = series_of(histories_with(by_name))
    assert series.rounds == (1, 2, 3)
    assert series.update_norm == (2.0, 4.0, 6.0)
    assert series.effective_perturbation == (1.0, 0.5, 1 / 3)
    assert series.layer_effective_perturbation["fc1"] == pytest.approx((0.1, 0.2, 0.3))
    figure = layers_figure({"Full model": series, "Deep-heavy": series})
    assert len(figure.axes[1].lines) == 2
    histories = {"Full model": histories_with(by_name)}
    panels = model_figure(histories, {"Full model": series}).axes
    assert panels[0].lines[0].get_ydata().tolist() == [2.0, 4.0, 6.0]
    assert panels[2].lines[0].get_ydata().tolist() == pytest.approx([10, 20, 30])


def test_without_diagnostics_the_pictures_say_so():
    history = History([RoundRecord(1, 1, 1.0, Totals(), Totals(), 0.1, accuracy=0.5)])
    series = series_of(history)
    assert not series
    assert series == Series()
    figure = model_figure({"Full model": history}, {"Full model": series})
    assert figure.axes[0].texts[0].get_text() == "not recorded"
    assert layers_figure({"Full model": series}).axes[0].texts


def test_the_command(fedplt, tmp_path):
    sets = [word for entry in SMALL for word in ("--set", entry)]
    done = fedplt("reproduce", "study-fcn", "--rounds", 1, "--out", tmp_path, *sets)
    assert done.returncode == 0, done.stderr
    assert "Shallow-dominant" in done.stdout
    assert (tmp_path / "model.png").stat().st_size > 5000
    assert (tmp_path / "layers.png").stat().st_size > 5000
    assert "0.2245" in fedplt("reproduce", "study-fcn", "--tables").stdout
    assert fedplt("reproduce", "study-cnn").returncode == 2
