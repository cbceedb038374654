"""How models are cut."""

from __future__ import annotations

from collections import UserDict, namedtuple
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from fedplt import CutError, PlanError, cut, make_plan
from fedplt.models import MODELS, ResNet8, cnn, fcn


def names(layers):
    return {layer.name: [tensor.name for tensor in layer.tensors] for layer in layers}


def test_the_papers_fcn():
    assert cut(fcn()).sizes == (401_920, 131_328, 32_896, 1_290)
    assert cut(fcn(num_inputs=3072)).sizes == (1_573_376, 131_328, 32_896, 1_290)
    assert cut(fcn()).num_sublayers == (512, 256, 128, 10)


@pytest.mark.parametrize("example", [None, torch.zeros(2, 3, 32, 32)])
def test_resnet8_by_blocks(example):
    layers = cut(ResNet8(), example, groups=MODELS["resnet8"].groups)
    assert [layer.name for layer in layers] == ["stem", "block1", "block2", "block3", "fc"]
    assert layers.num_sublayers == (16, 16, 32, 64, 10)
    assert layers.size == sum(p.numel() for p in ResNet8().parameters())
    plain = cut(ResNet8(norm="none"), example, groups=MODELS["resnet8"].groups)
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
    layers = cut(model)
    assert [layer.name for layer in layers] == ["fc1", "fc2", "fc3", "fc4"]
    assert layers[1].size == 256  # its bias alone
    assert "fc2.weight" in [entry.name for entry in layers.about if not entry.is_layer]


def test_layers_never_and_always_trained():
    model, example = cnn(), torch.zeros(2, 1, 28, 28)
    layers = cut(model, example, never="conv*", always=["fc2"])
    assert [layer.name for layer in layers] == ["fc1", "fc2"]
    assert [layer.always for layer in layers] == [False, True]
    assert "never, as asked for" in layers.summary()
    assert "by every client (always)" in layers.summary()
    plan = make_plan(layers, [0.5, 0.1, 1.0])
    assert plan.counts[:, 1].tolist() == [10, 10, 10]
    assert plan.achieved_ratios == pytest.approx([0.5, 0.1, 1.0], abs=0.01)
    with pytest.raises(PlanError, match=r"client 1 has ratio 0.001.*always trained are 0.0"):
        make_plan(layers, [0.5, 0.001])
    with pytest.raises(CutError, match=r"never: no layer matches 'backbone'"):
        cut(model, never="backbone")
    with pytest.raises(CutError, match="no trainable parameters"):
        cut(model, never="*")


def test_fused_projections_are_cut_alike():
    model = nn.Sequential()
    model.add_module("qkv", nn.Linear(4, 12))
    model.add_module("both", nn.Linear(12, 8))
    by_name = cut(model)
    assert by_name.num_sublayers == (4, 8)
    assert cut(model, fused={"qkv": 1, "both": 2}).num_sublayers == (12, 4)
    rows = by_name[0].tensors[0].rows((range(1, 2),), 4)
    assert rows == [(1, 2), (5, 6), (9, 10)]
    with pytest.raises(CutError, match="12 outputs, not 5 equal"):
        cut(model, fused={"qkv": 5})


def test_attention_is_cut_by_head():
    layers = cut(nn.MultiheadAttention(8, 4, add_bias_kv=True))
    assert [(layer.name, layer.num_sublayers) for layer in layers] == [
        ("model", 4),
        ("out_proj", 8),
    ]
    weight = layers[0].tensors[0]
    assert weight.rows((range(3, 4),), 4) == [(6, 8), (14, 16), (22, 24)]


def test_groups_of_channels_stay_together():
    layers = cut(nn.Sequential(nn.Conv2d(8, 12, 3, groups=4), nn.BatchNorm2d(12)))
    assert layers.num_sublayers == (4,)
    assert layers[0].tensors[0].rows((range(1, 3),), 4) == [(3, 9)]
    layers = cut(nn.ConvTranspose2d(6, 8, 3, groups=2))
    assert layers.num_sublayers == (4,)
    assert [t.rows((range(1, 2),), 4) for t in layers[0].tensors] == [[(1, 2)], [(1, 2), (5, 6)]]


def test_tied_weights_are_counted_once():
    model = nn.Sequential(nn.Embedding(7, 3), nn.Linear(3, 7))
    model[1].weight = model[0].weight
    layers = cut(model, torch.zeros(2, 4, dtype=torch.long))
    assert [(layer.name, layer.size, layer.num_sublayers) for layer in layers] == [("0", 28, 7)]
    assert "1 (tied)" in layers.summary()


