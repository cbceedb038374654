"""Worker processes: same bits whatever their number, clear words when they fail."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import nn

from fedplt import RunError
from fedplt.engines.simulator.engine import SimulatorEngine
from fedplt.engines.simulator.interprocess import SharedMemory
from fedplt.engines.simulator.worker import Worker
from fedplt.federation.engine import Interrupted
from fedplt.federation.run_folder.folder import RunFolder
from tests.support.jobs import RATIOS, blob_job, small_model
from tests.support.processes import Forked
from tests.support.runs import final_state, run_job, same, without_time

pytestmark = pytest.mark.slow

LAMBDA = lambda outputs, targets: outputs.sum()  # noqa: E731


def normed_model():
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.1), nn.Linear(8, 3))


@pytest.mark.parametrize("make", [small_model, normed_model])
def test_the_number_of_workers_changes_no_bit(make):
    def run(**engine):
        torch.manual_seed(0)
        return final_state(blob_job(model=make(), engine=engine))

    history, state = run(workers=1)
    spawned = {"workers": 2, "start_method": "spawn" if make is normed_model else "fork"}
    for engine in (spawned, {"workers": 3}):
        other_history, other_state = run(**engine)
        assert same(state, other_state)
        assert without_time(history) == without_time(other_history)
    assert history.scores[-1] > history.scores[0]


def test_spawned_workers_share_no_counters():
    """torch.multiprocessing puts the tensors of a spawned worker's model into shared memory."""
    model = normed_model().share_memory()
    Worker(blob_job(model=model), SharedMemory.make(blob_job(model=normed_model())))
    assert not any(t.is_shared() for t in [*model.parameters(), *model.buffers()])


@pytest.mark.parametrize("make", [small_model, normed_model])
def test_fedplt_at_ratio_one_is_fedavg_bit_for_bit(make):
    def run(method, ratios):
        torch.manual_seed(0)
        return final_state(blob_job(ratios, model=make(), method={"name": method}))[1]

    fedavg = run("fedavg", RATIOS)
    assert same(fedavg, run("fedplt", [1.0] * 5))
    assert not same(fedavg, run("fedplt", RATIOS))


def test_learns():
    history, _ = final_state(blob_job(rounds=15))
    assert history.scores[-1] > 0.9
    assert history.test_score > 0.9


def test_groups_and_schedules_set_the_rate():
    groups = [
        {"num_clients": 1, "ratio": 1.0, "learning_rate": 0.3},
        {"num_clients": 4, "ratio": 0.5},
    ]
    clients = {"num_clients": 5, "groups": groups}
    job = blob_job(training={"schedule": "1/t"}, clients=clients)
    assert [job.learning_rate(k, 0) for k in (0, 1, 4)] == pytest.approx([0.3, 0.1, 0.1])
    assert job.learning_rate(1, 3) == pytest.approx(0.025)
    one = final_state(blob_job(rounds=1, clients=clients))[1]
    other = final_state(blob_job(rounds=1))[1]
    assert not same(one, other)


class Counting(nn.Module):
    """Keeps a buffer of its own that every training batch moves."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, x):
        if self.training:
            self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
        return self.layer(x - self.mean)


@pytest.mark.filterwarnings("default")
def test_buffers_of_ones_own_do_not_leak_between_clients():
    def run(workers):
        torch.manual_seed(0)
        return final_state(blob_job(model=Counting(), engine={"workers": workers}))[1]

    assert same(run(1), run(3))


def test_resumes_to_the_same_bits(tmp_path):
    whole_history, whole = final_state(blob_job(rounds=6))
    job = blob_job(rounds=6, checkpoint_every=2)
    folder = tmp_path / "run"

    class Stop(Exception): ...

    def stop(record):
        if record.round == 5:
            raise Stop

    with pytest.raises(Stop):
        run_job(job, folder, on_round=stop)
    again = blob_job(rounds=6, checkpoint_every=2, model=small_model())
    history, state = final_state(again, folder, resume=True)
    assert same(whole, state)
    assert without_time(history) == without_time(whole_history)
    assert without_time(RunFolder.open(tmp_path / "run").history()) == without_time(whole_history)


def test_a_request_to_stop_saves_the_last_round(tmp_path):
    job = blob_job(rounds=50)

    def interrupt(record):
        if record.round == 3:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted):
        run_job(job, tmp_path / "run", on_round=interrupt)
    done = RunFolder.open(tmp_path / "run").load_checkpoint(job).rounds_done
    assert done == 3
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


class Broken(nn.Module):
    """Fine in evaluation, fails in training."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x):
        if self.training:
            raise ValueError("a bug in the user's model")
        return self.layer(x)


