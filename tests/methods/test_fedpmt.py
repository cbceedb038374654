"""FedPMT: whole layers from the output down; nothing below is touched."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from fedplt import ConfigError, cut, train_only
from fedplt.methods import PlanRequest, make_method
from fedplt.methods.fedpmt import FedPMT, from_input_to_output
from fedplt.models import VisionTransformer
from fedplt.models import fcn as fcn_model
from fedplt.planning.flops import exact_flops
from tests.support.image_jobs import image_job, trained


def test_the_papers_depths(fcn):
    plan = make_method("fedpmt").plan(PlanRequest(fcn, [0.06, 0.29, 1.0, 0.001, 0.2]))
    trained = (plan.counts > 0).astype(int).tolist()
    assert trained == [[0, 0, 1, 1], [0, 1, 1, 1], [1, 1, 1, 1], [0, 0, 0, 1], [0, 1, 1, 1]]
    assert plan.achieved_ratios[:2] == pytest.approx([0.0602, 0.2917], abs=1e-3)
    assert all(np.all((c == 0) | (c == fcn.num_sublayers)) for c in plan.counts)


def test_last_means_nearest_the_output_not_registered_last():
    class Swapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.head, self.body = nn.Linear(5, 2), nn.Linear(4, 5)

        def forward(self, x):
            return self.head(torch.relu(self.body(x)))

    layers = cut(Swapped(), torch.zeros(1, 4))
    plan = make_method("fedpmt").plan(PlanRequest(layers, [0.3]))
    assert dict(zip(("head", "body"), plan.counts[0].tolist(), strict=True)) == {
        "head": 2, "body": 0,
    }  # fmt: skip


def test_no_gradient_goes_below_the_depth():
    made = image_job("fedpmt", "fcn", ratios=[0.05])
    model, assignment = made.model, made.plan.assignment(0)
    with train_only(model, assignment):
        model(torch.randn(4, 1, 8, 8)).sum().backward()
    assert assignment.counts == (0, 0, 3)
    assert all(p.grad is None for p in model.fc1.parameters())
    flops = exact_flops(assignment)
    assert flops.input_gradients == 0  # FedPLT's would flow through every layer


def test_it_costs_less_than_fedplt_at_the_same_ratio():
    layers = cut(fcn_model(), torch.zeros(1, 784))
    flops = {}
    for method in ("fedpmt", "fedplt"):
        plan = make_method(method).plan(PlanRequest(layers, [0.0602]))
        assert plan.achieved_ratios[0] == pytest.approx(0.0602, abs=1e-3)
        flops[method] = exact_flops(plan.assignment(0))
    assert flops["fedpmt"].weight_gradients == pytest.approx(flops["fedplt"].weight_gradients, 0.01)
    assert flops["fedpmt"].input_gradients < flops["fedplt"].input_gradients


def test_frozen_norms_use_their_running_statistics():
    seen = []
    made = image_job("fedpmt", "resnet8", ratios=[0.01])
    made.model.stem_norm.register_forward_pre_hook(lambda m, i: seen.append(m.training))
    before = made.model.stem_norm.running_mean.clone()
    from fedplt.client.local_training import train_client

    train_client(
        made.model, made.plan.assignment(0), made.samples, made.examples(0), made.training,
        learning_rate=0.1, seed=0, round=0, client=0,
    )  # fmt: skip
    assert seen and not any(seen)
    assert torch.equal(made.model.stem_norm.running_mean, before)
    assert not trained("fedpmt", "resnet8")[0].model.stem_norm.weight.isnan().any()


class Recurrent(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.head, self.scale = torch.nn.Linear(6, 3), torch.nn.Parameter(torch.ones(6))
        self.lstm, self.first = torch.nn.LSTM(5, 6, batch_first=True), torch.nn.Linear(4, 5)

    def forward(self, x):
        return self.head(self.lstm(self.first(x))[0][:, -1] * self.scale)


def test_whatever_a_layer_is_the_head_comes_last():
    """Registered in another order; LSTM and scale are no modules of a known kind."""
    layers = cut(Recurrent(), torch.randn(2, 3, 4))
    names = [layers[index].name for index in from_input_to_output(layers)]
    assert names[0] == "first" and names[-1] == "head"
    assert set(names[1:3]) == {"lstm", "scale"}
    vit = cut(VisionTransformer(8, 4, 1, width=8, depth=1, num_heads=2), torch.zeros(2, 1, 8, 8))
    names = [vit[index].name for index in from_input_to_output(vit)]
    assert set(names[:3]) == {"patches", "class_token", "positions"}
    assert names[-2:] == ["norm", "head"]


def test_layers_always_trained_are_trained_at_every_depth():
    layers = cut(fcn_model(num_inputs=8, hidden=(6, 6)), torch.zeros(2, 8), always=["fc1"])
    plan = FedPMT().plan(PlanRequest(layers, [0.6, 1.0]))
    assert (plan.counts[:, 0] == 6).all()
    assert plan.counts[0].tolist() == [6, 0, 10]


def test_static_norms_are_refused():
    with pytest.raises(
        ConfigError, match="frozen normalization layers use their running statistics"
    ):
        image_job("fedpmt", "resnet8", options={"static_norm": True})
