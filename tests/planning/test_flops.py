"""FLOPs agree with torch's own counter on what really runs; bytes with what is really written."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from safetensors.numpy import save
from torch import nn

from fedplt import CutError, allocation_of, cut, make_plan, train_only
from fedplt.models import MODELS, ResNet8, cnn, fcn
from fedplt.planning.flops import exact_flops, module_flops, paper_flops_of
from fedplt.planning.message_sizes import download_bytes
from tests.support.flops import flop_counter


def normed():
    """Norms of all kinds; the first convolution is followed by one that keeps channels apart."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding="same"), nn.GroupNorm(4, 8), nn.ReLU(),
        nn.Conv2d(8, 6, 3, stride=2, padding=1), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(24, 12), nn.LayerNorm(12), nn.Linear(12, 4),
    )  # fmt: skip


MODELS_AND_SHAPES = {
    "fcn": (lambda: fcn(num_inputs=20, hidden=(16, 12)), (20,)),
    "cnn": (lambda: cnn(image_size=8, width=4), (1, 8, 8)),
    "resnet8": (ResNet8, (3, 8, 8)),
    "normed": (normed, (3, 8, 8)),
}


def counted(model, assignment, shape, fused, batch=6):
    """FLOPs of one step by torch's counter."""
    counter = flop_counter()
    inputs, targets = torch.randn(batch, *shape), torch.zeros(batch, dtype=torch.long)
    with train_only(model, assignment) as part, counter:
        if fused:
            part.fuse_sgd(0.1)
        part.backward(F.cross_entropy(model(inputs), targets))
        part.step()
    return counter.get_total_flops() / batch


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("name", MODELS_AND_SHAPES)
def test_exact_flops_are_what_torch_counts(name, fused):
    make, shape = MODELS_AND_SHAPES[name]
    model = make()
    groups = MODELS[name].groups if name in MODELS else None
    layers = cut(model, torch.randn(2, *shape), groups=groups)
    alone = [[0.5 * (i == k) for i in range(len(layers))] for k in range(len(layers))]
    fleet = [1.0, 0.5, 0.2, 0.1, *(allocation_of(layers.sizes, ratios) for ratios in alone)]
    plan = make_plan(layers, fleet)
    for client in range(plan.num_clients):
        assignment = plan.assignment(client)
        expected = counted(model, assignment, shape, fused)
        assert exact_flops(assignment).total == pytest.approx(expected, rel=1e-9), client


def test_by_hand():
    model = fcn(num_inputs=784)
    layers = cut(model, torch.zeros(2, 784))
    full = exact_flops(make_plan(layers, [1.0]).assignment(0))
    weights = [784 * 512, 512 * 256, 256 * 128, 128 * 10]
    assert full.forward == full.weight_gradients == 2 * sum(weights)
    assert full.input_gradients == 2 * sum(weights[1:])  # none for the first layer
    plan = make_plan(layers, [0.06])
    part, rows = exact_flops(plan.assignment(0)), plan.counts[0]
    assert part.weight_gradients == 2 * (784 * rows[0] + 512 * rows[1] + 256 * rows[2] + 1280)
    # Just above the lowest trained layer, only its trained rows' columns.
    assert part.input_gradients == 2 * (256 * rows[0] + 256 * 128 + 1280)
    lowest = make_plan(layers, [allocation_of(layers.sizes, [0.1, 0, 0, 0])])
    rows = lowest.counts[0]  # an untrained layer above leaves out columns, too
    assert exact_flops(lowest.assignment(0)).input_gradients == 2 * (
        256 * rows[0] + 256 * 128 + 1280
    )
    only_top = exact_flops(
        make_plan(layers, [allocation_of(layers.sizes, [0, 0, 0, 1])]).assignment(0)
    )
    assert only_top.input_gradients == 0
    by_module = module_flops(plan.assignment(0))
    assert sum(flops.total for _, flops in by_module) == part.total


def test_the_papers_model_has_its_own_name():
    half = make_plan(cut(nn.Linear(9, 10)), [0.5]).assignment(0)  # of 100 parameters
    assert paper_flops_of(half, 10) == 4000  # 2000 forward, 4000 backward, half of it


def test_costs_need_an_example():
    with pytest.raises(CutError, match="example input"):
        exact_flops(make_plan(cut(nn.Linear(2, 3)), [1.0]).assignment(0))


def test_download_is_what_is_written():
    import numpy as np

    layers = cut(ResNet8(), torch.zeros(2, 3, 8, 8))
    written = save({"model": np.zeros(layers.state_size, dtype=np.float32)})
    assert download_bytes(make_plan(layers, [0.1]).assignment(0)) == len(written)
