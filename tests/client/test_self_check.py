"""The self-check finds partial training right, and says where it is not."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fedplt
from fedplt import CutError, check
from fedplt.kernels import convolution, linear
from fedplt.models import MODELS, build_model
from tests.support.jobs import blobs, small_model
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
    monkeypatch.setattr(linear, "move_rows", lambda t, grad, x: right(t, 1.01 * grad, x))
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
    monkeypatch.setattr(linear, "move_rows", lambda t, grad, x: right(t, 1.01 * grad, x))
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    settings = {"ratios": [0.5] * 3, "rounds": 1, "out": tmp_path / "run"}
    with pytest.raises(CutError, match=r"off by 0\.0[\s\S]*never = \['"):
        fedplt.train(model, blobs(90), blobs(30, 1), **settings)
    assert not (tmp_path / "run").exists()
    fedplt.train(model, blobs(90), blobs(30, 1), **settings, engine={"check": False})


def test_sub_models_are_said_not_to_be_compared():
    model = small_model()
    history = fedplt.train(
        model, blobs(90), blobs(30, 1), ratios=[0.5] * 3, rounds=1, method="heterofl"
    )
    assert len(history.rounds) == 1
