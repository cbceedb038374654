"""How models are cut."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedplt import CutError, cut
from fedplt.models import MODELS, cnn, fcn, resnet8


def names(layers):
    return {layer.name: [tensor.name for tensor in layer.tensors] for layer in layers}


def test_the_papers_fcn():
    assert cut(fcn()).sizes == (401_920, 131_328, 32_896, 1_290)
    assert cut(fcn(num_inputs=3072)).sizes == (1_573_376, 131_328, 32_896, 1_290)
    assert cut(fcn()).num_sublayers == (512, 256, 128, 10)


@pytest.mark.parametrize("example", [None, torch.zeros(2, 3, 32, 32)])
def test_resnet8_by_blocks(example):
    layers = cut(resnet8(), example, groups=MODELS["resnet8"].groups)
    assert [layer.name for layer in layers] == ["stem", "block1", "block2", "block3", "fc"]
    assert layers.num_sublayers == (16, 16, 32, 64, 10)
    assert layers.size == sum(p.numel() for p in resnet8().parameters())
    plain = cut(resnet8(norm="none"), example, groups=MODELS["resnet8"].groups)
    assert plain.sizes == (448, 4_640, 13_888, 55_424, 650)


def test_buffers_do_not_count():
    layers = cut(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)))
    assert layers.size == 3 * 4 + 4 + 4 + 4
    assert layers.state_size == layers.size + 8


def test_a_norm_joins_the_layer_that_feeds_it():
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3))
    for example in (None, torch.zeros(2, 1, 8, 8)):
        assert names(cut(model, example))["0"] == [
            "0.weight", "0.bias", "2.weight", "2.bias", "2.running_mean", "2.running_var",
        ]  # fmt: skip


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)

    def forward(self, x):
        return self.norm(self.one(x) + self.two(x))


def test_a_norm_that_two_layers_feed_is_a_layer_of_its_own():
    assert list(names(cut(Residual(), torch.zeros(2, 4)))) == ["one", "two", "norm"]


def test_the_example_leaves_the_model_as_it_was():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    state, random = (
        torch.random.get_rng_state(),
        {k: v.clone() for k, v in model.state_dict().items()},
    )
    cut(model, torch.randn(5, 3, generator=torch.Generator().manual_seed(1)))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(v, random[k]) for k, v in model.state_dict().items())
    assert not model[0]._forward_hooks


def test_groups_by_pattern():
    model = cnn()
    layers = cut(model, groups={"convolutions": "conv*", "head": ["fc1", "fc2"]})
    assert [layer.name for layer in layers] == ["convolutions", "head"]
    assert layers.num_sublayers == (16, 2)  # the greatest common divisors of the widths
    with pytest.raises(CutError, match=r"no layer matches 'cnv\*'.*conv"):
        cut(model, groups={"a": "cnv*"})
    with pytest.raises(CutError, match="is in groups 'a' and 'b'"):
        cut(model, groups={"a": "conv1", "b": "conv*"})


def test_coarser_slices_are_equal():
    assert cut(fcn(), max_sublayers=100).num_sublayers == (64, 64, 64, 10)
    with pytest.raises(CutError, match="at least 1"):
        cut(fcn(), max_sublayers=0)


def test_frozen_modules_are_left_out():
    model = fcn()
    model.fc2.requires_grad_(False)
    assert [layer.name for layer in cut(model)] == ["fc1", "fc3", "fc4"]
    model.fc2.bias.requires_grad_(True)
    with pytest.raises(CutError, match="frozen in part"):
        cut(model)


class Standardised(nn.Conv2d):
    def forward(self, input):
        weight = self.weight - self.weight.mean()
        return torch.nn.functional.conv2d(input, weight, self.bias)


class Functional(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.b(input=torch.nn.functional.linear(x, self.a.weight, self.a.bias))


@pytest.mark.filterwarnings("ignore:Initializing zero-element")
def test_what_only_looks_known_is_refused():
    with pytest.raises(CutError, match=r"'0' \(Standardised\) computes something of its own"):
        cut(nn.Sequential(Standardised(1, 2, 3)))
    with pytest.raises(CutError, match=r"'a' \(Linear\) was not called"):
        cut(Functional(), torch.zeros(2, 4))
    parametrized = nn.utils.parametrizations.weight_norm(nn.Linear(3, 3))
    with pytest.raises(CutError, match="parametrized"):
        cut(parametrized)
    with pytest.raises(CutError, match="width of 0"):
        cut(nn.Linear(3, 0))


def test_refusals_name_the_module():
    with pytest.raises(CutError, match=r"'1' \(LSTM\)"):
        cut(nn.Sequential(nn.Linear(3, 3), nn.LSTM(3, 3)))
    tied = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    tied[1].weight = tied[0].weight
    with pytest.raises(CutError, match=r"1.weight is the same parameter as 0.weight"):
        cut(tied)
    with pytest.raises(CutError, match="float64"):
        cut(nn.Linear(3, 3).double())
    with pytest.raises(CutError, match="no trainable parameters"):
        cut(nn.ReLU())
    with pytest.raises(CutError, match="no single layer feeds it"):
        cut(nn.Sequential(nn.BatchNorm1d(3, affine=False), nn.Linear(3, 3)))
