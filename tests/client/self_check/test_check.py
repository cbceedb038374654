"""The self-check finds partial training right, and says where it is not."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fedplt
from fedplt import CutError, check, cut, make_plan
from fedplt.client import TrainableSlices, refuse_wrong
from fedplt.kernels import convolution, linear, norm
from fedplt.models import MODELS, build_model
from tests.support.jobs import blobs
from tests.support.zoo import ZOO


@pytest.mark.parametrize("name", ["fcn", "cnn", "resnet8"])
def test_built_in_models_are_right(name):
    example = torch.randn_like(MODELS[name].example())
    report = check(build_model(name, {}, seed=0), example)
    assert report.is_right and report.dtype is torch.float64
    assert 0 < report.worst < 1e-12
    assert "equal to" in str(report)


@pytest.mark.filterwarnings("ignore:not trained")
@pytest.mark.parametrize("name", ZOO)
def test_odd_models_are_right(name):
    make, batch = ZOO[name]
    torch.manual_seed(0)
    assert check(make(), batch(4)).is_right


def test_a_loss_of_ones_own():
    model, seen = nn.Linear(6, 3), []

    def loss(outputs):
        seen.append(outputs.dtype)
        return outputs.sigmoid().sum()

    assert check(model, torch.randn(4, 6), loss, ratios=[0.5]).is_right
    assert set(seen) == {torch.float64}


def test_wrong_kernels_are_found(monkeypatch):
    right = linear.move_rows
    monkeypatch.setattr(linear, "move_rows", lambda t, grad, *rest: right(t, 1.01 * grad, *rest))
    report = check(nn.Linear(6, 3), torch.randn(4, 6))
    assert not report.is_right
    assert "weight (Linear) at ratio 1: off by 0.01" in str(report)


def test_rows_that_must_not_move_are_found(monkeypatch):
    right = convolution._weight_gradient

    def moves_all(geometry, grad, x, rows, start, stop, bias):
        rows._base.add_(1e-30) if rows._base is not None else None
        return right(geometry, grad, x, rows, start, stop, bias)

    monkeypatch.setattr(convolution, "_weight_gradient", moves_all)
    model = nn.Conv2d(3, 8, 3)
    nn.init.zeros_(model.weight)
    report = check(model, torch.randn(2, 3, 5, 5), ratios=[0.3])
    assert "rows that are not trained have moved" in str(report)


class OnlySingle(nn.Linear):
    def forward(self, x):
        assert x.dtype == torch.float32
        return super().forward(x)


def test_models_that_insist_on_their_type():
    report = check(OnlySingle(6, 3), torch.randn(4, 6))
    assert report.is_right and report.dtype is torch.float32


def test_a_run_refuses_to_start_where_it_fails(monkeypatch, tmp_path):
    right = linear.move_rows
    monkeypatch.setattr(linear, "move_rows", lambda t, grad, *rest: right(t, 1.01 * grad, *rest))
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    settings = {"ratios": [0.5] * 3, "rounds": 1, "out": tmp_path / "run"}
    with pytest.raises(CutError, match=r"off by 0\.0[\s\S]*never = \['"):
        fedplt.train(model, blobs(90), blobs(30, 1), **settings)
    assert not (tmp_path / "run").exists()
    fedplt.train(model, blobs(90), blobs(30, 1), **settings, engine={"check": False})


class Averaging(nn.Module):
    """Normalization layers of all kinds, one of them without parameters; buffers of its own."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 3)
        self.norm, self.frozen = nn.BatchNorm1d(8, momentum=None), nn.BatchNorm1d(8)
        self.frozen.requires_grad_(False)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.register_buffer("seen", torch.zeros(0))

    def forward(self, x):
        self.calls += 1
        self.seen = torch.cat([self.seen, x.detach().mean(1).to(self.seen)])
        return self.b(torch.relu(self.frozen(self.norm(self.a(x)))))


def test_what_is_not_planned_is_compared_too():
    torch.manual_seed(0)
    model = Averaging()
    model(torch.randn(4, 6))
    report = check(model, torch.randn(4, 6))
    assert report.is_right and report.worst < 1e-12
    names = {entry.tensor for entry in report.differences}
    assert names == {n for n, _ in [*model.named_parameters(), *model.named_buffers()]}
    assert "frozen.weight (BatchNorm1d) at ratio" in report.tensors
    assert "calls (buffer) at ratio 1: equal to 0e+00, used by add_" in report.tensors


def test_statistics_that_must_not_move_are_found(monkeypatch):
    def moves_all(statistics, mean, var):
        statistics.mean.copy_(mean)
        statistics.var.copy_(var)

    monkeypatch.setattr(norm, "_copy_trained", moves_all)
    monkeypatch.setattr(TrainableSlices, "_restore_statistics", lambda part: None)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    report = check(model, torch.randn(4, 6), ratios=[0.3])
    assert {e.tensor for e in report.wrong} == {"1.running_mean", "1.running_var"}
    assert "rows that are not trained have moved, used by batch_norm" in str(report)


def test_operations_are_named():
    class Transposed(nn.Linear):
        def forward(self, x):
            return super().forward(x) @ self.weight.T.t()

    report = check(Transposed(6, 6), torch.randn(4, 6))
    assert "equal to" in report.tensors and "used by linear, T" in report.tensors


def test_tiny_gradients_in_single_precision():
    report = check(OnlySingle(6, 3), torch.randn(4, 6), lambda outputs: 1e-12 * outputs.sum())
    assert report.is_right and report.dtype is torch.float32


def test_a_few_kinds_of_many_clients():
    model = nn.Sequential(nn.Linear(6, 40), nn.ReLU(), nn.Linear(40, 3))
    example = torch.randn(4, 6)
    plan = make_plan(cut(model, example), [(1 + client % 20) / 20 for client in range(2000)])
    report = check(model, example, plan=plan)
    ratios = sorted({entry.ratio for entry in report.differences})
    assert len(ratios) == 8 and (ratios[0], ratios[-1]) == (min(plan.achieved_ratios), 1.0)
    left_out = len(plan.one_of_each_kind) - 8
    assert report.left_out == left_out > 0
    assert f"{left_out} more kinds of clients were left out" in str(report)


def test_models_that_cannot_be_copied_are_not_decided():
    class Uncopied(nn.Linear):
        def __deepcopy__(self, memo):
            raise TypeError("there is only one of me")

    report = check(Uncopied(6, 3), torch.randn(4, 6))
    assert report.verdict == "not decided" and not report.is_right
    assert "there is only one of me" in str(report)
    refuse_wrong(report)
