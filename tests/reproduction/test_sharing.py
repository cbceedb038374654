"""Runs are found by their id, whichever experiment recorded them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from reproduction.catalog import EXPERIMENTS
from reproduction.runner import Place, missing_runs, seconds_left
from reproduction.tables import load_results
from tests.support.recorded import fake_recorded, flat

PAIR = "fashion-fcn"
EXP1, EXP2 = (EXPERIMENTS[name].blocks[PAIR] for name in ("exp1", "exp2"))


@pytest.fixture
def place(tmp_path):
    """FedAvg's seeds 2 and 3 were recorded by experiment 2, the others by experiment 1."""
    place = Place(tmp_path / "runs", tmp_path / "results")
    ours = flat([0.80, 0.81, 0.82])
    theirs = flat([0.90, 0.91, 0.92, 0.93])
    own = fake_recorded("exp1", PAIR, {"fedavg": {1: theirs[1]}, "balanced": ours})
    own.save(place.runs_file(EXP1))
    others = {seed: theirs[seed] for seed in (2, 3, 4)}
    other = fake_recorded("exp2", PAIR, {"fedavg": others, "fedplt": {2: ours[2]}})
    other.save(place.runs_file(EXP2))
    return place


def test_a_run_of_another_experiment_is_not_repeated(place):
    missing = missing_runs(EXP1, place, [1, 2, 3], 300)
    assert not [key for key in missing if key[0] in ("fedavg", "balanced")]
    assert ("mild", 1) in missing
    assert ("fedavg", 1) not in missing_runs(EXP2, place, [1, 2], 300)
    assert ("fedavg", 5) in missing_runs(EXP2, place, [5], 300)


def test_the_longer_of_two_records_counts(place):
    assert ("fedavg", 2) not in missing_runs(EXP1, place, [2], 300)
    short = fake_recorded("study", PAIR, {"fedavg": {2: flat([0.9, 0.91], 10)[2]}})
    short.save(place.runs_file(EXPERIMENTS["study"].blocks[PAIR]))
    assert ("fedavg", 2) not in missing_runs(EXP1, place, [2], 300)


def test_tables_show_it_for_the_seeds_of_the_others(place):
    results = load_results(place.results)
    assert sorted(results["exp1", PAIR].runs["fedavg"]) == [1, 2, 3]  # balanced has no seed 4
    assert results["exp1", PAIR].runs["fedavg"][3].accuracy[-1] == 0.92
    assert sorted(results["exp2", PAIR].runs["fedavg"]) == [2]
    assert sorted(results["exp2", PAIR].runs["fedplt"]) == [2]


def test_a_block_prefers_its_own_record_of_a_run(place):
    """The same run on another kind of processor: each block pairs it with its own others."""
    again = flat([0.70, 0.71], processor="another")
    own = fake_recorded("exp2", PAIR, {"fedavg": again, "fedplt": again})
    own.save(place.runs_file(EXP2))
    results = load_results(place.results)
    assert results["exp1", PAIR].runs["fedavg"][1].processor != "another"
    assert results["exp2", PAIR].runs["fedavg"][1].processor == "another"


def test_runs_of_another_version_count_no_more(place, monkeypatch):
    newer = replace(EXP1, setting=replace(EXP1.setting, version=2))
    monkeypatch.setitem(EXPERIMENTS["exp1"].blocks, PAIR, newer)
    assert len(missing_runs(newer, place, [1, 2, 3], 300)) == 3 * len(EXP1.contestants)
    assert not any(load_results(place.results)["exp1", PAIR].runs.values())
    assert sorted(load_results(place.results)["exp2", PAIR].runs["fedavg"]) == [2]


def test_a_longer_run_without_its_folder_begins_anew(place):
    block = replace(EXP1, contestants=EXP1.contestants[:2])
    whole = 400 * 1.0 * 6  # six runs at one second a round
    assert seconds_left(block, place, [1, 2, 3], 400, 1) == pytest.approx(whole)
