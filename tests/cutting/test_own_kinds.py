"""Kinds of layers that the user adds: how they say they are cut."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fedplt
from fedplt.cutting import layer_rules as rules


@pytest.fixture(autouse=True)
def _no_kinds_left_behind(monkeypatch):
    monkeypatch.setattr(rules, "_CUSTOM_KINDS", {})


class Maxout(nn.Module):
    """Largest of two linear functions per output; rows of an output stand together."""

    def __init__(self, inputs=5, outputs=6):
        super().__init__()
        self.outputs = outputs
        self.weight = nn.Parameter(torch.randn(2 * outputs, inputs))
        self.bias = nn.Parameter(torch.randn(2 * outputs))

    def forward(self, inputs):
        values = nn.functional.linear(inputs, self.weight, self.bias)
        return values.unflatten(-1, (self.outputs, 2)).amax(-1)


class Wider(Maxout):
    pass


def test_a_kind_is_cut_as_it_says_and_trained_exactly():
    model, example = nn.Sequential(Maxout(), Wider(6, 4)), torch.randn(3, 5)
    whole = fedplt.cut(model, example)
    assert {layer.num_sublayers for layer in whole} == {1}
    fedplt.add_layer_kind(Maxout, lambda layer: fedplt.Slicing("by output", layer.outputs))
    layers = fedplt.cut(model, example)
    assert [(layer.name, layer.num_sublayers) for layer in layers] == [("0", 6), ("1", 4)]
    assert "by output" in layers.summary()
    part = fedplt.make_plan(layers, [0.5, 0.5]).assignment(1)
    assert part.slices[0] == (range(3, 6),)
    assert layers[0].tensors[0].rows(part.slices[0], 6) == [(6, 12)]
    assert fedplt.check(model, example).is_right


def test_the_most_specific_kind_counts():
    fedplt.add_layer_kind(Maxout, lambda layer: fedplt.Slicing("by output", layer.outputs))
    fedplt.add_layer_kind(Wider, lambda layer: fedplt.Slicing("halves", 2))
    layers = fedplt.cut(nn.Sequential(Maxout(), Wider(6, 4)))
    assert [layer.num_sublayers for layer in layers] == [6, 2]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (6, "module '0' got a int; the function gives a Slicing"),
        (fedplt.Slicing("x", axes={"wieght": 0}), "no parameter 'wieght'. Did you mean 'weight'"),
        (fedplt.Slicing("x", axes={"bias": 1}), "'bias' has shape (12,), which has no axis 1"),
        (fedplt.Slicing("x", 5), "length 12, which cannot be cut into 1 blocks of 5 equal units"),
        (fedplt.Slicing("x", 6, repeats={"bias": 4}), "into 4 blocks of 6 equal units"),
        (fedplt.Slicing("x", -1), "cannot be cut"),
    ],
)
def test_what_cannot_be_is_refused(given, words):
    fedplt.add_layer_kind(Maxout, lambda layer: given)
    with pytest.raises(fedplt.CutError, match=r"add_layer_kind\(Maxout\)") as raised:
        fedplt.cut(nn.Sequential(Maxout()))
    assert words in str(raised.value)


def test_only_classes_of_modules_can_be_added():
    with pytest.raises(fedplt.CutError, match="no class of modules"):
        fedplt.add_layer_kind(Maxout(), lambda layer: fedplt.Slicing("x"))
