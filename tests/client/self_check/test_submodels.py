"""Sub-models against the whole model with zeros for what is not held."""

from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fedplt
from fedplt import CutError, check, cut
from fedplt.client import refuse_wrong, submodels
from fedplt.cutting import find_spaces
from fedplt.kernels import linear
from fedplt.methods import PlanRequest, make_method
from tests.support.image_jobs import SMALL, TRAINS_SUBMODELS
from tests.support.jobs import blobs, small_model

pytestmark = pytest.mark.slow

RATIOS = [1.0, 0.5, 0.3, 0.3, 0.1]


def checked(model, example, method="heterofl", options=None):
    layers, made = cut(model, example), make_method(method, options or {})
    request = PlanRequest(layers, RATIOS, find_spaces=lambda: find_spaces(model, layers, example))
    return check(model, example, plan=made.plan(request), recipe=made.recipe)


@pytest.mark.parametrize("method", TRAINS_SUBMODELS)
@pytest.mark.parametrize("name", ["fcn", "cnn", "resnet8"])
def test_built_in_models_are_right(name, method):
    torch.manual_seed(0)
    build, shape = SMALL[name]
    report = checked(build(), torch.randn(4, *shape), method)
    assert report.is_right, str(report)
    assert report.worst < 1e-12 and report.has_submodels
    assert "zeros for what is not held" in str(report)


@pytest.mark.parametrize("scaler", ["none", "normed", "all"])
def test_scalers_divide_in_both(scaler):
    torch.manual_seed(0)
    build, shape = SMALL["resnet8"]
    assert checked(build(), torch.randn(4, *shape), options={"scaler": scaler}).is_right


class Between(nn.Module):
    """Layers, and what a test wants between them."""

    def __init__(self, between):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 12), nn.Linear(6, 12), nn.Linear(12, 3)
        self.between = between if isinstance(between, nn.Module) else nn.Identity()
        self.join = torch.add if isinstance(between, nn.Module) else between

    def forward(self, x):
        return self.c(self.join(self.between(self.a(x)), self.b(x)))


RIGHT = {
    "not zero at zero": nn.Sigmoid(),
    "one channel at a time": nn.BatchNorm1d(12),
    "without parameters": nn.BatchNorm1d(12, affine=False),
    "dropout": nn.Dropout(0.5),
    "product": lambda one, other: one * torch.sigmoid(other),
}
NOT_DECIDED = {
    "LayerNorm": (nn.LayerNorm(12), r"between \(LayerNorm\) mixes units"),
    "random": (lambda one, other: one + F.dropout(other, 0.5), "its forward pass is random"),
    "quotient": (lambda one, other: one / other, "numbers that are not finite"),
}


@pytest.mark.parametrize("method", TRAINS_SUBMODELS)
@pytest.mark.parametrize("name", RIGHT)
def test_exact_references(name, method):
    torch.manual_seed(0)
    report = checked(Between(RIGHT[name]), torch.randn(4, 6), method)
    assert report.is_right, str(report)


@pytest.mark.parametrize("name", NOT_DECIDED)
def test_without_an_exact_reference_the_check_says_why(name, monkeypatch):
    torch.manual_seed(0)
    between, words = NOT_DECIDED[name]
    report = checked(Between(between), torch.randn(4, 6))
    assert report.verdict == "not decided" and not report.is_right
    assert re.search(words, str(report))
    refuse_wrong(report)  # does not stop a run

    right = linear.move_rows  # kernels are still compared
    monkeypatch.setattr(linear, "move_rows", lambda t, grad, *rest: right(t, 1.01 * grad, *rest))
    assert checked(Between(between), torch.randn(4, 6)).verdict == "wrong"


def test_wrong_sub_models_are_found(monkeypatch, tmp_path):
    right = submodels.take

    def shifted(state, places, out):
        return right(state.roll(1), places, out=out)

    monkeypatch.setattr(submodels, "take", shifted)
    settings = {"ratios": [0.3] * 3, "rounds": 1, "method": "heterofl"}
    with pytest.raises(CutError, match=r"0\.weight \(Linear\) at ratio 0\.\d+: off by"):
        fedplt.train(small_model(), blobs(90), blobs(30, 1), **settings)
    history = fedplt.train(
        small_model(), blobs(90), blobs(30, 1), **settings, engine={"check": False}
    )
    assert len(history.rounds) == 1


def test_wrong_shortcuts_are_found(monkeypatch):
    right = submodels.PaddedChannels.forward
    monkeypatch.setattr(submodels.PaddedChannels, "forward", lambda s, x: right(s, x).roll(1, 1))
    torch.manual_seed(0)
    build, shape = SMALL["resnet8"]
    assert checked(build(), torch.randn(4, *shape)).verdict == "wrong"


def test_runs_of_models_without_a_reference_start():
    model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 3))
    history = fedplt.train(
        model, blobs(90), blobs(30, 1), ratios=[0.5] * 3, rounds=1, method="heterofl"
    )
    assert len(history.rounds) == 1
