"""Runs on disk."""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import time
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import pytest
import torch
from safetensors.torch import load_file

from fedplt import RunError, load
from fedplt.configuration.config_file import override
from fedplt.data.samples import TensorSamples
from fedplt.errors import DamagedError
from fedplt.federation.run_folder import lock as locks
from fedplt.federation.run_folder.checkpoint import Checkpoint
from fedplt.federation.run_folder.folder import RunFolder
from fedplt.federation.run_folder.records import RoundRecord, Totals
from tests.support.jobs import blob_job, created, run_folder, small_model
from tests.support.processes import Forked
from tests.support.runs import run_job, same

MODEL = "model.safetensors"


def record(number):
    return RoundRecord(number, 5, 1.0, Totals(1, 2, 3, 4.0), Totals(1, 2, 3, 4.0), 0.1, score=0.5)


@pytest.fixture
def job():
    return blob_job()


@pytest.fixture
def folder(tmp_path, job):
    folder = run_folder(tmp_path / "run", job)
    state = torch.arange(job.layers.state_size, dtype=torch.float32)
    folder.save_checkpoint(job, Checkpoint(state, 3, Totals(7, 8, 9, 1.0)))
    return folder


def test_checkpoints_come_back(folder, job):
    saved = folder.load_checkpoint(job)
    assert saved.state.tolist() == list(range(job.layers.state_size))
    assert (saved.rounds_done, saved.total) == (3, Totals(7, 8, 9, 1.0))
    assert folder.plan() == job.plan
    assert folder.config().model_copy(update={"code": job.config.code}) == job.config


def test_existing_runs_are_never_overwritten(folder, job):
    with pytest.raises(RunError, match="fedplt resume"):
        created(folder.path, job)


def test_a_changed_configuration_is_refused_by_name(folder, job):
    def changed(*overrides):
        return replace(job, config=override(job.config, overrides))

    with pytest.raises(RunError) as error:
        folder.load_checkpoint(changed("training.batch_size=8", "seed=9"))
    assert "training.batch_size was 16, is 8" in str(error.value)
    assert "seed was 0, is 9" in str(error.value)
    longer = changed("rounds=99", "engine.workers=2", "checkpoint_every=1")
    assert folder.load_checkpoint(longer).rounds_done == 3
    with pytest.raises(RunError, match="3 are done already"):
        folder.load_checkpoint(changed("rounds=2"))


def test_changed_data_is_refused(folder, job):
    other = replace(job, samples=TensorSamples(job.samples.inputs + 1, job.samples.targets))
    with pytest.raises(RunError, match="training data or its split"):
        folder.load_checkpoint(other)
    offsets = job.offsets.copy()
    offsets[1] += 1
    with pytest.raises(RunError, match="training data or its split"):
        folder.load_checkpoint(replace(job, offsets=offsets))


def test_another_model_is_refused(folder, job):
    other = blob_job(model=torch.nn.Linear(6, 3))
    with pytest.raises(RunError, match="belongs to plan"):
        folder.load_checkpoint(replace(job, plan=other.plan))


def test_damaged_checkpoints_are_refused(folder, job):
    path = folder.path / "checkpoint.safetensors"
    for data in (b"", b"\x80\x04junk", path.read_bytes()[:50]):
        path.write_bytes(data)
        with pytest.raises(DamagedError, match="cannot be resumed"):
            folder.load_checkpoint(job)


def test_a_record_cut_short_is_left_out(folder):
    for number in (1, 2, 3, 4):
        folder.append(record(number))
    with (folder.path / "rounds.jsonl").open("a") as out:
        out.write('{"round": 5, "num_cl')
    assert [r.round for r in folder.rounds()] == [1, 2, 3, 4]
    assert [r.round for r in folder.records_file.keep(3)] == [1, 2, 3]
    assert len((folder.path / "rounds.jsonl").read_text().splitlines()) == 3
    assert folder.rounds()[0] == record(1)


def test_damaged_records_are_named_and_resume_goes_on_without_them(folder):
    for number in (1, 2, 3):
        folder.append(record(number))
    path = folder.path / "rounds.jsonl"
    path.write_text(path.read_text().replace('{"round": 2', '{"round": 7'))
    with pytest.raises(DamagedError, match="line 2 is not what fedplt wrote"):
        folder.rounds()
    with pytest.warns(UserWarning, match=r"no record of round 2 .*line 2"):
        assert [r.round for r in folder.records_file.keep(3)] == [1, 3]
    assert [r.round for r in folder.rounds()] == [1, 3]


@pytest.mark.parametrize(
    ("key", "value"), [("format", -1), ("cost", {}), ("total", {"bytes_up": 1}), ("seconds", None)]
)
def test_a_record_says_what_a_run_writes_also_with_a_right_seal(key, value):
    values = record(1).to_json()
    assert RoundRecord.from_json(values) == record(1)
    with pytest.raises(DamagedError, match=key):
        RoundRecord.from_json({**values, key: value})