def test_a_failing_client_is_named():
    job = blob_job(model=Broken())
    with pytest.raises(RunError, match=r"client \d, round 1 failed: ValueError: a bug in the user"):
        run_job(job)


def test_every_wait_has_a_deadline():
    class Sleepy(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 3)

        def forward(self, x):
            if multiprocessing.parent_process() is not None:  # in a worker, not where it is tried
                time.sleep(30)
            return self.layer(x)

    job = blob_job(model=Sleepy(), engine={"workers": 1, "timeout_seconds": 0.5})
    with pytest.raises(RunError, match=r"fedplt-worker-0 has not answered for 0\.5 s"):
        run_job(job)


def test_spawned_workers_need_picklable_parts():
    job = blob_job(engine={"workers": 1, "start_method": "spawn"})
    for loss in (lambda outputs, targets: outputs.sum(), LAMBDA):
        object.__setattr__(job.training, "loss", loss)
        with pytest.raises(RunError, match="no lambdas"):
            SimulatorEngine(job)


def test_a_run_that_cannot_start_leaves_no_folder(tmp_path):
    job = blob_job(engine={"workers": 1, "start_method": "spawn"})
    object.__setattr__(job.training, "loss", LAMBDA)
    with pytest.raises(RunError):
        run_job(job, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(not os.path.isdir("/proc"), reason="reads /proc")  # noqa: PTH112
def test_workers_end_when_their_parent_is_killed():
    def start_workers():
        engine = SimulatorEngine(blob_job(engine={"workers": 2}))
        print(*[process.pid for process in engine._pool.processes], flush=True)
        time.sleep(60)

    with Forked(start_workers, stderr=sys.stderr) as parent:
        workers = [Path("/proc") / pid for pid in parent.stdout.readline().split()]
        assert len(workers) == 2
        parent.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 20
    while any(_alive(worker) for worker in workers) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not any(_alive(worker) for worker in workers)


def test_an_engine_closed_at_once_leaves_no_worker():
    """As where a run is refused just after its workers were started."""
    old = signal.signal(signal.SIGTERM, lambda *_: None)  # as a run does, to save itself first
    try:
        for _ in range(5):
            SimulatorEngine(blob_job(engine={"workers": 2})).close()
            left = multiprocessing.active_children()
            for process in left:
                process.kill()
            assert not left
    finally:
        signal.signal(signal.SIGTERM, old)


def _alive(process):
    try:
        return ") Z" not in (process / "stat").read_text()
    except OSError:
        return False


@pytest.mark.parametrize(
    "method",
    [
        {"name": "fedbn"},
        {"name": "feddrop"},
        {"name": "fjord"},
        {"name": "fedpart", "full_rounds": 1},
        {"name": "fedrolex", "static_norm": True, "masked_loss": True},
    ],
)
def test_methods_with_more_to_carry_change_no_bit_either(method):
    def run(**engine):
        torch.manual_seed(0)
        return final_state(blob_job(model=normed_model(), method=method, engine=engine))

    history, state = run(workers=1)
    for engine in ({"workers": 3}, {"workers": 1, "start_method": "spawn"}):
        other_history, other_state = run(**engine)
        assert same(state, other_state)
        assert without_time(history) == without_time(other_history)
