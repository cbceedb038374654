"""Recurrent layers are cut by hidden unit: all gates, levels and directions at the same rows."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

from fedplt import CutError, bind_state, cut, make_plan
from fedplt.cutting.coupling import find_spaces
from fedplt.planning.layers import TensorSpec
from tests.support.masked_training import assert_equals_masked, masks

GATES = {nn.LSTM: 4, nn.GRU: 3, nn.RNN: 1}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("num_layers", [1, 3])
@pytest.mark.parametrize("kind", GATES)
def test_every_tensor_is_cut_at_the_same_units(kind, num_layers, bidirectional, bias):
    model = kind(5, 6, num_layers, bias=bias, bidirectional=bidirectional)
    (layer,) = cut(model, torch.randn(4, 2, 5))
    assert layer.num_sublayers == 6
    assert {tensor.name for tensor in layer.tensors} == {n for n, _ in model.named_parameters()}
    assert {(tensor.axis, tensor.repeats) for tensor in layer.tensors} == {(0, GATES[kind])}
    assignment = make_plan(cut(model), [1 / 3] * 3).assignment(1)
    for name, mask in masks(assignment).items():
        gates = mask.unflatten(0, (GATES[kind], 6))
        assert gates[:, 2:4].all(), name
        assert gates.sum() == gates[:, 2:4].numel()


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
def test_cells(kind):
    (layer,) = cut(kind(5, 6), torch.randn(2, 5))
    gates = {nn.LSTMCell: 4, nn.GRUCell: 3, nn.RNNCell: 1}[kind]
    assert layer.num_sublayers == 6
    assert {tensor.repeats for tensor in layer.tensors} == {gates}


def test_a_projection_is_cut_by_its_columns():
    model = nn.LSTM(5, 6, 2, bidirectional=True, proj_size=4)
    (layer,) = cut(model, torch.randn(4, 2, 5))
    found = {tensor.name: tensor for tensor in layer.tensors}
    assert found["weight_hr_l1_reverse"] == TensorSpec("weight_hr_l1_reverse", (4, 6), axis=1)
    assert found["weight_ih_l1"] == TensorSpec("weight_ih_l1", (24, 8), repeats=4)
    assignment = make_plan(cut(model), [1 / 6] * 2).assignment(1)
    for name, mask in masks(assignment).items():
        if name.startswith("weight_hr"):
            assert mask.sum() == 4 and mask[:, 1].all()


def word_model():
    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.lstm = nn.Embedding(100, 32), nn.LSTM(32, 64, batch_first=True)
            self.head = nn.Linear(64, 100)

        def forward(self, tokens):
            return self.head(self.lstm(self.embed(tokens))[0])

    return Words()


def test_a_fleet_of_small_clients_trains_every_unit():
    """As one piece, the LSTM went whole to one client in 25, and to none of ten."""
    layers = cut(word_model(), torch.zeros(2, 7, dtype=torch.long))
    plan = make_plan(layers, [0.1] * 25)
    assert not plan.uncovered
    lstm = [layer.name for layer in layers].index("lstm")
    assert (plan.counts[:, lstm] > 0).all()
    assert plan.coverage[lstm].min() >= 1 and len(plan.coverage[lstm]) == 64
    assert plan.achieved_ratios == pytest.approx(np.full(25, 0.1), rel=0.05)
    assert (make_plan(layers, [0.1] * 10).counts[:, lstm] > 0).all()


def test_words():
    layers = cut(nn.ModuleDict({"a": nn.LSTM(2, 3), "b": nn.RNN(2, 3)}))
    said = {note.name: note.how for note in layers.about}
    assert said["a"] == "by hidden unit (gates together); its whole gradient is computed"
    assert said["b"] == "by hidden unit; its whole gradient is computed"


class Peephole(nn.LSTM):
    def __init__(self):
        super().__init__(3, 4)
        self.peephole = nn.Parameter(torch.randn(7))


def old_weight_norm():
    from torch.nn.utils import weight_norm

    with pytest.warns(FutureWarning):
        return weight_norm(nn.GRU(3, 4), "weight_hh_l0")


def test_tensors_that_torchs_layer_does_not_have_stay_in_one_piece():
    for model, key in ((Peephole(), "peephole"), (old_weight_norm(), "weight_hh_l0_g")):
        (layer,) = layers = cut(model)
        assert layer.num_sublayers == 1
        assert f"as one piece: {key} is not a tensor of torch's own" in layers.about[0].how
    parametrized = nn.GRU(3, 4)
    nn.utils.parametrizations.weight_norm(parametrized, "weight_hh_l0")
    assert cut(parametrized)[0].num_sublayers == 1


def test_groups_and_coarser_slices():
    model = nn.ModuleDict({"a": nn.LSTM(2, 6), "b": nn.GRU(6, 4)})
    (joined,) = cut(model, groups={"both": "*"})
    assert joined.num_sublayers == 2
    coarse = cut(model, max_sublayers=3)
    assert [layer.num_sublayers for layer in coarse] == [3, 2]


def test_some_tensors_may_be_frozen():
    model = nn.Sequential(nn.LSTM(10, 6, batch_first=True), Last(), nn.Linear(6, 4)).double()
    model[0].weight_hh_l0.requires_grad_(False)
    data = [(torch.randn(6, 5, 10).double(), torch.randint(0, 4, (6,))) for _ in range(2)]
    plan = make_plan(cut(model, data[0][0]), [0.4, 0.3])
    assert "0.weight_hh_l0" not in {tensor.name for tensor in plan.layers.tensors}
    for client in range(2):
        assert_equals_masked(model, plan.assignment(client), data, "adam", tolerance=(1e-11, 1e-9))


class Last(nn.Module):
    def forward(self, given):
        return given[0][:, -1]


class Packed(nn.Module):
    """Sequences of unequal lengths, and a first state that is learned."""

    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(10, 6, 2, batch_first=True), nn.Linear(6, 4)
        self.start = nn.Parameter(torch.randn(2, 1, 6))

    def forward(self, x):
        lengths = 1 + torch.arange(len(x)) % x.shape[1]
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, True, enforce_sorted=False)
        first = self.start.expand(-1, len(x), -1).contiguous()
        return self.head(self.lstm(packed, (first, torch.tanh(first)))[1][0][-1])


@pytest.mark.parametrize("optimizer", ["fused", "momentum", "adamw"])
def test_packed_sequences(optimizer):
    model = Packed().double()
    data = [(torch.randn(6, 5, 10).double(), torch.randint(0, 4, (6,))) for _ in range(3)]
    plan = make_plan(cut(model, data[0][0]), [0.4, 0.2, 1.0])
    for client in range(3):
        part = plan.assignment(client)
        assert_equals_masked(model, part, data, optimizer, tolerance=(1e-11, 1e-9))


def test_a_bound_module_works():
    """A projection's columns come first in the flat state: the module's tensor is a transpose."""
    model = nn.LSTM(5, 6, 2, bidirectional=True, proj_size=4, batch_first=True)
    layers, x = cut(model, torch.randn(2, 3, 5)), torch.randn(4, 3, 5)
    before = copy.deepcopy(model)
    flat = bind_state(model, layers)
    assert not model.weight_hr_l0.is_contiguous()
    torch.testing.assert_close(model(x)[0], before(x)[0])
    flat.mul_(0.5)  # writes to the state reach the module, its list of weights too
    with torch.no_grad():
        for parameter in before.parameters():
            parameter.mul_(0.5)
    torch.testing.assert_close(model(x)[0], before(x)[0])
    model(x)[0].pow(2).sum().backward()
    before(x)[0].pow(2).sum().backward()
    for ours, theirs in zip(model.parameters(), before.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert all(
        torch.equal(value, copied)
        for value, copied in zip(
            model.state_dict().values(), copy.deepcopy(model).state_dict().values(), strict=True
        )
    )
    offsets = {placed.tensor.name: placed.offset for placed in layers.placed}
    start = offsets["weight_hr_l0"]
    assert torch.equal(flat[start : start + 24].view(6, 4).T, model.weight_hr_l0)


def test_sub_models_refuse_them_by_name():
    class First(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm, self.head = nn.LSTM(5, 6, batch_first=True), nn.Linear(6, 3)

        def forward(self, x):
            return self.head(self.lstm(x)[0][:, -1])

    model = First()
    with pytest.raises(CutError, match=r"'lstm' \(LSTM\)"):
        find_spaces(model, cut(model, torch.randn(2, 3, 5)), torch.randn(2, 3, 5))
