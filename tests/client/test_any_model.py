"""Partial training equals masked training for every kind of module, optimiser and mode."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedplt import cut, make_plan, train_only
from fedplt.planning.flops import exact_flops
from tests.support.flops import flop_counter
from tests.support.masked_training import OPTIMIZERS, assert_equals_masked, masks, train_masked
from tests.support.zoo import ZOO, batches, images

pytestmark = pytest.mark.slow

NOT_COUNTED = {
    "volumes": "torch counts all groups' inputs in a grouped convolution's gradient",
    "convolutions": "the same",
    "sometimes": "batches differ in what they compute",
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("optimizer", "mode"),
    [*((each, "train") for each in [*OPTIMIZERS, "fused"]), ("sgd", "eval"), ("fused", "eval")],
)
@pytest.mark.parametrize("name", ZOO)
def test_equals_masked_training(name, optimizer, mode):
    make, make_inputs = ZOO[name]
    model = make().train(mode == "train")
    plan = make_plan(cut(model, make_inputs(2)), [0.3, 0.15, 0.6, 1.0, 0.3])
    data = batches(make_inputs)
    for client in range(plan.num_clients):
        assert_equals_masked(model, plan.assignment(client), data, optimizer)


def in_double(x):
    return x.double() if x.is_floating_point() else x


@pytest.mark.parametrize("name", ZOO)
def test_double_precision_is_exact(name):
    make, make_inputs = ZOO[name]
    model = make().double()
    data = [(in_double(x), y) for x, y in batches(make_inputs, number=2)]
    plan = make_plan(cut(model, data[0][0][:2]), [0.4, 0.2])
    for optimizer in ("fused", "adam"):
        for client in range(2):
            assignment = plan.assignment(client)
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

    make, make_inputs = ZOO[name]
    # torch's counter does not know the fused kernels of a CPU: attention, and LSTMs in float32.
    model, number = make().double(), 6
    with sdpa_kernel(SDPBackend.MATH):
        plan = make_plan(cut(model, in_double(make_inputs(2))), [1.0, 0.5, 0.2, 0.1])
        for client in range(plan.num_clients):
            counter = flop_counter()
            inputs, targets = batches(make_inputs, 1, number)[0]
            with train_only(model, plan.assignment(client)) as part, counter:
                if fused:
                    part.fuse_sgd(0.1)
                part.backward(F.cross_entropy(model(in_double(inputs)), targets))
                part.step()
            counted = counter.get_total_flops() / number
            assert exact_flops(plan.assignment(client)).total == pytest.approx(counted, rel=1e-6)


class TrainOnlyMixing(nn.Module):
    """Does something else in training mode: mixes channels, uses a weight once more."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.head = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 4)
        self.auxiliary = nn.Linear(8, 4)

    def forward(self, x):
        h = self.a(x)
        if self.training:
            h = h - h.mean(1, keepdim=True)
        h = self.b(F.relu(h))
        if self.training:
            return self.head(h + F.linear(h, self.b.weight).tanh()) + self.auxiliary(h)
        return self.head(h)


class Latents(nn.Module):
    """A parameter is a module's input."""

    def __init__(self):
        super().__init__()
        self.latents, self.map = nn.Parameter(torch.randn(1, 6)), nn.Linear(6, 6)
        self.head = nn.Linear(6, 4)

    def forward(self, x):
        return self.head(x * self.map(self.latents))


def inplace():
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(inplace=True), Mean(), nn.Linear(8, 4))


class Mean(nn.Module):
    def forward(self, x):
        return x.mean(1)


def shared_affine():
    """Two norms with the same scales and statistics of their own; one norm is frozen."""
    layers = [nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 8), nn.BatchNorm1d(8)]
    layers[3].weight, layers[3].bias = layers[1].weight, layers[1].bias
    frozen = nn.BatchNorm1d(8).requires_grad_(False)
    return nn.Sequential(*layers, frozen, nn.Linear(8, 4))


def odd_pool():
    """A pool over what is the channels for the convolutions."""
    return nn.Sequential(
        nn.Conv1d(3, 8, 3), nn.MaxPool2d(3, 1, 1), nn.Conv1d(8, 8, 3), nn.Flatten(),
        nn.Linear(16, 4),
    )  # fmt: skip


