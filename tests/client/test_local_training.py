"""Local training: batches and settings."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedplt import cut, make_plan
from fedplt.client import OPTIMIZERS, TrainingConfig
from fedplt.client.local_training import LocalTraining, batches, train_client
from fedplt.data.samples import TensorSamples
from fedplt.planning.assignment import LocalRecipe
from tests.support.jobs import blobs, small_model


def indices(number, **settings):
    random = np.random.default_rng(0)
    return [batch.tolist() for batch in batches(number, TrainingConfig(**settings), random)]


def test_an_epoch_sees_every_example_once():
    got = indices(10, batch_size=4, local_epochs=2)
    assert [len(batch) for batch in got] == [4, 4, 2, 4, 4, 2]
    assert sorted(chain(*got[:3])) == sorted(chain(*got[3:])) == list(range(10))
    assert got[:3] != got[3:]


def test_steps_draw_batches_anew():
    got = indices(10, batch_size=4, local_steps=5, local_epochs=None)
    assert [len(set(batch)) for batch in got] == [4] * 5
    assert [len(batch) for batch in indices(3, batch_size=64, local_steps=2)] == [3, 3]


def test_full_batches():
    assert [len(batch) for batch in indices(10, batch_size="full", local_epochs=3)] == [10] * 3


def train(client=0, round=0, seed=0, augment=None, **settings):
    torch.manual_seed(0)
    model = small_model()
    plan = make_plan(cut(model), [0.5, 0.3])
    before = {name: value.clone() for name, value in model.state_dict().items()}
    loss = train_client(
        model, plan.assignment(client), TensorSamples(*blobs(60)),
        range(30 * client, 30 * client + 30),
        LocalTraining(TrainingConfig(**settings), augment=augment),
        learning_rate=0.1, seed=seed, round=round, client=client,
    )  # fmt: skip
    assert loss > 0
    after = model.state_dict()
    change = [
        (after[spec.name] - before[spec.name])[start:stop].flatten()
        for spec, start, stop, _ in plan.layers.tensor_segments(plan.assignment(client).slices)
    ]
    return torch.cat(change)


def test_is_keyed_by_seed_round_and_client():
    first = train(batch_size=8)
    assert torch.equal(first, train(batch_size=8))
    assert not torch.equal(first, train(batch_size=8, round=1))
    assert not torch.equal(first, train(batch_size=8, seed=1))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_moves_the_slice(name):
    assert train(optimizer=name).norm() > 0


def test_full_gradient_descent_by_hand():
    """One full-batch step changes the slice by minus the learning rate times the gradient."""
    update = train(batch_size="full")
    torch.manual_seed(0)
    model = small_model()
    inputs, targets = blobs(60)
    torch.nn.functional.cross_entropy(model(inputs[:30]), targets[:30]).backward()
    plan = make_plan(cut(model), [0.5, 0.3])
    expected = [
        -0.1 * dict(model.named_parameters())[spec.name].grad[start:stop].flatten()
        for spec, start, stop, _ in plan.layers.tensor_segments(plan.assignment(0).slices)
    ]
    torch.testing.assert_close(update, torch.cat(expected), atol=1e-6, rtol=1e-5)


def test_augmentation_gets_a_keyed_generator():
    seen = []

    def shift(inputs, generator):
        seen.append(float(torch.rand((), generator=generator)))
        return inputs + seen[-1]

    plain, augmented = train(), train(augment=shift)
    assert not torch.equal(plain, augmented)
    first, seen[:] = list(seen), []
    train(augment=shift)
    assert seen == first


def test_fedprox_pulls_back_to_the_global_values():
    """Equals plain gradient descent on the loss plus half the strength times the distance."""
    inputs, targets = blobs(30)
    torch.manual_seed(0)
    model, reference = small_model(), small_model()
    reference.load_state_dict(model.state_dict())
    start = [p.detach().clone() for p in reference.parameters()]
    for _ in range(5):
        reference.zero_grad()
        pull = sum(((p - q) ** 2).sum() for p, q in zip(reference.parameters(), start, strict=True))
        (torch.nn.functional.cross_entropy(reference(inputs), targets) + 0.35 * pull).backward()
        with torch.no_grad():
            for parameter in reference.parameters():
                parameter.sub_(0.1 * parameter.grad)
    settings = LocalTraining(TrainingConfig(local_epochs=5, batch_size="full", proximal=0.7))
    train_client(
        model, make_plan(cut(model), [1.0]).assignment(0), TensorSamples(inputs, targets),
        range(30),
        settings, learning_rate=0.1, seed=0, round=0, client=0,
    )  # fmt: skip
    for one, two in zip(model.parameters(), reference.parameters(), strict=True):
        assert torch.allclose(one, two, atol=1e-6)


def test_fedprox_keeps_clients_near():
    assert torch.equal(train(proximal=0.0, local_epochs=4), train(local_epochs=4))
    assert train(proximal=5.0, local_epochs=4).norm() < train(local_epochs=4).norm()


def test_masked_loss_by_hand():
    """An absent class has output 0, so it adds exp(0) = 1 to the softmax's denominator."""
    torch.manual_seed(0)
    model, inputs, targets = small_model(), blobs(30)[0], torch.arange(30) % 2  # never class 2
    with torch.no_grad():
        first, second, _ = model(inputs).unbind(1)
        chosen = torch.where(targets == 0, first, second)
        expected = ((first.exp() + second.exp() + 1).log() - chosen).mean()
    settings = LocalTraining(
        TrainingConfig(batch_size="full"), recipe=LocalRecipe(masked_loss=True)
    )
    loss = train_client(
        model, make_plan(cut(model), [1.0]).assignment(0), TensorSamples(inputs, targets),
        range(30),
        settings, learning_rate=0.1, seed=0, round=0, client=0,
    )  # fmt: skip
    assert loss == pytest.approx(float(expected), rel=1e-6)


@given(
    st.integers(1, 40),
    st.sampled_from(["full", 30, 11]),
    st.sampled_from([
        {}, {"optimizer_options": {"momentum": 0.9}}, {"optimizer": "rmsprop"}, {"proximal": 0.1},
    ]),
)  # fmt: skip
@settings(max_examples=30, deadline=None)
def test_micro_batches_give_the_update_of_the_whole_batch(size, batch_size, options):
    """For any size, with unequal parts, with fused SGD and with optimizers."""
    known = {"batch_size": batch_size, "local_epochs": 3, **options}
    whole = train(**known)
    parts = train(micro_batch=size, **known)
    torch.testing.assert_close(parts, whole, rtol=1e-4, atol=1e-6)
    if size >= 30:
        assert torch.equal(parts, whole)


def test_micro_batches_do_not_weigh_small_parts_more():
    """Parts of 29 and 1 example: the single one counts as every other."""
    whole, parts = train(batch_size="full"), train(batch_size="full", micro_batch=29)
    torch.testing.assert_close(parts, whole, rtol=1e-4, atol=1e-6)
    assert not torch.equal(parts, whole)  # they were split


def test_the_loss_of_micro_batches_is_that_of_the_batch():
    def loss(**options):
        torch.manual_seed(0)
        model = small_model()
        part = make_plan(cut(model), [0.5]).assignment(0)
        given = LocalTraining(TrainingConfig(batch_size="full", **options))
        samples = TensorSamples(*blobs(60))
        return train_client(
            model, part, samples, range(30), given, learning_rate=0.1, seed=0, round=0, client=0
        )

    assert loss(micro_batch=7) == pytest.approx(loss(), rel=1e-6)
