"""Runs of an experiment: recorded, never repeated, extended, continued."""

from __future__ import annotations

import signal
import sys
import time
from dataclasses import replace

import numpy as np
import pytest

from fedplt.configuration.config_file import override
from fedplt.federation.job import job_from_config
from reproduction.recorded import Recorded
from reproduction.runner import Place, missing_runs, record, reproduce, seconds_left
from tests.support.processes import Forked
from tests.support.runs import run_job
from tests.support.small_experiment import SmallBlock, main, small_block

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked_runs")]


@pytest.fixture
def block(monkeypatch):
    monkeypatch.setattr("reproduction.runner.fetch_data_set", lambda name, progress: None)
    return small_block()


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path / "runs", tmp_path / "results")


def test_runs_are_recorded_and_never_repeated(block, place):
    assert len(missing_runs(block, place, [1, 2], 2)) == 4
    assert reproduce(block, place, [1], 2) == {}
    recorded = Recorded.load(place.runs_file(block))
    assert list(recorded.runs) == ["fedavg", "deep-heavy"]
    run = recorded.runs["deep-heavy"][1]
    assert (run.rounds, run.evaluated, len(run.accuracy)) == (2, (1, 2), 2)
    assert run.id == "fashion-fcn-v1/deep-heavy-seed1"
    assert "torch" in run.processor
    assert run.dynamics.rounds == (1, 2)
    assert set(missing_runs(block, place, [1, 2], 2)) == {("fedavg", 2), ("deep-heavy", 2)}
    # More rounds continue; the rounds that were there stay, to the bit.
    assert len(missing_runs(block, place, [1], 3)) == 2
    reproduce(block, place, [1], 3)
    longer = Recorded.load(place.runs_file(block)).runs["deep-heavy"][1]
    assert longer.accuracy[:2] == run.accuracy
    assert longer.rounds == 3
    assert not missing_runs(block, place, [1], 2)


def test_results_alone_are_enough(block, place, tmp_path):
    """Where run folders are gone (another machine), what is recorded counts and stays."""
    reproduce(block, place, [1], 1)
    before = place.runs_file(block).read_bytes()
    elsewhere = Place(tmp_path / "new machine", place.results)
    assert not missing_runs(block, elsewhere, [1], 1)
    record(block, elsewhere)
    assert place.runs_file(block).read_bytes() == before
    # --methods leaves contestants out of the block, not out of the results.
    record(replace(block, contestants=block.contestants[1:]), elsewhere)
    assert place.runs_file(block).read_bytes() == before


def test_a_diverged_run_is_a_result(block, place):
    [fedavg, _] = block.contestants
    wild = replace(fedavg, label="wild")

    class Wild(SmallBlock):
        def config(self, contestant, rounds, seed):
            return override(
                super().config(contestant, rounds, seed), ["training.learning_rate=1e38"]
            )

    block = Wild(block.experiment, block.pair, block.setting, (wild,))
    assert reproduce(block, place, [1], 9) == {}
    assert not missing_runs(block, place, [1], 9)
    assert seconds_left(block, place, [1], 9, 1) == 0


def test_columns_are_kept_exactly(block, place):
    reproduce(block, place, [1], 2)
    recorded = Recorded.load(place.runs_file(block))
    run = recorded.runs["fedavg"][1]
    again = type(run).from_json(run.to_json())
    for name, values in run.costs.items():
        np.testing.assert_array_equal(again.costs[name], values)
    assert again.accuracy == run.accuracy


def test_a_killed_reproduction_continues_to_the_same_numbers(block, place, tmp_path):
    """Killed in mid-run it is started again at once; its orphan saves itself first."""
    process = Forked(main, [place.out, place.results, 40], stdout=sys.stderr, stderr=sys.stderr)
    [_, contestant] = block.contestants
    rounds = place.folder(block, contestant, 1) / "rounds.jsonl"
    _wait_until(lambda: rounds.is_file() and rounds.read_bytes().count(b"\n") > 2)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not place.runs_file(block).exists()
    only = replace(block, contestants=(contestant,))
    assert reproduce(only, place, [1], 40) == {}
    killed = Recorded.load(place.runs_file(block)).runs[contestant.name][1]
    assert killed.rounds == 40
    undisturbed = run_job(job_from_config(block.config(contestant, 40, 1)), tmp_path / "other")
    assert killed.accuracy == tuple(round(value, 6) for value in undisturbed.scores)


def _wait_until(happened):
    for _ in range(1200):
        if happened():
            return
        time.sleep(0.05)
    raise AssertionError("it did not happen within a minute")