class Unused(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.b(input=torch.nn.functional.linear(x, self.a.weight, self.a.bias))


def test_what_is_not_used_is_left_out_and_said():
    with pytest.warns(UserWarning, match=r"does not use them: c.weight, c.bias"):
        layers = cut(Unused(), torch.zeros(2, 4))
    assert [layer.name for layer in layers] == ["a", "b"]
    assert "the example input does not use it" in layers.summary()


def test_inputs_by_name_and_by_position():
    model = nn.Bilinear(3, 4, 5)
    x, y = torch.zeros(2, 3), torch.zeros(2, 4)
    assert cut(model, (x, y)).about == cut(model, {"input1": x, "input2": y}).about


class OwnStatistics(nn.BatchNorm1d):
    def forward(self, input):
        return super().forward(input)


@pytest.mark.filterwarnings("ignore:Initializing zero-element")
@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
@pytest.mark.parametrize(
    ("model", "words"),
    [
        (lambda: nn.Linear(3, 0), "it is empty"),
        (nn.ReLU, "no trainable parameters"),
        (
            lambda: nn.Sequential(nn.BatchNorm1d(3, affine=False), nn.Linear(3, 3)),
            "no single layer is known to feed it",
        ),
        (lambda: nn.Embedding(5, 3, max_norm=1.0), "max_norm = None"),
        (lambda: nn.Embedding(5, 3, sparse=True), "sparse = False"),
        (lambda: nn.LazyLinear(3), "Run the model once"),
        (lambda: nn.Linear(3, 3, dtype=torch.complex64), "complex64"),
        (lambda: nn.Sequential(nn.Linear(3, 3), OwnStatistics(3)), "'1' .OwnStatistics. keeps"),
    ],
)
def test_refusals_say_what_to_do(model, words):
    with pytest.raises(CutError, match=words):
        cut(model())


class Outputs(nn.Module):
    def __init__(self, give):
        super().__init__()
        self.linear, self.give = nn.Linear(4, 3), give

    def forward(self, *inputs, **named):
        return self.give(self.linear(sum([*inputs, *named.values()])))


@dataclass
class Answer:
    logits: torch.Tensor


Pair = namedtuple("Pair", "one two")


def test_inputs_and_outputs_of_many_forms():
    x = torch.zeros(2, 4)
    for example in (x, (x, x), [x], {"a": x}, UserDict({"a": x}), Pair(x, x)):
        assert cut(Outputs(Answer), example).flow[0].positions == 1
    model = Outputs(lambda y: {"y": [y]})
    with torch.inference_mode():
        assert cut(model, x).flow
    with pytest.raises(CutError, match="gave a float without a tensor"):
        cut(Outputs(lambda y: float(y.detach().sum())), x)


def test_names_of_what_is_part_of_another_layer():
    model = nn.Sequential(nn.Embedding(7, 3), nn.Linear(3, 7), nn.Linear(7, 7), nn.BatchNorm1d(7))
    model[1].weight = model[0].weight
    assert [layer.always for layer in cut(model, always=["1", "3"])] == [True, True]
    with pytest.raises(CutError, match=r"never: 1\.weight is tied to a tensor of '0'"):
        cut(model, never="1")
    layers = cut(model, never=["3"])
    assert "nothing of its normalization layer is trained" in layers.summary()


def test_more_refusals():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    with pytest.raises(CutError, match="has the name of a layer that is not in it"):
        cut(model, groups={"0": ["1"]})
    model[1].weight = nn.Parameter(model[0].weight.data)
    with pytest.raises(CutError, match=r"1\.weight and 0\.weight are two parameters in the same"):
        cut(model)
    with pytest.raises(CutError, match="a list cannot be cut"):
        cut([])
    with pytest.raises(CutError, match="only Linear modules can be fused"):
        cut(nn.Conv1d(2, 6, 1), fused={"*": 3})
    for wrong in (0, "x"):
        with pytest.raises(CutError, match="equal blocks"):
            cut(nn.Sequential(nn.Linear(2, 6)), fused={"0": wrong})
    norm_first = nn.Sequential(nn.BatchNorm1d(4, affine=False), nn.Linear(4, 4))
    assert cut(norm_first, groups={"first": ["0", "1"]}).num_sublayers == (4,)
