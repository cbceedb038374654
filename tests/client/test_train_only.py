"""Partial training equals masked full training, and touches nothing else."""

from __future__ import annotations

import copy
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedplt import CutError, allocation_of, cut, make_plan, train_only
from fedplt.models import ResNet8, cnn
from tests.support.masked_training import OPTIMIZERS, masks, train_masked


def dense():
    return nn.Sequential(nn.Linear(10, 12), nn.ReLU(), nn.Linear(12, 9), nn.Tanh(), nn.Linear(9, 4))


def normed():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding="same", groups=4), nn.GroupNorm(4, 8), nn.ReLU(),
        nn.Conv2d(8, 6, 3, stride=2, padding=1, padding_mode="reflect"),
        nn.InstanceNorm2d(6, affine=True),
        nn.Flatten(), nn.Linear(6 * 16, 12), nn.LayerNorm(12), nn.BatchNorm1d(12, momentum=None),
        nn.Linear(12, 4, bias=False),
    )  # fmt: skip


class Sequences(nn.Module):
    """A Linear that is called twice, on inputs with three dimensions."""

    def __init__(self):
        super().__init__()
        self.inner, self.head = nn.Linear(10, 10), nn.Linear(10, 4)

    def forward(self, x):
        return self.head(self.inner(F.relu(self.inner(x)))).mean(1)


CASES = {
    "dense": (dense, (10,)),
    "normed": (normed, (3, 8, 8)),
    "cnn": (lambda: cnn(num_channels=1, image_size=8, width=4, num_classes=4), (1, 8, 8)),
    "resnet8": (lambda: ResNet8(num_classes=4), (3, 8, 8)),
    "sequences": (Sequences, (5, 10)),
}


def batches(shape, number=3, size=7):
    return [(torch.randn(size, *shape), torch.randint(0, 4, (size,))) for _ in range(number)]


def train_fused(model, assignment, data):
    with train_only(model, assignment) as part:
        part.fuse_sgd(0.1)
        for inputs, targets in data:
            part.backward(F.cross_entropy(model(inputs), targets))
            part.step()
    return part


def train_sliced(model, assignment, data, make_optimizer):
    if make_optimizer == "fused":
        return train_fused(model, assignment, data)
    with train_only(model, assignment) as part:
        optimizer = make_optimizer(part.parameters())
        for inputs, targets in data:
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
    return part


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", [*OPTIMIZERS, "fused"])
@pytest.mark.parametrize("case", CASES)
def test_equals_masked_training(case, optimizer):
    make, shape = CASES[case]
    make_optimizer, reference_optimizer = OPTIMIZERS.get(optimizer), OPTIMIZERS.get(optimizer)
    if optimizer == "fused":
        make_optimizer, reference_optimizer = "fused", OPTIMIZERS["sgd"]
    model = make()
    layers = cut(model, torch.randn(2, *shape))
    plan = make_plan(layers, [0.3, 0.15, 0.6, 1.0, 0.3])
    data = batches(shape)
    initial = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for client in range(plan.num_clients):
        assignment = plan.assignment(client)
        ours, reference = copy.deepcopy(model), copy.deepcopy(model)
        part = train_sliced(ours, assignment, data, make_optimizer)
        train_masked(reference, assignment, data, reference_optimizer, F.cross_entropy)
        mask = masks(assignment)
        for name, tensor in ours.state_dict().items():
            if name in mask:
                torch.testing.assert_close(
                    tensor, reference.state_dict()[name], atol=2e-5, rtol=1e-4, msg=name
                )
                frozen = mask[name] == 0
                assert torch.equal(tensor[frozen], initial[name][frozen]), name
            else:
                assert torch.equal(tensor, initial[name]), name
        assert part.update().values.size == assignment.update_size
        part.restore()
        for name, tensor in ours.state_dict().items():
            assert torch.equal(tensor, initial[name]), name


