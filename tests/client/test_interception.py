"""Models that do more than call their modules: right to the last bit of float64, or refused.

Each is trained for three steps in a block and by "full gradients times mask", at two ratios, fused
and with two optimizers.
"""

from __future__ import annotations

import copy
import types
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

import fedplt
from fedplt import CutError, cut, make_plan, train_only
from fedplt.client import ClientTrainer, TrainOrder
from fedplt.kernels import read_state
from tests.support.block_battery import (
    Model,
    block,
    check,
    in_block,
    reference,
    sgd,
    square,
    standard,
    straight,
    two,
)
from tests.support.jobs import blob_job


def gradient_in_forward(model, x):
    other = x.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(model.a(other).sum(), other)
    return model.a(x + 0.1 * gradient)


def calls_itself(model, x):
    return model(x[:, :6]) - model(x[:, 6:]) if x.shape[1] == 12 else straight(model, x)


class Standardized(nn.Conv2d):
    def _conv_forward(self, x, weight, bias):
        return super()._conv_forward(x, 2 * (weight - weight.mean()), bias)


class Patched(nn.Conv2d):
    """As if an instance had been patched (which deepcopy does not copy)."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self._conv_forward = types.MethodType(
            lambda self, x, weight, bias: F.conv2d(x, 3 * weight, bias), self
        )

    def __deepcopy__(self, memo):
        made = Patched(self.in_channels, self.out_channels, self.kernel_size).to(self.weight)
        made.load_state_dict(self.state_dict())
        return made


def images(first):
    return nn.Sequential(first, nn.ReLU(), nn.Flatten(), nn.Linear(54, 4))


def tied():
    model = nn.Sequential(nn.Conv2d(6, 6, 3), nn.ReLU(), nn.ConvTranspose2d(6, 6, 3))
    model[2].weight = model[0].weight
    return model


def flattened(model, x):
    hidden = F.relu(model.a(x))
    return model.b(hidden.flatten(1) if x.ndim == 4 else hidden.reshape(1, -1))


def branches(model, x):
    hidden = F.relu(model.a(x))
    return model.b(hidden.flip(1) if len(x) == 5 else hidden)


def hooked(model, x):
    hidden = F.relu(model.a(x))
    if hidden.requires_grad:
        hidden.register_hook(lambda gradient: gradient.flip(1))
    return model.b(hidden)


def penalty(model, x):
    hidden = F.relu(model.a(x))
    loss = model.b(hidden).pow(2).mean()
    (gradient,) = torch.autograd.grad(loss, hidden, retain_graph=True)
    return loss + (gradient.detach() * hidden).sum()


def clamps(model, x):
    model.a.weight.data = model.a.weight.data.clamp(-0.3, 0.3)
    return straight(model, x)


def checkpointed(reentrant):
    def forward(model, x):
        if reentrant and not x.requires_grad:
            x = x.clone().requires_grad_()
        hidden = checkpoint(lambda y: F.relu(model.c(model.a(y))), x, use_reentrant=reentrant)
        return model.b(hidden)

    return forward


def decay(model, x):
    return square(model, x) + 0.1 * sum(p.pow(2).sum() for p in model.parameters())


def doubled(model, x):
    weights = {"weight": 2 * model.a.weight, "bias": model.a.bias}
    return model.b(F.relu(functional_call(model.a, weights, (x,))))


def shared_tail(model, x):
    """The example (two rows) goes through the first, other batches through the second."""
    first = model.a(x).sum(1, keepdim=True)
    return model.one(x) if len(x) == 2 else model.two(x) + first


def with_shared_tail():
    a, c, tail = nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(8, 4)
    one = nn.Sequential(a, nn.ReLU(), tail)
    return Model(shared_tail, a=a, one=one, two=nn.Sequential(c, nn.ReLU(), tail))


def four_times(model, x):
    if not x.requires_grad:
        x = x.clone().requires_grad_()
    for _ in range(4):
        x = checkpoint(model.a, x, use_reentrant=True)
    return x


def scales_gradients(model, x):
    if not model.a.weight._backward_hooks:
        model.a.weight.register_hook(lambda gradient: 2 * gradient)
    return straight(model, x)


MODELS = {
    "one weight in four checkpoints": (Model(four_times, a=nn.Linear(6, 6)), (5, 6)),
    "a hook on a weight": (Model(scales_gradients, **two()), (5, 6)),
    "gradient in forward": (Model(gradient_in_forward, a=nn.Linear(6, 8)), (5, 6)),
    "calls itself": (Model(calls_itself, **two()), (5, 12)),
    "overrides _conv_forward": (images(Standardized(3, 6, 3)), (4, 3, 5, 5)),
    "patched _conv_forward": (images(Patched(3, 6, 3)), (4, 3, 5, 5)),
    "one weight on two axes": (tied(), (3, 6, 7, 7)),
    "transposed": (Model(lambda m, x: m.a(x) @ m.a.weight, a=nn.Linear(6, 8)), (5, 6)),
    "functional call": (Model(doubled, **two()), (5, 6)),
    "hook on an activation": (Model(hooked, **two()), (5, 6)),
    "assigns data": (Model(clamps, **two()), (5, 6)),
    "checkpoint": (Model(checkpointed(False), c=nn.Linear(8, 8), **two()), (5, 6)),
    "reentrant checkpoint": (Model(checkpointed(True), c=nn.Linear(8, 8), **two()), (5, 6)),
    "vmap": (Model(lambda m, x: torch.vmap(m.a)(x), a=nn.Linear(6, 8)), (5, 6)),
    "func.grad": (
        Model(
            lambda m, x: m.a(x) * torch.func.grad(lambda y: m.a(y).sum())(x).sum(),
            a=nn.Linear(6, 8),
        ),
        (5, 6),
    ),
    "noncontiguous": (
        nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 4)),
        (5, 6),
    ),
}
MODELS["noncontiguous"][0][0].weight = nn.Parameter(torch.randn(6, 8).t())


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_equals_full_gradients_times_mask(name):
    torch.manual_seed(0)
    model, shape = MODELS[name]
    check(model, torch.randn(shape))


@pytest.mark.parametrize("loss", [penalty, decay])
def test_losses_that_look_inside(loss):
    torch.manual_seed(0)
    check(Model(straight, **two()), torch.randn(5, 6), loss)


@pytest.mark.filterwarnings("ignore:not trained")
def test_ways_that_the_example_does_not_take():
    torch.manual_seed(0)
    model = with_shared_tail().double()
    layers = cut(model, torch.randn(2, 6).double())
    x = torch.randn(5, 6).double()
    assignment = make_plan(layers, [0.4] * 3).assignment(1)
    wanted = reference(model, assignment, x, square, sgd)
    got = in_block(model, assignment, x, square, None, standard)
    for one, other in zip(wanted.parameters(), got.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)
    check(Model(branches, **two()), torch.randn(5, 6), example=torch.randn(2, 6))
    modules = {"a": nn.Conv2d(2, 6, 2), "b": nn.Linear(24, 4)}
    check(Model(flattened, **modules), torch.randn(2, 3, 3), example=torch.randn(4, 2, 3, 3))


def by_model(set_to_none):
    def idiom(model, optimizer, part, loss):
        model.zero_grad(set_to_none=set_to_none)
        loss().backward()

    return idiom


def by_inputs(model, optimizer, part, loss):
    optimizer.zero_grad()
    loss().backward(inputs=list(part.parameters()))


def by_inputs_of_the_model(model, optimizer, part, loss):
    optimizer.zero_grad()
    loss().backward(inputs=list(model.parameters()))


def accumulated(model, optimizer, part, loss):
    """Halves of a sum; the same as the sum."""
    optimizer.zero_grad()
    (loss() / 2).backward()
    (loss() / 2).backward()


IDIOMS = {
    "model.zero_grad()": by_model(True),
    "zeros instead of None": by_model(False),
    "inputs=": by_inputs,
    "inputs=model.parameters()": by_inputs_of_the_model,
    "accumulation": accumulated,
}


@pytest.mark.parametrize("idiom", IDIOMS)
def test_idioms_of_training_loops(idiom):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 4))
    check(model, torch.randn(5, 6), idiom=IDIOMS[idiom])


def test_clipping_by_the_models_parameters():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4)), 9 * torch.randn(5, 6)
    with block(model) as part:
        square(model, x).backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        gradients = [leaf.grad for leaf in part.parameters()]
        clipped = torch.cat([gradient.flatten() for gradient in gradients]).norm()
    assert norm > 0.2
    assert float(clipped) == pytest.approx(0.1, rel=1e-4)


def test_copies_made_inside_are_ordinary_models():
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
    with block(model):
        copied = copy.deepcopy(model)
        averaged = {name: value.detach().clone() for name, value in model.named_parameters()}
        x = torch.randn(5, 6)
        zero = {name: torch.zeros_like(value) for name, value in averaged.items()}
        assert not functional_call(model, zero, (x,)).any()  # an average's values are used
    assert all(parameter.requires_grad for parameter in copied.parameters())
    square(copied, torch.randn(5, 6)).backward()
    assert all(parameter.grad is not None for parameter in copied.parameters())


def test_hooks_of_all_modules_run():
    model, seen = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4)), []
    handle = nn.modules.module.register_module_forward_hook(lambda m, *_: seen.append(type(m)))
    try:
        with block(model):
            model(torch.randn(5, 6))
    finally:
        handle.remove()
    assert seen == [nn.Linear, nn.ReLU, nn.Linear, nn.Sequential]


def test_replaced_parameters_are_refused():
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
    values = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(CutError, match=r"0\.weight was replaced by another tensor"), block(model):
        model.load_state_dict(values, assign=True)


def test_a_model_can_be_saved_inside_the_block(tmp_path):
    model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 4))
    with block(model):
        torch.save(model, tmp_path / "model.pt")
        copies = [copy.deepcopy(model), torch.load(tmp_path / "model.pt", weights_only=False)]
    x = torch.randn(5, 6)
    for copied in copies:
        assert torch.equal(copied(x), model(x))
        with block(copied):  # as trainable as the model
            copied(x).sum().backward()


@pytest.mark.parametrize("workers", [1, 2])
def test_models_that_write_to_their_weights_do_not_reach_the_next_client(workers):
    class Clamped(nn.Linear):
        def forward(self, x):
            with torch.no_grad():
                self.weight.clamp_(-0.05, 0.05)
            return super().forward(x)

    results = []
    for number in (1, workers):
        torch.manual_seed(0)
        model = nn.Sequential(Clamped(6, 8), nn.ReLU(), nn.Linear(8, 3))
        x = torch.randn(60, 6)
        data = (x, (x[:, 0] > 0).long())
        history = fedplt.train(
            model, data, data, ratios=[0.3, 0.3, 0.3], rounds=2, engine={"workers": number}
        )
        results.append((history.rounds[-1].loss, model[0].weight.clone()))
    assert results[0][0] == results[1][0]
    assert torch.equal(results[0][1], results[1][1])


def test_empty_batches_of_sequences():
    model = nn.Linear(6, 8)
    with block(model):
        assert model(torch.randn(0, 3, 6)).shape == (0, 3, 8)


def test_switching_gradients_off_inside():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4)), torch.randn(5, 6)
    before = model[0].weight.detach().clone()
    with block(model) as part:
        model[0].requires_grad_(False)
        assert not model[0].weight.requires_grad
        part.fuse_sgd(0.1)
        part.backward(square(model, x))
        part.step()
        assert torch.equal(model[0].weight, before)
        model[0].requires_grad_(True)
        part.backward(square(model, x))
        part.step()
    assert not torch.equal(model[0].weight, before)
    model[0].weight.requires_grad_(False)
    plan = make_plan(cut(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))), [0.4] * 3)
    with (
        pytest.raises(CutError, match=r"0\.weight is frozen"),
        train_only(model, plan.assignment(1)),
    ):
        pass


def test_gradients_of_planned_parameters_are_refused_in_words():
    model = nn.Linear(6, 8)
    with pytest.raises(CutError, match=r"with respect to weight"), block(model):
        torch.autograd.grad(square(model, torch.randn(2, 6)), list(model.parameters()))


WRITES = {
    "clamp_": lambda w: w.clamp_(-0.01, 0.01),
    "foreach": lambda w: torch._foreach_mul_([w], 0.5),
    "view": lambda w: w[:].mul_(0.5),
    "detached": lambda w: w.detach().mul_(0.5),
    "out": lambda w: torch.mul(w, 0.5, out=w),
    "data": lambda w: w.data.mul_(0.5),
}


@pytest.mark.parametrize("name", WRITES)
def test_writing_to_parameters_is_noticed(name):
    model = nn.Linear(6, 8)
    with block(model) as part:
        optimizer = torch.optim.Adam(part.parameters())
        square(model, torch.randn(2, 6)).backward()
        optimizer.step()
        assert part.untrained_before is None
        with torch.no_grad():
            WRITES[name](model.weight)
        assert part.untrained_before is not None


def test_a_client_that_fails_leaves_nothing_behind():
    job = blob_job()
    state = read_state(job.model, job.layers)
    trainer = ClientTrainer(job.model, job.layers, state, job.plan.local_index)
    trainer.refresh()

    def fails(outputs, targets):
        calls.append(1)
        if len(calls) == 2:
            raise ValueError("no loss today")
        return F.cross_entropy(outputs, targets)

    calls: list[int] = []
    training = replace(job.training.with_settings(batch_size=2), loss=fails)
    assignment = job.plan.assignment(0)
    order = TrainOrder(
        client=0, round=0, seed=0, assignment=assignment, training=training, learning_rate=0.5
    )
    with pytest.raises(ValueError, match="no loss today"):
        trainer.train(order, job.samples, job.examples(0), torch.empty(assignment.update_size))
    assert torch.equal(trainer.state, state)
