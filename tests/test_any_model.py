"""Partial training equals masked training for every kind of module, optimiser and mode."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F

from fedplt import cut, make_plan, train_only
from fedplt.cost import exact_flops
from tests.reference import OPTIMIZERS, masks, train_masked
from tests.test_cost import in_place
from tests.zoo import ZOO, batches

NOT_COUNTED = {
    "recurrent": "torch's counter does not know the fused LSTM of a CPU",
    "volumes": "nor that of a grouped convolution's gradient: it counts all groups' inputs",
    "convolutions": "the same",
}


def train(model, assignment, data, optimizer, loss=F.cross_entropy):
    with train_only(model, assignment) as part:
        if optimizer == "fused":
            part.fuse_sgd(0.1)
            step = part.step
        else:
            made = OPTIMIZERS[optimizer](part.parameters())

            def step():
                made.step()
                made.zero_grad()

        for inputs, targets in data:
            loss(model(inputs), targets).backward()
            step()
    return part


def assert_equals_masked(
    model, assignment, data, optimizer, tolerance=(2e-5, 1e-4), loss=F.cross_entropy
):
    ours, reference = copy.deepcopy(model), copy.deepcopy(model)
    part = train(ours, assignment, data, optimizer, loss)
    usual = OPTIMIZERS["sgd" if optimizer == "fused" else optimizer]
    train_masked(reference, assignment, data, usual, loss)
    mask, initial = masks(assignment), model.state_dict()
    names = {id(p): name for name, p in model.named_parameters()}
    tied = {
        name: names.get(id(tensor), name)
        for name, tensor in model.state_dict(keep_vars=True).items()
    }
    moved = False
    for name, tensor in ours.state_dict().items():
        own = mask.get(tied[name])
        if own is None:
            assert torch.equal(tensor, initial[name]), name
            continue
        atol, rtol = tolerance
        expected = reference.state_dict()[name]
        torch.testing.assert_close(tensor, expected, atol=atol, rtol=rtol, msg=name)
        assert torch.equal(tensor[own == 0], initial[name][own == 0]), name
        moved |= not torch.equal(tensor, initial[name])
    assert moved
    assert part.update().values.size == assignment.update_size
    part.restore()
    for name, tensor in ours.state_dict().items():
        assert torch.equal(tensor, initial[name]), name
    for ours_parameter, theirs in zip(ours.parameters(), model.parameters(), strict=True):
        assert ours_parameter.requires_grad == theirs.requires_grad
        assert ours_parameter.grad is None


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("optimizer", [*OPTIMIZERS, "fused"])
@pytest.mark.parametrize("name", ZOO)
def test_equals_masked_training(name, optimizer, mode):
    make, make_inputs = ZOO[name]
    model = make().train(mode == "train")
    plan = make_plan(cut(model, make_inputs(2)), [0.3, 0.15, 0.6, 1.0, 0.3])
    data = batches(make_inputs)
    for client in range(plan.num_clients):
        assert_equals_masked(model, plan.client(client), data, optimizer)


@pytest.mark.parametrize("name", ZOO)
def test_double_precision_is_exact(name):
    make, make_inputs = ZOO[name]
    model = make().double()
    data = [
        (x.double() if x.is_floating_point() else x, y) for x, y in batches(make_inputs, number=2)
    ]
    plan = make_plan(cut(model, data[0][0][:2]), [0.4, 0.2])
    for optimizer in ("fused", "adam"):
        for client in range(2):
            assignment = plan.client(client)
            assert_equals_masked(model, assignment, data, optimizer, tolerance=(1e-11, 1e-9))


@pytest.mark.parametrize("name", ZOO)
def test_every_parameter_is_in_a_layer_or_left_out_with_a_reason(name):
    make, make_inputs = ZOO[name]
    model = make()
    layers = cut(model, make_inputs(2))
    cut_names = [spec.name for _, _, spec in layers.placed]
    left_out = [entry.name for entry in layers.about if not entry.is_layer]
    assert len(set(cut_names)) == len(cut_names)
    tensors = {n for n, _ in model.named_parameters()} | {n for n, _ in model.named_buffers()}
    tensors -= {n for n in tensors if n.endswith("num_batches_tracked")}
    assert sorted(cut_names + left_out) == sorted(tensors)
    trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert layers.size == trainable
    assert all(entry.how for entry in layers.about)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("name", [n for n in ZOO if n not in NOT_COUNTED])
def test_flops_are_what_torch_counts(name, fused):
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    make, make_inputs = ZOO[name]
    model, number = make(), 6
    with sdpa_kernel(SDPBackend.MATH):  # torch's counter does not know the fused kernel of a CPU
        plan = make_plan(cut(model, make_inputs(2)), [1.0, 0.5, 0.2, 0.1])
        for client in range(plan.num_clients):
            mapping = {torch.ops.aten.addmm_: in_place}
            counter = FlopCounterMode(display=False, custom_mapping=mapping)
            inputs, targets = batches(make_inputs, 1, number)[0]
            with train_only(model, plan.client(client)) as part, counter:
                if fused:
                    part.fuse_sgd(0.1)
                F.cross_entropy(model(inputs), targets).backward()
                part.step()
            counted = counter.get_total_flops() / number
            assert exact_flops(plan.client(client)).total == pytest.approx(counted, rel=1e-6)
