"""The layers of a model, and where their slices are."""

from __future__ import annotations

from torch import nn

from fedplt import Layer, Layers, TensorSpec, cut
from fedplt.planning.assignment import SliceAssignment, whole_assignment


def test_segments_of_all_axes():
    layers = Layers(
        (
            Layer("rows", (TensorSpec("r", (4, 2)), TensorSpec("b", (4,))), 4),
            Layer("columns", (TensorSpec("c", (3, 4), axis=1),), 2),
            Layer("qkv", (TensorSpec("q", (6, 1), repeats=3),), 2),
        )
    )
    slices = ((range(1, 3),), (range(1),), (range(1, 2),))
    #       rows 1-2 of r, of b;  first two columns of c (laid out first);  every second row of q
    expected = [(2, 6), (9, 11), (12, 18), (25, 26), (27, 28), (29, 30)]
    assert SliceAssignment(layers, slices).uploaded.segments == expected
    assert whole_assignment(layers).uploaded.segments == [(0, 30)]
    assert SliceAssignment(layers, ((), (), ())).uploaded.segments == []


def test_survives_json():
    layers = cut(nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)))
    assert Layers.from_json(layers.to_json()) == layers