@pytest.mark.parametrize("text", ["", "[1]", "{", '"x"', "\xff"])
def test_what_fedplt_did_not_write_is_refused(folder, text):
    for name, reader in (("result.json", folder.history), ("plan.json", folder.plan)):
        (folder.path / name).write_text(text, encoding="latin-1")
        with pytest.raises(DamagedError, match=name):
            reader()


def test_one_writer_at_a_time(folder):
    folder.lock()
    with pytest.raises(RunError, match=f"in use by process {os.getpid()}"):
        RunFolder.open(folder.path).lock()  # another thread of this process
    assert f"is in use by process {os.getpid()}" in _lock_elsewhere(folder.path)
    folder.unlock()
    assert _lock_elsewhere(folder.path) == "locked"


def _lock_elsewhere(path):
    """What another process hears when it wants to write to the folder."""

    def take():
        locks._held.clear()  # what this process holds, another does not know
        try:
            locks.take_lock(path).close()
            print("locked")
        except RunError as error:
            print(error)

    with Forked(take, stderr=sys.stderr) as process:
        return process.stdout.read().strip()


@pytest.fixture
def unbegun(tmp_path, job):
    """What a run leaves that was killed before its first checkpoint was written."""
    folder = run_folder(tmp_path / "unbegun", job)
    (folder.path / ".checkpoint.safetensors.123.part").write_bytes(b"half of it")
    return folder


def test_a_run_that_never_began_can_be_started_again(unbegun, job):
    assert not RunFolder.has_begun(unbegun.path)
    with pytest.raises(RunError, match=r"never began.*fedplt run .*config\.toml.* --out"):
        unbegun.load_checkpoint(job)
    other = replace(job, config=override(job.config, ["seed=7"]))
    again = created(unbegun.path, other)
    assert again.config().seed == 7
    names = {path.name for path in again.path.iterdir()}
    assert names == {"config.toml", "plan.json", "metric.json", ".lock"}
    again.save_checkpoint(other, Checkpoint(torch.zeros(job.layers.state_size), 0, Totals()))
    assert RunFolder.has_begun(again.path)
    again.unlock()


@pytest.mark.parametrize("name", ["checkpoint.safetensors", "rounds.jsonl", "notes.txt"])
def test_a_folder_with_anything_else_is_kept(unbegun, job, name):
    (unbegun.path / name).touch()
    before = (unbegun.path / "config.toml").read_bytes()
    with pytest.raises(RunError, match="already exists"):
        created(unbegun.path, replace(job, config=override(job.config, ["seed=7"])))
    assert (unbegun.path / "config.toml").read_bytes() == before
    assert RunFolder.has_begun(unbegun.path) == (name != "notes.txt")
    assert _lock_elsewhere(unbegun.path) == "locked"  # it was given back


@pytest.mark.parametrize("name", ["config.toml", ".music.part"])
def test_a_folder_of_the_users_own_is_kept(tmp_path, job, name):
    (tmp_path / name).write_text("mine")
    with pytest.raises(RunError, match="already exists"):
        created(tmp_path, job)
    assert {path.name for path in tmp_path.iterdir()} == {name}


def test_a_run_that_is_just_starting_is_not_disturbed(unbegun, job):
    other = replace(job, config=override(job.config, ["seed=7"]))
    before = {path: path.read_bytes() for path in unbegun.path.iterdir() if path.name != ".lock"}
    with _locked_elsewhere(unbegun.path) as process:
        with pytest.raises(RunError, match=f"in use by process {process.pid}"):
            created(unbegun.path, other)
        assert all(path.read_bytes() == data for path, data in before.items())
        process.send_signal(signal.SIGKILL)
        process.wait()
    again = created(unbegun.path, other)
    assert again.config().seed == 7
    again.unlock()


def test_a_run_that_begins_meanwhile_is_not_overwritten(unbegun, job, monkeypatch):
    """Another run may begin and end between the first look and the lock."""
    lock = RunFolder.lock

    def late(self):
        (unbegun.path / "rounds.jsonl").touch()
        lock(self)

    monkeypatch.setattr(RunFolder, "lock", late)
    with pytest.raises(RunError, match="already exists"):
        created(unbegun.path, job)


@contextmanager
def _locked_elsewhere(path):
    """Another process has the lock, for as long as it lives."""

    def hold():
        lock = locks.take_lock(path)
        print("locked", flush=True)
        time.sleep(600)
        lock.close()

    with Forked(hold, stderr=sys.stderr) as process:
        try:
            assert process.stdout.readline() == "locked\n"
            yield process
        finally:
            process.send_signal(signal.SIGKILL)


def test_what_is_no_run_folder(tmp_path):
    with pytest.raises(RunError, match="not a run folder"):
        RunFolder.open(tmp_path)


