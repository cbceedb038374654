"""Which layers' units must agree; sub-models compute what the whole model does without the rest."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedplt import CutError, cut
from fedplt.client.submodels import HeldModels, try_submodel
from fedplt.cutting.coupling import find_spaces
from fedplt.kernels.flat_state import bind_state
from fedplt.models import ResNet8, cnn, fcn
from fedplt.planning.submodels import Spaces, SubmodelAssignment

IMAGE = torch.randn(2, 1, 8, 8)


def normed():
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(), nn.Linear(6, 3)
    )


class Functional(nn.Module):
    """Everything as functions and methods; a convolution flattened by ``view``."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.same = nn.Conv2d(4, 4, 3, padding=1)
        self.hidden = nn.Linear(4 * 16, 5)
        self.out = nn.Linear(5, 3)

    def forward(self, x):
        x = F.relu(self.conv(x))
        x = torch.add(x, self.same(x))
        x = F.max_pool2d(x, 2)
        x = torch.tanh(self.hidden(x.view(x.size(0), -1)))
        return self.out(x)


MODELS = {
    "fcn": lambda: fcn(num_inputs=64, hidden=(12, 8), num_classes=3),
    "cnn": lambda: cnn(image_size=8, width=4, num_classes=3),
    "resnet8": lambda: ResNet8(num_channels=1, num_classes=3),
    "resnet8 without norms": lambda: ResNet8(num_channels=1, num_classes=3, norm="none"),
    "normed": normed,
    "functional": Functional,
}


def found(model, example=IMAGE):
    layers = cut(model, example)
    return layers, find_spaces(model, layers, example)


def test_the_spaces_of_a_residual_network():
    _, spaces = found(ResNet8(num_channels=1))
    rows = {units.name: units.rows for units in spaces.tensors}
    columns = {units.name: units.columns for units in spaces.tensors}
    assert spaces.widths == (16, 16, 32, 32, 64, 64)
    stream = rows["stem.weight"]
    assert rows["block1.conv2.weight"] == rows["block1.norm2.running_var"] == stream  # they add up
    assert columns["block1.conv1.weight"] == columns["block2.conv1.weight"] == stream
    assert rows["block1.conv1.weight"] not in (stream, None)
    assert [(pad.inputs, pad.outputs) for pad in spaces.pads] == [
        (stream, rows["block2.conv2.weight"]),
        (rows["block2.conv2.weight"], rows["block3.conv2.weight"]),
    ]
    assert columns["stem.weight"] is None and rows["fc.weight"] is None  # inputs and outputs
    assert Spaces.from_json(spaces.to_json()) == spaces


