"""The memory of a training step: counted, measured, and what is not kept."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from fedplt import cut, make_plan, train_only
from fedplt.client import LocalTraining, TrainingConfig
from fedplt.client.tasks import next_token_loss
from fedplt.client.training_memory import MemoryCounter, training_memory
from fedplt.cutting import example_model
from fedplt.fleet import planned_share
from fedplt.planning import sublayers_assignment
from fedplt.torch_internals import recorded_allocations


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(10, 30), nn.Tanh(), nn.Linear(30, 20), nn.Tanh(), nn.Linear(20, 4)
    )


def assignment(counts, model=None):
    return sublayers_assignment(cut(model or network(), torch.zeros(2, 10)), counts)


def test_allocations_are_recorded_in_order():
    with recorded_allocations() as sizes:
        first = torch.zeros(1000)
        del first
        second = torch.zeros(10)
    assert sizes == [4000, -4000, 40]
    assert second.sum() == 0


def test_every_part_of_a_small_network():
    found = training_memory(network(), torch.zeros(2, 10), assignment([30, 20, 4]), batch_size=8)
    numbers = 30 * 11 + 20 * 31 + 4 * 21
    assert found.weights == 4 * numbers
    assert found.buffers == found.optimizer == found.gradients == 0
    # Inputs, both tanh (each is also the next Linear's input), and what cross entropy keeps:
    # its log-probabilities, the labels (int64) and the sum of the weights.
    assert found.activations == 8 * 4 * (10 + 30 + 20 + 4) + 8 * 8 + 4
    assert found.peak > found.weights + found.update + found.activations
    # Nothing else is held than inputs and outputs, those of the step before, and one gradient.
    assert found.peak < found.weights + found.update + found.activations + 8 * 4 * (20 + 30 + 30)


@pytest.mark.parametrize(
    ("optimizer", "options", "each"),
    [("sgd", {"momentum": 0.9}, 1), ("adam", {}, 2), ("sgd", {"weight_decay": 0.1}, 0)],
)
def test_an_optimizer_has_gradients_and_its_state(optimizer, options, each):
    training = LocalTraining(TrainingConfig(optimizer=optimizer, optimizer_options=options))
    part = assignment([3, 2, 4])
    found = training_memory(network(), torch.zeros(2, 10), part, batch_size=8, training=training)
    assert found.gradients == 4 * part.num_trained
    assert found.optimizer == 4 * each * part.num_trained


def test_a_frozen_layer_keeps_no_input():
    """Neither below the lowest trained layer nor above it, whether or not it has a kernel."""
    below = training_memory(network(), torch.zeros(2, 10), assignment([0, 0, 4]), batch_size=8)
    assert sum(number for name, number in below.saved.items() if name) == 8 * 4 * 20
    for rows in (30, 5):  # with 5 rows, the layer above computes only some columns: a kernel
        above = training_memory(network(), torch.zeros(2, 10), assignment([rows, 0, 4]))
        assert "2" not in above.saved
        trained = training_memory(network(), torch.zeros(2, 10), assignment([rows, 1, 4]))
        assert above.activations <= trained.activations


def test_what_a_frozen_linear_passes_on_can_be_differentiated_again():
    model, x = network(), torch.randn(8, 10)
    with train_only(model, assignment([5, 0, 4], model)) as part:
        gradients = torch.autograd.grad(
            model(x).square().sum(), part.parameters(), create_graph=True
        )
        sum(g.square().sum() for g in gradients).backward()
        found = [leaf.grad.clone() for leaf in part.parameters()]
    own = dict(model.named_parameters())
    wanted = torch.autograd.grad(model(x).square().sum(), own.values(), create_graph=True)
    rows = {"0.weight": 5, "0.bias": 5, "4.weight": 4, "4.bias": 4}
    kept = [g[: rows[name]] for name, g in zip(own, wanted, strict=True) if name in rows]
    sum(g.square().sum() for g in kept).backward()
    names = [name.partition("[")[0] for name, _ in part.named_parameters()]
    for name, gradient in zip(names, found, strict=True):
        torch.testing.assert_close(gradient, own[name].grad[: rows[name]])


def test_wide_frozen_linears_can_be_differentiated_again_too():
    """Their products are large enough for oneDNN, whose call has no derivative."""
    torch.manual_seed(0)
    layers = [nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 4)]
    model, x = nn.Sequential(*layers), torch.randn(64, 512)
    share = sublayers_assignment(cut(model, x), (102, 0, 4))
    with train_only(model, share) as part:
        (first, *_) = torch.autograd.grad(
            model(x).square().sum(), part.parameters(), create_graph=True
        )
        first.square().sum().backward()
        found = next(iter(part.parameters())).grad.clone()
    own = model[0].weight
    (wanted,) = torch.autograd.grad(model(x).square().sum(), own, create_graph=True)
    wanted[:102].square().sum().backward()
    torch.testing.assert_close(found, own.grad[:102], rtol=1e-3, atol=1e-3)


class TwoOutputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(10, 8)

    def forward(self, x):
        return self.a(x), {"more": x.sum(1)}


def test_models_may_return_anything():
    model = TwoOutputs()
    assert training_memory(model, torch.zeros(2, 10), assignment([4], model)).peak > 0


CASES = [(1.0, 0), (0.3, 0), (0.06, 0), (0.1, 0.5)]


@pytest.mark.parametrize("name", ["fcn", "resnet8", "vit", "text"])
def test_the_count_is_what_a_real_training_takes(name):
    model, example, layers = example_model(name)
    training = LocalTraining(loss=next_token_loss) if name == "text" else LocalTraining()
    counter = MemoryCounter(model, example, training)
    for ratio, frozen in CASES:
        share = planned_share(layers, ratio, round(frozen * len(layers)))
        part = make_plan(layers, [share]).assignment(0)
        counted = counter.memory(part, 16)
        assert counted.peak == pytest.approx(counter.measure(part, 16), rel=0.04)
        assert counted.activations <= counted.peak


def test_micro_batches_need_less_where_activations_are_most():
    model, example, layers = example_model("vit")
    counter, part = MemoryCounter(model, example), make_plan(layers, [0.1]).assignment(0)
    whole = counter.memory(part, 32)
    peaks = [counter.memory(part, 32, size).peak for size in (16, 8, 1)]
    assert peaks == sorted(peaks, reverse=True)
    assert peaks[0] < 0.6 * whole.peak
    assert counter.memory(part, 32, 32).peak == pytest.approx(whole.peak, rel=0.001)
    training = LocalTraining(TrainingConfig(micro_batch=8))
    found = training_memory(model, example, part, batch_size=32, training=training)
    assert found.peak == pytest.approx(peaks[1], rel=0.001)


def test_counting_changes_nothing():
    model, state = network(), torch.get_rng_state()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    np.random.seed(3)
    expected = np.random.RandomState(3).rand()
    training_memory(model, torch.zeros(2, 10), assignment([3, 2, 4], model))
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert np.random.rand() == expected
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_inputs_by_name_and_a_loss_that_cannot_be_guessed():
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(3, 5), nn.Linear(5, 2)

        def forward(self, left, right):
            return self.two(torch.tanh(self.one(left + right)))

    def pairs(outputs, targets):
        raise ValueError("needs targets of its own kind")

    example = {"left": torch.zeros(2, 3), "right": torch.zeros(2, 3)}
    model = Named()
    part = make_plan(cut(model, example), [1.0]).assignment(0)
    found = training_memory(model, example, part, batch_size=4, training=LocalTraining(loss=pairs))
    assert found.activations == 4 * 4 * (3 + 5 + 2)
