"""Norms that stay with the clients."""

from __future__ import annotations

import contextlib

import pytest
import torch
from safetensors.torch import load_file

from fedplt import ConfigError, train_only
from fedplt.federation.engine import Interrupted
from fedplt.methods import make_method
from fedplt.methods.method import norm_tensors
from fedplt.planning.assignment import SliceAssignment
from fedplt.server.validation import validate
from tests.support.image_jobs import TRAINS_SUBMODELS, image_job, plan_request, reference, trained
from tests.support.runs import run_job, same

SOME = {"name": "uniform", "num_clients": 2}


def trained_names(assignment):
    segments = assignment.layers.tensor_segments(assignment.slices)
    return {tensor.name for tensor, _, _, _ in segments}


def is_norm(name):
    return "norm" in name


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedplt", "fedavg", "fedpmt"])
def test_norms_never_leave_any_methods_clients(method, tmp_path):
    made = image_job(method, "resnet8", options={"local_norms": True}, sampling=SOME)
    before = {name: value.clone() for name, value in made.model.state_dict().items()}
    history = run_job(made, tmp_path / "run")
    for name, value in made.model.state_dict().items():
        if is_norm(name):
            assert torch.equal(value, before[name]), name
    assert not torch.equal(made.model.fc.weight, before["fc.weight"])
    local = load_file(tmp_path / "run" / "checkpoint.safetensors")["local"]
    initial = torch.cat(
        [before[s.name].reshape(-1) for _, _, s in made.layers.placed if is_norm(s.name)]
    )
    seen = {client for round in history.rounds for client in round.sampling["chosen"]}
    for client in range(4):
        moved = local[client] != initial
        assert bool(moved.any()) == (client in seen), client
        statistics = torch.cat(
            [
                torch.full((s.num_elements,), s.is_buffer)
                for _, _, s in made.layers.placed
                if is_norm(s.name)
            ]
        )
        # Also those of channels that the client does not train: nobody else tells it.
        assert bool(moved[statistics].all()) == (client in seen), client
    assert history.scores[-1] == history.rounds[-1].client_scores["mean"]


def test_updates_and_downloads_are_without_norms():
    plan = make_method("fedbn").full_plan(plan_request("resnet8"))
    norms = norm_tensors(plan.layers)
    assert norms == {t.name for _, _, t in plan.layers.placed if is_norm(t.name)}
    size = sum(t.num_elements for _, _, t in plan.layers.placed if t.name not in norms)
    assert plan.assignment(0).update_size == plan.update_sizes[0] == size
    assert norm_tensors(plan_request("fcn").layers) == frozenset()


@pytest.mark.parametrize("method", TRAINS_SUBMODELS)
def test_clients_of_sub_models_have_no_norms_of_the_whole_model(method):
    with pytest.raises(ConfigError, match="holds only a part of the model"):
        image_job(method, "resnet8", options={"local_norms": True})


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedbn", "fedplt", "fedpmt"])
def test_norms_survive_a_stop(method, tmp_path):
    options = {"local_norms": True}

    def locals_of(folder):
        return load_file(folder / "checkpoint.safetensors")["local"]

    def make(**settings):
        return image_job(method, "resnet8", options=options, sampling=SOME, **settings)

    run_job(make(), tmp_path / "whole")

    def stop(record):
        raise Interrupted

    stopped = tmp_path / "stopped"
    with pytest.raises(Interrupted):
        run_job(make(), stopped, on_round=stop)
    run_job(make(workers=2), stopped, resume=True)
    assert torch.equal(locals_of(tmp_path / "whole"), locals_of(stopped))


def test_without_norms_it_is_fedavg():
    assert same(trained("fedbn", "cnn")[1], reference("fedavg", "cnn"))


def test_clients_may_be_evaluated_on_a_part_of_the_data(monkeypatch):
    from fedplt.client import evaluation
    from fedplt.engines.simulator import engine
    from fedplt.federation import evaluation as of_rounds

    for module in (evaluation, of_rounds):
        monkeypatch.setattr(module, "CHUNK", 10)  # 30 examples are three chunks
    made = image_job("fedbn", "resnet8", evaluation={"client_examples": 20})
    with contextlib.closing(engine.SimulatorEngine(made)) as running:
        ones = {name: torch.ones_like(t) for name, t in running.local_tensors().items()}
        running.restore_local(ones)
        state = torch.zeros(made.layers.state_size)
        results = list(running.evaluate_clients("validation", state, range(4)).values())
        assert [result.label_counts.sum() for result in results] == [20] * 4
        assert of_rounds.evaluation_chunks(made, 3, 2) == [0, 2]
        assert running.evaluate("validation", state).label_counts.sum() == 30


def test_a_loop_of_ones_own_sends_no_norms_either():
    made = image_job("fedplt", "resnet8", options={"local_norms": True})
    assignment = made.plan.assignment(1)
    with train_only(made.model, assignment) as part:
        optimizer = torch.optim.SGD(part.parameters(), lr=0.1)
        made.model(torch.randn(4, 1, 8, 8)).square().sum().backward()
        optimizer.step()
    update = part.update()
    validate(update, assignment)
    whole = SliceAssignment(made.layers, assignment.slices)
    assert len(update.values) == assignment.update_size < whole.update_size
    assert part.num_trained == whole.num_trained