@settings(max_examples=30)
@given(st.data())
def test_equals_masked_training_for_any_allocation(data):
    widths = data.draw(st.lists(st.integers(1, 9), min_size=2, max_size=5), label="widths")
    q = data.draw(
        st.lists(
            st.floats(0, 1, allow_subnormal=False),
            min_size=len(widths) - 1,
            max_size=len(widths) - 1,
        ).filter(any),
        label="layer ratios",
    )
    client = data.draw(st.integers(0, 3), label="client")
    torch.manual_seed(0)
    modules = [nn.Linear(a, b) for a, b in pairwise(widths)]
    model = nn.Sequential(*[m for module in modules for m in (module, nn.Tanh())])
    layers = cut(model, torch.zeros(2, widths[0]))
    assignment = make_plan(layers, [allocation_of(layers.sizes, q)] * 4).assignment(client)
    examples = [(torch.randn(4, widths[0]), torch.randn(4, widths[-1]))]
    ours, reference = copy.deepcopy(model), copy.deepcopy(model)
    with train_only(ours, assignment) as part:
        optimizer = torch.optim.SGD(part.parameters(), lr=0.5, momentum=0.9)
        for inputs, targets in examples * 2:
            optimizer.zero_grad()
            F.mse_loss(ours(inputs), targets).backward()
            optimizer.step()
    make = lambda p: torch.optim.SGD(p, lr=0.5, momentum=0.9)  # noqa: E731
    train_masked(reference, assignment, examples * 2, make, F.mse_loss)
    for name, tensor in ours.state_dict().items():
        torch.testing.assert_close(tensor, reference.state_dict()[name], atol=1e-5, rtol=1e-4)


def test_the_update_is_after_minus_before_in_the_plans_order():
    model = dense()
    plan = make_plan(cut(model), [0.4] * 3)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    part = train_sliced(model, plan.assignment(1), batches((10,)), OPTIMIZERS["sgd"])
    update, start = part.update(num_examples=21), 0
    assert update.num_examples == 21
    for spec, first, last, _ in plan.layers.tensor_segments(plan.assignment(1).slices):
        change = (model.state_dict()[spec.name] - before[spec.name])[first:last].flatten()
        assert torch.equal(torch.from_numpy(update.values[start : start + len(change)]), change)
        start += len(change)
    assert start == len(update.values)
    assert update.norm == pytest.approx(float(torch.from_numpy(update.values).norm()), rel=1e-5)


def test_only_slices_have_gradients_and_state():
    model = dense()
    assignment = make_plan(cut(model), [0.2]).assignment(0)
    with train_only(model, assignment) as part:
        optimizer = torch.optim.Adam(part.parameters())
        F.cross_entropy(model(torch.randn(5, 10)), torch.zeros(5, dtype=torch.long)).backward()
        optimizer.step()
        optimizer.zero_grad()
        assert all(p.grad is None for p in model.parameters())
        assert sum(p.numel() for p in part.parameters()) == assignment.num_trained
        assert sum(s["exp_avg"].numel() for s in optimizer.state.values()) == assignment.num_trained
    assert all(p.requires_grad for p in model.parameters())
    assert "forward" not in vars(model[0])


def test_nothing_below_the_lowest_trained_layer_is_differentiated():
    model = dense()
    layers = cut(model)
    assignment = make_plan(layers, [allocation_of(layers.sizes, [0, 0, 0.5])]).assignment(0)
    with train_only(model, assignment):
        hidden = model[:4](torch.randn(5, 10))
        with torch._C.DisableTorchFunction():  # a model that asks gets one
            assert hidden.grad_fn is None
        assert model[4](hidden).requires_grad


def test_batch_norm_trains_on_batch_statistics_where_nothing_of_it_is_trained():
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))
    layers = cut(model)
    assignment = make_plan(layers, [allocation_of(layers.sizes, [0, 1])]).assignment(0)
    inputs = 3 + torch.randn(20, 4)
    expected = copy.deepcopy(model)(inputs)
    with train_only(model, assignment):
        assert torch.equal(model(inputs), expected)
    assert torch.equal(model[1].running_mean, torch.zeros(6))
    assert int(model[1].num_batches_tracked) == 0


def test_a_last_batch_of_one_example_is_fine():
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))
    with train_only(model, make_plan(cut(model), [0.5]).assignment(0)):
        assert model(torch.randn(1, 4)).isfinite().all()


def test_changed_inputs_are_noticed_as_in_torch():
    model = dense()
    with train_only(model, make_plan(cut(model), [0.5]).assignment(0)):
        inputs = torch.randn(3, 10) * 1.0
        loss = model(inputs).sum()
        inputs.mul_(2)
        with pytest.raises(CutError, match="modified by an inplace operation"):
            loss.backward()


def test_cleans_up_after_an_error():
    model = dense()
    with (
        pytest.raises(ZeroDivisionError),
        train_only(model, make_plan(cut(model), [0.5]).assignment(0)),
    ):
        1 / 0  # noqa: B018
    assert all(p.requires_grad for p in model.parameters())
    assert "forward" not in vars(model[0])


def test_refuses_another_models_plan():
    plan = make_plan(cut(nn.Linear(4, 6)), [0.5])
    with (
        pytest.raises(CutError, match="made for another model"),
        train_only(nn.Linear(5, 6), plan.assignment(0)),
    ):
        pass