def test_the_final_model_is_plain_safetensors(folder):
    for round in (1, 2, 3):
        folder.append(record(round))
    folder.finish({MODEL: {"a.weight": torch.ones(2)}}, {"rounds": 3, "test_score": 0.5})
    assert load_file(folder.path / "model.safetensors")["a.weight"].tolist() == [1, 1]
    assert json.loads((folder.path / "result.json").read_text())["test_score"] == 0.5
    assert folder.history().test_score == 0.5
    folder.append(record(4))
    with pytest.raises(DamagedError, match=r"result.json is of round 3, but the run has 4"):
        folder.history()
    folder.reopen()
    assert not (folder.path / "model.safetensors").exists()
    assert not list(folder.path.glob(".*.part"))


@pytest.mark.parametrize(("ship", "other"), [(True, "last"), (False, "average")])
def test_both_models_of_an_average_are_written_and_come_back(tmp_path, ship, other):
    """Also after a stop in between, and where the run is extended."""
    job = partial(blob_job, server={"average": {"window": 3, "ship": ship}}, checkpoint_every=2)
    path, names = tmp_path / "run", ("model.safetensors", f"{other}.safetensors")
    run_job(job(rounds=5), tmp_path / "whole")
    whole = [load_file(tmp_path / "whole" / name) for name in names]
    last, average = whole[::-1] if ship else whole
    assert not torch.equal(last["0.weight"], average["0.weight"])

    def stop(record):
        if record.round == 3:
            raise RunError("stop")

    with pytest.raises(RunError, match="stop"):
        run_job(job(rounds=4), path, on_round=stop)
    run_job(job(rounds=4), path, resume=True)
    run_job(job(rounds=5), path, resume=True)
    for name, tensors in zip(names, whole, strict=True):
        assert same(load_file(path / name), tensors)
    models = {which: load(path, model=small_model(), which=which) for which in ("last", "average")}
    assert same(models["last"].state_dict(), last)
    assert same(models["average"].state_dict(), average)
    (path / names[1]).write_bytes((path / names[1]).read_bytes()[:-1] + b"?")
    with pytest.raises(DamagedError, match=rf"{other}.safetensors .*'fedplt resume .*' writes it"):
        RunFolder.open(path).check_models()
    run_job(job(rounds=5), path, resume=True)
    assert same(load_file(path / names[1]), whole[1])
    with pytest.raises(RunError, match="there is no model 'other'"):
        load(path, model=small_model(), which="other")


def test_without_an_average_the_final_model_is_the_last(tmp_path):
    run_job(blob_job(rounds=1), tmp_path / "run")
    models = [path.name for path in (tmp_path / "run").glob("*.safetensors")]
    assert not {"last.safetensors", "average.safetensors"} & set(models)
    found = load(tmp_path / "run", model=small_model(), which="last").state_dict()
    assert same(found, load_file(tmp_path / "run" / MODEL))
    with pytest.raises(RunError, match=r"average.safetensors does not exist. Set server.average"):
        load(tmp_path / "run", model=small_model(), which="average")


def test_a_run_that_was_never_evaluated_can_be_read(folder):
    """Nodes may refuse to evaluate, or report losses whose mean is infinite."""
    numbers = {"score_last": math.nan, "score_last_10": math.nan, "test_loss": math.inf}
    folder.finish({MODEL: {"weight": torch.ones(2)}}, {"rounds": 3, **numbers})
    assert folder.result().score_last is None and folder.result().rounds == 3


def test_runs_that_end_with_the_same_bits_say_so(tmp_path):
    def digest(name, **settings):
        run_job(blob_job(rounds=1, **settings), tmp_path / name)
        return json.loads((tmp_path / name / "result.json").read_text())["weights_sha256"]

    assert digest("one") == digest("two") != digest("three", seed=1)
    first, second = (tmp_path / name / "model.safetensors" for name in ("one", "two"))
    assert first.read_bytes() != second.read_bytes()  # each is sealed as its run's


def test_overwrite_deletes_a_run_and_nothing_else(folder, job):
    folder.append(record(1))
    folder.finish({MODEL: {"a.weight": torch.ones(2)}}, {"rounds": 3})
    folder.save_model("best.safetensors", {"a.weight": torch.ones(2)}, 1)
    (folder.path / "notes.txt").write_text("mine")
    first = folder.run
    new = created(folder.path, job, overwrite=True)
    new.unlock()
    assert new.run != first and not RunFolder.has_begun(folder.path)
    left = {path.name for path in folder.path.iterdir()}
    assert left == {".lock", "config.toml", "plan.json", "metric.json", "notes.txt"}


def test_overwrite_refuses_what_is_no_run_and_a_run_in_use(folder, job, tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "config.toml").write_text("")
    with pytest.raises(RunError, match="already exists"):
        created(tmp_path / "photos", job, overwrite=True)
    with _locked_elsewhere(folder.path), pytest.raises(RunError, match="in use by process"):
        created(folder.path, job, overwrite=True)
    assert RunFolder.has_begun(folder.path)