@pytest.mark.parametrize("name", MODELS)
def test_a_submodel_is_the_model_without_the_other_units(name):
    """In evaluation mode: as if no layer looked at units that are not held."""
    torch.manual_seed(1)
    model = MODELS[name]()
    layers, spaces = found(model)
    with torch.no_grad():
        for _, buffer in model.named_buffers():
            if buffer.dtype.is_floating_point:
                buffer.add_(0.1 * torch.rand_like(buffer))
    state = bind_state(model, layers)
    random = np.random.default_rng(3)
    held = [np.sort(random.permutation(w)[: max(1, w // 2)]) for w in spaces.widths]
    for pad in spaces.pads:  # a channel that is lost on a shortcut has no like in the whole model
        held[pad.outputs] = np.union1d(held[pad.outputs], held[pad.inputs])
    assignment = SubmodelAssignment(layers, frozenset(), spaces, tuple(held), 0.5)
    small = HeldModels(model, state).smaller(assignment)
    small.module.eval()
    result = small.module(IMAGE)
    assert sum(p.numel() for p in small.module.parameters()) == assignment.num_trained

    whole = {name: value.clone() for name, value in model.state_dict().items()}
    for _, _, spec in layers.placed:
        units = spaces.by_tensor[spec.name]
        if units.rows is not None:  # such units are zero, also on a shortcut
            gone = np.setdiff1d(np.arange(spaces.widths[units.rows]), held[units.rows])
            if not spec.is_buffer:
                whole[spec.name][torch.from_numpy(gone)] = 0
        if units.columns is not None:  # columns of units that are not held become zero
            each = spec.shape[1] // spaces.widths[units.columns]
            gone = np.setdiff1d(np.arange(spaces.widths[units.columns]), held[units.columns])
            where = (gone[:, None] * each + np.arange(each)).reshape(-1)
            whole[spec.name][:, torch.from_numpy(where)] = 0
    model.load_state_dict(whole)
    model.eval()
    expected = model(IMAGE)
    assert torch.allclose(expected, result, atol=1e-5 * float(expected.detach().abs().max()) + 1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_a_try_finds_nothing_wrong(name):
    model = MODELS[name]()
    try_submodel(model, *found(model), IMAGE)


class Mixed(nn.Module):
    def __init__(self, mix):
        super().__init__()
        self.first, self.last, self.mix = nn.Linear(4, 6), nn.Linear(6, 3), mix

    def forward(self, x):
        return self.last(self.mix(F.relu(self.first(x))))


class Branch(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


@pytest.mark.parametrize(
    ("mix", "words"),
    [
        (nn.Softmax(-1), r"'first'.*module 'mix' \(Softmax\)"),
        (lambda x: x.flip(1), "'first'.*'flip'"),
        (lambda x: x.view(-1, 3, 2).transpose(1, 2).reshape(-1, 6), "'view'"),
        (lambda x: x[:, [5, 4, 3, 2, 1, 0]], "'getitem'"),
        (lambda x: x + x.mean(1, keepdim=True), "'mean'"),
        (nn.GroupNorm(2, 6), "GroupNorm"),
        (Branch(), "cannot be followed"),
    ],
)
def test_what_is_not_certain_is_refused(mix, words):
    model = Mixed(mix)
    with pytest.raises(CutError, match=words):
        found(model, torch.ones(2, 4))


def test_attention_is_refused_by_name():
    class Attends(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention, self.out = nn.MultiheadAttention(4, 2), nn.Linear(4, 3)

        def forward(self, x):
            return self.out(self.attention(x, x, x)[0])

    model, example = Attends(), torch.randn(5, 2, 4)
    layers = cut(nn.Sequential(nn.Linear(4, 3)), torch.zeros(1, 4))
    with pytest.raises(CutError, match=r"module 'attention' \(MultiheadAttention\)"):
        find_spaces(model, layers, example)


def test_grouped_convolutions_are_refused():
    model = nn.Sequential(nn.Conv2d(1, 4, 1), nn.Conv2d(4, 4, 1, groups=2))
    with pytest.raises(CutError, match=r"module '1' \(Conv2d\) has groups"):
        found(model)


def test_widths_written_into_the_forward_pass_are_noticed():
    class Fixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.out = nn.Conv2d(1, 4, 1), nn.Linear(256, 3)

        def forward(self, x):
            return self.out(self.conv(x).view(-1, 256))

    model = Fixed()
    with pytest.raises(CutError, match="half the width does not run"):
        try_submodel(model, *found(model), IMAGE)


def test_layers_that_are_not_trained_are_never_cut():
    model = fcn(num_inputs=64, hidden=(12, 8), num_classes=3)
    model.fc2.requires_grad_(False)
    _, spaces = found(model)
    assert spaces.widths == ()  # its inputs and its outputs are all there are


def test_what_only_looks_right_is_refused():
    tied = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6), nn.Linear(6, 2))
    tied[2].weight = tied[0].weight
    with pytest.raises(CutError, match="tied weights"):
        find_spaces(tied, cut(tied, torch.zeros(2, 6)), torch.zeros(2, 6))
    pooled = nn.Sequential(nn.Linear(6, 6), nn.MaxPool1d(3, 1, 1), nn.Linear(6, 2))
    with pytest.raises(CutError, match="MaxPool1d"):
        find_spaces(pooled, cut(pooled, torch.zeros(2, 6)), torch.zeros(2, 6))