MORE = {
    "train-only": (TrainOnlyMixing, (6,)),
    "latents": (Latents, (6,)),
    "in-place": (inplace, (5, 6)),
    "shared-affine": (shared_affine, (6,)),
    "odd-pool": (odd_pool, (3, 6)),
}


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("optimizer", ["fused", "adam", "weight decay"])
@pytest.mark.parametrize("name", MORE)
def test_what_only_looks_easy(name, optimizer, mode):
    make, shape = MORE[name]
    model = make().train(mode == "train")
    plan = make_plan(cut(model, torch.randn(4, *shape)), [0.3, 0.6, 0.15])
    data = [(torch.randn(6, *shape), torch.randint(0, 4, (6,))) for _ in range(2)]
    for client in range(plan.num_clients):
        assert_equals_masked(model, plan.assignment(client), data, optimizer)


@pytest.mark.parametrize("options", [{"fused": True}, {"foreach": True}])
def test_fused_optimisers_see_dense_rows(options):
    model, data = ZOO["volumes"][0](), batches(ZOO["volumes"][1])
    assignment = make_plan(cut(model, data[0][0]), [0.4]).assignment(0)
    ours, reference = copy.deepcopy(model), copy.deepcopy(model)
    with train_only(ours, assignment) as part:
        optimizer = torch.optim.Adam(part.parameters(), lr=0.01, eps=1e-3, **options)
        for inputs, targets in data:
            optimizer.zero_grad()
            F.cross_entropy(ours(inputs), targets).backward()
            optimizer.step()
    train_masked(reference, assignment, data, OPTIMIZERS["adam"], F.cross_entropy)
    for name, tensor in ours.state_dict().items():
        torch.testing.assert_close(tensor, reference.state_dict()[name], atol=2e-5, rtol=1e-4)
        assert tensor.is_contiguous()


def test_what_was_there_before_the_block():
    """Old gradients are left alone, and hooks switch off what they would make wrong."""
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.GRU(8, 4))
    model[0].register_forward_hook(lambda module, inputs, output: output.roll(1, 1))
    x = torch.randn(5, 6)
    assignment = make_plan(cut(model, x), [0.3] * 3).assignment(1)

    def gradients(model):
        with train_only(model, assignment) as part:
            model(x)[0].pow(2).sum().backward()
            return [(name, p.grad.clone()) for name, p in part.named_parameters()]

    clean = gradients(model)
    full = copy.deepcopy(model)
    full(x)[0].pow(2).sum().backward()
    old = {name: p.grad.clone() for name, p in full.named_parameters()}
    for (name, ours), (same, again) in zip(clean, gradients(full), strict=True):
        assert name == same and torch.equal(ours, again)
        tensor, _, rows = name.rstrip("]").partition("[")
        start, stop = map(int, rows.split(":"))
        torch.testing.assert_close(ours, old[tensor][start:stop])
    for name, parameter in full.named_parameters():
        assert torch.equal(parameter.grad, old[name])


def test_a_copy_made_inside_the_block_is_an_ordinary_model():
    model, x = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4)), torch.randn(3, 6)
    with train_only(model, make_plan(cut(model), [0.5]).assignment(0)):
        copied = copy.deepcopy(model)
    with torch.no_grad():
        copied[0].weight.fill_(0.0)
        copied[0].bias.fill_(0.0)
    torch.testing.assert_close(copied(x), copied[2].bias.expand(3, -1))


def test_autocast_trains_the_same_slices():
    model = nn.Sequential(
        nn.Conv1d(3, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(24, 8), nn.ReLU(), nn.Linear(8, 4)
    )
    data = batches(images(3, 6), number=1)
    assignment = make_plan(cut(model, data[0][0]), [0.4]).assignment(0)
    before = copy.deepcopy(model.state_dict())
    with train_only(model, assignment) as part, torch.autocast("cpu", torch.float16):
        optimizer = torch.optim.SGD(part.parameters(), lr=0.1)
        F.cross_entropy(model(data[0][0]).float(), data[0][1]).backward()
        optimizer.step()
    mask = masks(assignment)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor[mask[name] == 0], before[name][mask[name] == 0])
    assert part.update().norm > 0
