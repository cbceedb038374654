"""Which layer every tensor goes to, above all where modules share parameters."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedplt import cut
from fedplt.cutting.module_tensors import FROZEN, NEVER, UNUSED, find_module_tensors


class TwoBare(nn.Module):
    """Two parameters of its own, in a kind of module that nothing is known about."""

    def __init__(self, first: nn.Parameter | None = None) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.randn(4, 3)) if first is None else first
        self.second = nn.Parameter(torch.randn(5))

    def forward(self, x):
        return (x @ self.first.T).sum(-1, keepdim=True) + self.second


class Tied(nn.Module):
    """A Linear that shares its weight with the first of two bare parameters."""

    def __init__(self, bare_first: bool) -> None:
        super().__init__()
        if bare_first:
            self.bare, self.linear = TwoBare(), nn.Linear(3, 4)
            self.linear.weight = self.bare.first
        else:
            self.linear = nn.Linear(3, 4)
            self.bare = TwoBare(self.linear.weight)

    def forward(self, x):
        return self.linear(x), self.bare(x)


def tensors(layers):
    return {layer.name: [tensor.name for tensor in layer.tensors] for layer in layers}


@pytest.mark.parametrize("example", [None, torch.zeros(2, 3)])
def test_a_module_joins_the_bare_parameter_that_it_is_tied_to(example):
    layers = cut(Tied(bare_first=True), example)
    assert tensors(layers) == {
        "bare.first": ["bare.first", "linear.bias"],
        "bare.second": ["bare.second"],
    }
    assert "with linear (tied)" in {note.name: note.how for note in layers.about}["bare.first"]


@pytest.mark.parametrize("example", [None, torch.zeros(2, 3)])
def test_a_bare_parameter_beside_a_tied_one_is_a_layer_of_its_own(example):
    layers = cut(Tied(bare_first=False), example)
    assert tensors(layers) == {
        "linear": ["linear.weight", "linear.bias"],
        "bare.second": ["bare.second"],
    }
    assert layers.num_sublayers == (4, 1)  # the Linear is still cut by output neuron
    assert "with bare (tied)" in {note.name: note.how for note in layers.about}["linear"]
    assert [layer.always for layer in cut(Tied(bare_first=False), always="bare")] == [True, True]


def test_a_module_that_is_tied_to_two_layers_is_a_part_of_both():
    model = nn.Module()
    model.one, model.two, model.both = nn.Linear(3, 4), nn.Linear(3, 5), nn.Module()
    model.both.one, model.both.two = model.one.weight, model.two.weight
    model.both.own = nn.Parameter(torch.randn(2))
    layers = cut(model)
    assert list(tensors(layers)) == ["one", "two", "both.own"]
    hows = {note.name: note.how for note in layers.about}
    assert "with both (tied)" in hows["one"] and "with both (tied)" in hows["two"]
    assert [layer.always for layer in cut(model, always="both")] == [True, True, True]


def test_a_parameter_belongs_to_the_first_module_that_has_it():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3), nn.BatchNorm1d(3))
    model[1].weight = model[0].weight
    model[2].requires_grad_(False)
    model[2].weight = model[0].weight
    modules, untrained = find_module_tensors(model, {"1.bias", "3"}, used=None)
    assert [(m.name, list(m.trained), m.tied_to) for m in modules] == [
        ("", [], []),
        ("0", ["weight", "bias"], []),
        ("1", [], ["0.weight"]),
        ("2", [], ["0.weight"]),
        ("3", [], []),
    ]
    assert [(note.name, note.size, note.how) for note in untrained] == [
        ("1.bias", 3, NEVER),
        ("2.bias", 3, FROZEN),
        ("3.weight", 3, NEVER),
        ("3.bias", 3, NEVER),
    ]


def test_what_the_output_does_not_depend_on_is_unused():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    modules, untrained = find_module_tensors(model, (), used={id(p) for p in model[0].parameters()})
    assert {note.how for note in untrained} == {UNUSED}
    assert [list(module.trained) for module in modules] == [[], ["weight", "bias"], []]


@pytest.mark.parametrize(
    ("norm", "trained"),
    [
        (nn.BatchNorm1d(3), True),
        (nn.BatchNorm1d(3, affine=False), True),  # no parameters, but statistics to average
        (nn.BatchNorm1d(3).requires_grad_(False), False),
        (nn.LayerNorm(3), False),
    ],
)
def test_running_statistics_are_in_the_layer_unless_their_module_is_frozen(norm, trained):
    modules, _ = find_module_tensors(nn.Sequential(nn.Linear(3, 3), norm), (), None)
    names = [tensor.name for tensor in modules[2].statistics]
    assert names == (["1.running_mean", "1.running_var"] if trained else [])
