"""Run folders: the checkpoint before, lost records, foreign files, links, moves, full disks."""

from __future__ import annotations

import errno
import os
import shutil
import sys

import pytest
from tools.reliability.small_run import (
    broken_run,
    copy_of,
    extended_run,
    look,
    make_engine,
    resume,
    same_state,
    small_job,
    whole_run,
)

from fedplt import RunError, evaluate, load, load_history
from fedplt.cli.runs import write_report
from fedplt.engines.simulator.interprocess import _refuse_too_much
from fedplt.errors import DamagedError
from fedplt.federation import RunFolder
from fedplt.federation.run_folder.sealed import load_tensors, seal_json
from fedplt.report.watch import listed_run
from tests.support.jobs import blobs, small_model
from tests.support.runs import run_job


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A broken run (5 of 6 rounds, checkpoint after 4), a whole one, and another's.

    The whole one had ended after four rounds; ``earlier`` is its folder of then.
    """
    place = tmp_path_factory.mktemp("runs")
    broken_run(place / "broken")
    extended_run(place / "whole", place / "earlier")
    whole_run(place / "other", seed=7)
    return place


@pytest.fixture
def broken(runs, tmp_path):
    return copy_of(runs / "broken", tmp_path / "run")


@pytest.fixture(scope="module")
def goal(runs):
    return resume(copy_of(runs / "broken", runs / "goal")).values


def test_the_checkpoint_before_is_used(broken, goal):
    path = broken / "checkpoint.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    found = resume(broken)
    expected = "goes on from the checkpoint before, after round 2"
    assert any(expected in text for text in found.messages)
    assert same_state(found.values[0], goal[0]) and found.values[1] == goal[1]
    assert load_tensors(broken / "checkpoint.previous.safetensors", "checkpoint")


def test_one_good_checkpoint_is_there_even_if_the_next_write_fails(broken, monkeypatch):
    """The damaged checkpoint must not push out the good one before it."""
    (broken / "checkpoint.safetensors").write_bytes(b"")

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("fedplt.federation.run_folder.sealed.save_file", full)
        found = resume(broken)
    assert "cannot be written: No space left on device" in found.messages[0]
    assert "fedplt resume" in found.messages[0]
    assert not resume(broken).refused


def test_a_full_disk_is_said_in_words(broken, monkeypatch):
    """safetensors says it with an error of its own."""
    from safetensors import SafetensorError

    def full(*_, **__):
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("fedplt.federation.run_folder.sealed.save_file", full)
    found = resume(broken)
    assert "checkpoint.safetensors cannot be written: I/O error: No space left" in found.messages[0]


def test_lost_records_are_named(broken, goal):
    path = broken / "rounds.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:1] + lines[3:]))
    found = resume(broken)
    assert any("no record of rounds 2 to 3" in text for text in found.messages)
    assert same_state(found.values[0], goal[0])


def test_parts_of_killed_writes_are_removed(broken):
    (broken / ".checkpoint.safetensors.123.part").write_bytes(b"half")
    assert not resume(broken).refused
    assert not list(broken.glob(".*.part"))


@pytest.mark.parametrize("name", ["rounds.jsonl", "plan.json", "result.json", "model.safetensors"])
def test_files_of_another_run_are_noticed(runs, tmp_path, name):
    folder = copy_of(runs / "whole", tmp_path / "run")
    shutil.copy(runs / "other" / name, folder / name)
    seen = look(folder)
    assert seen.refused and "belongs to another run" in seen.messages[0]


def test_a_config_that_was_deleted_is_written_again(broken, goal):
    text = (broken / "config.toml").read_text()
    (broken / "config.toml").unlink()
    found = resume(broken)
    assert (broken / "config.toml").read_text() == text
    assert any("written again" in text for text in found.messages)
    assert same_state(found.values[0], goal[0])


def test_the_lock_is_no_link(broken, tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (broken / ".lock").unlink()
    (broken / ".lock").symlink_to(victim)
    assert "is a link, which is not followed" in resume(broken).messages[0]
    assert victim.read_text() == "mine"


def test_records_are_no_link(broken, tmp_path):
    victim = tmp_path / "victim"
    shutil.copy(broken / "rounds.jsonl", victim)
    before = victim.read_bytes()
    (broken / "rounds.jsonl").unlink()
    (broken / "rounds.jsonl").symlink_to(victim)
    assert not resume(broken).refused
    assert victim.read_bytes() == before


def test_a_folder_that_is_moved_during_a_run(tmp_path):
    folder = tmp_path / "run"

    def move(record):
        if record.round == 3:
            folder.rename(tmp_path / "moved")

    with pytest.raises(RunError, match="was moved or deleted while the run was writing"):
        run_job(small_job(), folder, engine=make_engine, on_round=move)
    assert not folder.exists()
    assert not resume(tmp_path / "moved").refused


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_files_of_another_user(broken):
    (broken / "config.toml").chmod(0)
    assert "Permission denied" in look(broken).messages[0]


def test_reading_imports_nothing_that_a_plan_names(runs, tmp_path):
    folder = copy_of(runs / "whole", tmp_path / "run")
    (tmp_path / "evil_module.py").write_text("raise SystemExit('it ran')")
    opened = RunFolder.open(folder)
    values = {**opened.plan().to_json(), "method": {"name": "evil_module:Method"}}
    (folder / "plan.json").write_text(seal_json(values, opened.run, "plan"))
    sys.path.insert(0, str(tmp_path))
    try:
        seen = look(folder)
    finally:
        sys.path.remove(str(tmp_path))
    assert "imports nothing that it names" in seen.messages[0]
    assert "evil_module" not in sys.modules


def test_too_little_shared_memory():
    with pytest.raises(RunError, match="--shm-size"):
        _refuse_too_much(2**62, "/")


def test_a_model_with_flipped_bits_is_noticed(runs, tmp_path):
    folder = copy_of(runs / "whole", tmp_path / "run")
    path = folder / "model.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(DamagedError, match=r"'fedplt resume .*' writes it again"):
        RunFolder.open(folder).check_models()
    assert not resume(folder).refused
    assert path.read_bytes() == data


@pytest.mark.parametrize("name", ["sessions.json", "devices.json"])
@pytest.mark.parametrize("harm", ["edited", "another run's", "a field, sealed"])
def test_damaged_descriptions_are_named_left_out_and_written_again(runs, broken, name, harm):
    path = broken / name
    if harm == "edited":
        path.write_text(path.read_text().replace("1", "2", 1))
    elif harm == "another run's":
        shutil.copy(runs / "other" / name, path)
    else:
        kind = name.removesuffix(".json")
        path.write_text(seal_json({"format": 2, kind: []}, RunFolder.open(broken).run, kind))
    read, resumed = look(broken), resume(broken)
    assert any(name in text and "does without it" in text for text in read.messages)
    assert not read.refused and not resumed.refused
    assert any("begun anew" in text for text in resumed.messages) == (name == "sessions.json")
    assert look(broken).messages == []


@pytest.mark.parametrize("name", ["plan.json", "metric.json"])
def test_a_damaged_plan_or_metric_is_written_again(runs, broken, name):
    shutil.copy(runs / "other" / name, broken / name)
    found = resume(broken)
    assert any(f"{name} belongs to another run" in text for text in found.messages)
    assert not found.refused and look(broken).messages == []


def test_a_damaged_best_model_is_noticed_and_stops_no_run(broken):
    path = broken / "best.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.warns(UserWarning, match=r"best.safetensors is not .* delete it"):
        RunFolder.open(broken).check_models()
    found = resume(broken)
    assert not found.refused and any("better round replaces it" in text for text in found.messages)


@pytest.mark.parametrize("lost", [[0], [2, 3], [5], [4, 5], range(6)])
def test_lost_lines_are_noticed_without_a_resume(runs, tmp_path, lost):
    folder = copy_of(runs / "whole", tmp_path / "run")
    path = folder / "rounds.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for i, line in enumerate(lines) if i not in lost))
    with pytest.warns(UserWarning, match=rf"no record of rounds? {lost[0] + 1}\b"):
        history = load_history(folder)
    assert len(history.rounds) == 6 - len(lost)


def test_a_lost_line_of_a_broken_run_is_noticed_without_a_resume(broken):
    path = broken / "rounds.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:2]))
    with pytest.warns(UserWarning, match=r"no record of round 3"):
        load_history(broken)


@pytest.mark.parametrize(
    "names", [["model.safetensors"], ["result.json"], ["model.safetensors", "result.json"]]
)
def test_earlier_files_of_the_same_run_are_refused(runs, tmp_path, names):
    folder = copy_of(runs / "whole", tmp_path / "run")
    for name in names:
        shutil.copy(runs / "earlier" / name, folder / name)
    for read in (
        lambda: write_report([folder], tmp_path / "page.html"),
        lambda: load(folder, model=small_model()),
        lambda: evaluate(folder, blobs(30), model=small_model()),
    ):
        with pytest.raises(DamagedError, match=r"earlier (file|one).*'fedplt resume"):
            read()
    assert not resume(folder).refused
    assert look(folder).messages == []


def test_an_earlier_configuration_is_refused(runs, tmp_path):
    folder = copy_of(runs / "whole", tmp_path / "run")
    shutil.copy(runs / "earlier" / "config.toml", folder)
    with pytest.raises(DamagedError, match=r"config.toml asks for 4 rounds, but the run has 6"):
        load_history(folder)


def test_an_earlier_model_is_refused_without_a_result(runs, tmp_path):
    folder = copy_of(runs / "whole", tmp_path / "run")
    shutil.copy(runs / "earlier" / "model.safetensors", folder)
    (folder / "result.json").unlink()
    with pytest.raises(DamagedError, match=r"of round 4, but the last recorded round is 6"):
        load(folder, model=small_model())


FILES = [
    "config.toml", "plan.json", "metric.json", "rounds.jsonl", "checkpoint.safetensors",
    "checkpoint.previous.safetensors", "model.safetensors", "best.safetensors", "result.json",
    "sessions.json", "devices.json", ".lock",
]  # fmt: skip


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize("name", FILES)
def test_nobody_waits_for_a_pipe_or_a_device(runs, tmp_path, name, kind):
    folder = copy_of(runs / "whole", tmp_path / "run")
    path = folder / name
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    read, resumed = look(folder), resume(folder)
    listed = listed_run("run", folder)
    said = [*read.messages, *resumed.messages, listed.state]
    is_read = name != "checkpoint.previous.safetensors"  # the newest one is whole
    assert any(name in text for text in said) == is_read
