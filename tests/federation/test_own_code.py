"""Samplers and aggregation rules of one's own, by import path: the same rounds, and clear words."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

import fedplt
from fedplt import ConfigError, RunError
from fedplt.configuration import load_config, parse_config
from fedplt.federation import RunFolder, coverage_warnings
from fedplt.federation.choose_clients import most_clients, most_numbers
from fedplt.federation.cost_forecast import forecast
from fedplt.federation.loop import Federation
from fedplt.sampling import SAMPLERS
from fedplt.server import RULES
from tests.support import own_code
from tests.support.engines import NormsEngine, sampling_federation
from tests.support.jobs import blob_data, blob_job, run_folder, small_model
from tests.support.runs import final_state, run_job, same, without_time

OWN = "tests.support.own_code:"


def rule_federation(**server):
    job = blob_job(rounds=3, server=server)
    return Federation(job, NormsEngine(job))


def test_a_sampler_chooses_who_trains():
    run = sampling_federation(rounds=4, name=f"{OWN}Turns", options={"groups": 3})
    history = run.run()
    assert run.engine.trained == [[0, 3], [1, 4], [2], [0, 3]]
    assert [record.sampling["chosen"] for record in history.rounds] == run.engine.collected
    assert most_clients(run.job) == 2
    assert most_numbers(run.job) == np.sort(run.job.plan.update_sizes)[-2:].sum()


def test_updates_are_weighed_by_one_over_unequal_probabilities():
    run = sampling_federation(name=f"{OWN}Uneven")
    selection = run.sampler.before_training(0, range(5))
    chances = np.array(own_code.Uneven().chances)
    np.testing.assert_array_equal(selection.probabilities, chances)
    expected = run.job.weights / chances
    np.testing.assert_allclose(run.sampler.weights(selection), expected)
    turns = sampling_federation(name=f"{OWN}Turns")
    selection = turns.sampler.before_training(0, range(5))
    np.testing.assert_array_equal(turns.sampler.weights(selection), turns.job.weights)


@pytest.mark.slow
def test_unequal_probabilities_are_unbiased():
    def changes(rounds, **sampling):
        run = sampling_federation(rounds=rounds, **sampling)
        run.state.zero_()
        states = [run.state.clone()]
        run.run(lambda record: states.append(run.state.clone()))
        return torch.stack(states).double().diff(dim=0).numpy()

    expected = changes(1, name="all")[0]
    found = changes(600, name=f"{OWN}Uneven", estimator="unbiased")
    error = np.maximum(found.std(axis=0) / np.sqrt(len(found)), 1e-4)
    assert (np.abs(found.mean(axis=0) - expected) / error).max() < 5


@pytest.mark.slow
def test_resumed_with_the_norms_that_a_sampler_looks_at(tmp_path):
    def job(workers):
        torch.manual_seed(0)
        sampling, engine = {"name": f"{OWN}LargestLast"}, {"workers": workers}
        return blob_job(rounds=6, model=small_model(), sampling=sampling, engine=engine,
                        checkpoint_every=2, server={"aggregation": f"{OWN}OwnMean"})  # fmt: skip

    class Stop(Exception): ...

    def stop(record):
        if record.round == 5:
            raise Stop

    whole_history, whole = final_state(job(1))
    assert len({tuple(r.sampling["chosen"]) for r in whole_history.rounds}) > 1
    with pytest.raises(Stop):
        run_job(job(2), tmp_path / "run", on_round=stop)
    history, state = final_state(job(2), tmp_path / "run", resume=True)
    assert same(whole, state)
    assert without_time(history) == without_time(whole_history)


def test_a_function_of_norms_is_a_rule():
    own = sampling_federation(rounds=5, name=f"{OWN}same_as_built_in", budget=1.0)
    built_in = sampling_federation(rounds=5, name="fedplt-ocs", budget=1.0)
    assert [r.sampling for r in own.run().rounds] == [r.sampling for r in built_in.run().rounds]
    assert torch.equal(own.state, built_in.state)


@pytest.mark.parametrize(("own", "name"), [("OwnMedian", "median"), ("OwnMean", "mean")])
def test_a_rule_gives_the_same_bits_as_the_built_in_one(own, name):
    def state(**server):
        run = rule_federation(**server)
        run.run()
        return run.state

    assert torch.equal(state(aggregation=f"{OWN}{own}"), state(aggregation=name))
    assert not torch.equal(state(aggregation=f"{OWN}{own}", min_contributors=4), state())


def test_options_reach_the_rule():
    rule = parse_config(
        {"server": {"aggregation": f"{OWN}OwnMedian", "options": {"factor": 2.0}}}
    ).server.rule
    assert rule == own_code.OwnMedian(factor=2.0)
    assert rule.counts_clients and not own_code.OwnMean().counts_clients


def test_a_line_in_the_table_is_all_that_a_built_in_one_needs(monkeypatch):
    monkeypatch.setitem(SAMPLERS, "turns", own_code.Turns)
    monkeypatch.setitem(RULES, "own-median", own_code.OwnMedian)
    settings = {
        "sampling": {"name": "turns", "options": {"groups": 3}},
        "server": {"aggregation": "own-median", "options": {"factor": 0.0}},
    }
    job = blob_job(rounds=2, **settings)
    run = Federation(job, NormsEngine(job))
    before = run.state.clone()
    run.run()
    assert run.engine.trained == [[0, 3], [1, 4]] and torch.equal(run.state, before)
    assert most_clients(job) == 2 and forecast(job, 1).bytes_up > 0
    assert any("own-median" in text for text in coverage_warnings(job.config, job.plan))


def test_python_takes_the_classes_themselves():
    data = blob_data()
    history = fedplt.train(
        small_model(), data.train, data.validation, ratios=[1.0] * 4, rounds=2,
        sampling={"name": own_code.Turns}, server={"aggregation": own_code.OwnMedian},
        engine={"workers": 1},
    )  # fmt: skip
    assert [record.sampling["chosen"] for record in history.rounds] == [[0, 2], [1, 3]]
    rule = {"name": own_code.same_as_built_in, "budget": 4.0}
    history = fedplt.train(
        small_model(), data.train, data.validation, ratios=[1.0] * 4, rounds=1, sampling=rule,
        engine={"workers": 1},
    )  # fmt: skip
    assert history.rounds[0].sampling["chosen"] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"sampling": {"name": "nowhere:Turns"}}, ["sampling.name", "'nowhere:Turns'"]),
        ({"sampling": {"name": f"{OWN}Nothing"}}, ["sampling.name", "AttributeError"]),
        ({"sampling": {"name": f"{OWN}OwnMedian"}}, ["sampling.name", "the class OwnMedian"]),
        ({"sampling": {"name": f"{OWN}same_as_built_in"}}, ["a function", "sampling.budget"]),
        ({"sampling": {"name": f"{OWN}Turns", "budget": 2.0}}, ["takes no sampling.budget"]),
        ({"sampling": {"name": f"{OWN}NoProbabilities"}}, ["lacks probabilities", "add_sampler"]),
        (
            {"sampling": {"name": f"{OWN}Turns", "options": {"group": 2}}},
            ["sampling.options.group", "'groups'"],
        ),
        (
            {"sampling": {"name": f"{OWN}Turns", "options": {"groups": "2"}}},
            ["sampling.options.groups", "'2'"],
        ),
        ({"sampling": {"name": f"{OWN}Turns", "num_clients": 2}}, ["sampling.num_clients"]),
        ({"server": {"aggregation": "nowhere:Rule"}}, ["server.aggregation", "'nowhere:Rule'"]),
        ({"server": {"aggregation": f"{OWN}Turns"}}, ["server.aggregation", "the class Turns"]),
        ({"server": {"aggregation": f"{OWN}NoCombine"}}, ["lacks combine or start", "add_rule"]),
        (
            {"server": {"aggregation": f"{OWN}OwnMedian", "options": {"factr": 2}}},
            ["server.options.factr", "'factor'"],
        ),
        (
            {
                "server": {"aggregation": f"{OWN}OwnMedian"},
                "sampling": {"name": "uniform", "num_clients": 2, "estimator": "unbiased"},
            },
            ["server.aggregation", "OwnMedian", "weighs each"],
        ),
    ],
)
def test_mistakes_are_said_before_anything_runs(settings, words):
    config = parse_config({"clients": {"num_clients": 3}, **settings})  # reading imports nothing
    with pytest.raises(ConfigError) as problem:
        blob_job(**{key: getattr(config, key).model_dump(exclude_unset=True) for key in settings})
    assert all(word in str(problem.value) for word in words), problem.value


@pytest.mark.parametrize(
    ("sampling", "words"),
    [
        ({"name": "uniform", "num_clients": 2, "options": {"a": 1}}, "options.a: uniform has no"),
        ({"name": "ocs", "budget": 1.0, "options": {"a": 1}}, "does not use options"),
        ({"name": f"{OWN}Turns", "norms": "last"}, "does not use norms"),
        ({"name": f"{OWN}f", "budget": 1.0, "match_budget": True}, "match_budget"),
        ({"name": "tuns"}, "there is no sampler 'tuns'.*import path"),
    ],
)
def test_settings_without_effect(sampling, words):
    with pytest.raises(ConfigError, match=words):
        parse_config({"sampling": sampling})


@pytest.mark.parametrize(
    ("server", "words"),
    [
        ({"aggregation": "mean", "options": {"a": 1}}, "options.a: mean has no such option"),
        ({"aggregation": "trimmed-mean", "options": {"trim": 0.9}}, "options.trim: .*itself"),
        ({"aggregation": f"{OWN}OwnMean", "options": {"min_contributors": 2}}, "itself"),
        ({"aggregation": f"{OWN}OwnMean", "trim": 0.3}, "does not use trim"),
        ({"aggregation": "meen"}, "server.aggregation: there is no 'meen'.*'mean'.*import"),
    ],
)
def test_rules_without_such_options(server, words):
    with pytest.raises(ConfigError, match=words):
        parse_config({"server": server})


@pytest.mark.parametrize(
    ("sampling", "words"),
    [
        ({"options": {"how": "raise"}}, r"Wrong' failed in .*own_code.py, line \d+: ZeroDivision"),
        ({"options": {"how": "short"}}, r"shape \(1,\).*from 0 to 1"),
        ({"options": {"how": "large"}}, r"\[1\.5, 1\.5, 1\.5\].*from 0 to 1"),
        ({"options": {"how": "nan"}}, "nan.*from 0 to 1"),
        ({"options": {"how": "twice"}}, r"drew \[0, 0\]"),
        ({"options": {"how": "outside"}}, r"drew \[5\].*0 to 4"),
        ({"options": {"how": "impossible"}}, "drew client 1, whose probability is 0"),
        ({"name": f"{OWN}broken_rule", "budget": 1.0}, "from 0 to 1"),
    ],
)
@pytest.mark.filterwarnings("ignore:divide by zero")
def test_a_sampler_that_answers_nonsense_ends_the_run_in_words(sampling, words):
    with pytest.raises(RunError, match=words):
        sampling_federation(**{"name": f"{OWN}Wrong", **sampling}).run()


@pytest.mark.parametrize(("how", "words"), [("nan", "not finite"), ("raise", "ZeroDivisionError")])
def test_a_rule_that_answers_nonsense_ends_the_run_in_words(how, words):
    server = {"aggregation": f"{OWN}Careless", "options": {"how": how}}
    with pytest.raises(RunError, match=f"server.aggregation: .*{words}"):
        rule_federation(**server).run()


def test_what_it_says_of_itself_is_used():
    job = blob_job(server={"aggregation": "median"},
                   sampling={"name": f"{OWN}Turns", "options": {"groups": 5}})  # fmt: skip
    assert any("on average" in text for text in coverage_warnings(job.config, job.plan))


def test_reading_a_run_imports_nothing(tmp_path, monkeypatch):
    job = blob_job(sampling={"name": f"{OWN}Turns"}, server={"aggregation": f"{OWN}OwnMean"})
    folder = run_folder(tmp_path / "run", job)
    monkeypatch.delitem(sys.modules, "tests.support.own_code")
    assert RunFolder.open(folder.path).config().sampling.name == f"{OWN}Turns"
    load_config(folder.path / "config.toml")
    assert "tests.support.own_code" not in sys.modules
