"""Training loops of the user's own, on slices: right to the last bit of float64, or refused.

A loop is written once, for parameters and a function that masks a gradient. In a block the
parameters are the slices and nothing is masked; without one they are the model's, and gradients are
masked ("full gradients times mask").
"""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from fedplt import CutError, cut, make_plan, train_only
from tests.support.block_battery import Model, block, square
from tests.support.masked_training import masks

RATE = 0.05


def in_both(model, loop, batches, ratio=0.4, example=None):
    """Train in a block and without one, and compare all parameters."""
    model = model.double()
    layers = cut(model, batches[0] if example is None else example)
    assignment = make_plan(layers, [ratio] * 3).assignment(1)
    ours, full = copy.deepcopy(model), copy.deepcopy(model)
    with train_only(ours, assignment) as part:
        loop(ours, list(part.parameters()), batches, lambda parameter: None)
    mask = {
        parameter: masks(assignment).get(name, torch.zeros(()))
        for name, parameter in full.named_parameters()
    }

    def masked(parameter):
        if parameter.grad is not None:
            parameter.grad.mul_(mask[parameter])

    loop(full, list(full.parameters()), batches, masked)
    start, wanted, got = (dict(m.named_parameters()) for m in (model, full, ours))
    moved = max(float((wanted[n] - start[n]).detach().abs().max()) for n in wanted)
    assert moved > 1e-4
    for name, value in wanted.items():
        error = float((got[name] - value).detach().abs().max()) / moved
        assert error < 1e-10, (name, error)
    assert part.update().norm > 1e-4  # the update is made of the same values
    return part


def backward(model, parameters, x, masked):
    for parameter in parameters:
        parameter.grad = None
    square(model, x).backward()
    for parameter in parameters:
        masked(parameter)


def gradients(parameters):
    return [p for p in parameters if p.grad is not None]


# Loops that assign to .data.


def by_data(model, parameters, batches, masked):
    for x in batches:
        backward(model, parameters, x, masked)
        for p in gradients(parameters):
            p.data = p.data - RATE * p.grad


def sharpness_aware(keep):
    """SAM: a step up, the gradient there, and a step down from where it was."""

    def loop(model, parameters, batches, masked):
        for x in batches:
            backward(model, parameters, x, masked)
            moved = gradients(parameters)
            norm = torch.stack([p.grad.norm() for p in moved]).norm()
            old = [keep(p) for p in moved]
            for p in moved:
                p.data = p.data + 0.05 * p.grad / norm
            backward(model, parameters, x, masked)
            for p, before in zip(moved, old, strict=True):
                p.data = before
            torch.optim.SGD(moved, RATE, foreach=True).step()

    return loop


def by_vector(model, parameters, batches, masked):
    for x in batches:
        backward(model, parameters, x, masked)
        moved = gradients(parameters)
        values = parameters_to_vector(moved).detach()
        step = parameters_to_vector([p.grad for p in moved])
        vector_to_parameters(values + step, moved)
        backward(model, parameters, x, masked)
        vector_to_parameters(values, moved)
        torch.optim.SGD(moved, RATE).step()


def by_the_models_parameters(model, parameters, batches, masked):
    """Up by the model's parameters, back by what was there."""
    for x in batches:
        backward(model, parameters, x, masked)
        old = dict(model.state_dict())
        for p in model._modules["0"].parameters():
            p.data = 1.1 * p.data
        backward(model, parameters, x, masked)
        for name, p in nn.Module.named_parameters(model):
            p.data = old[name]
        torch.optim.SGD(parameters, RATE).step()


BY_DATA = {
    "p.data = p.data - rate * p.grad": by_data,
    "SAM with copies": sharpness_aware(lambda p: p.data.clone()),
    "SAM with the old tensors": sharpness_aware(lambda p: p.data),
    "SAM with views of them": sharpness_aware(lambda p: p.detach().view(-1).view_as(p)),
    "vector_to_parameters": by_vector,
    "the model's parameters": by_the_models_parameters,
}


def mixed():
    """Layers with kernels and without, and a weight that lies in memory the other way round."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(6, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)
    )
    model[3].weight = nn.Parameter(model[3].weight.detach().t().clone().t())
    return model


def recurrent():
    torch.manual_seed(0)
    return Model(
        lambda m, x: m.head(m.memory(m.first(x)[None])[0][0]),
        first=nn.Linear(6, 5), memory=nn.GRU(5, 6), head=nn.Linear(6, 4),
    )  # fmt: skip


def inputs(number=3, *shape):
    torch.manual_seed(1)
    return list(torch.randn(number, *(shape or (5, 6))).double())


@pytest.mark.parametrize("ratio", [0.4, 1.0])
@pytest.mark.parametrize("loop", BY_DATA)
def test_assigned_data(loop, ratio):
    in_both(mixed(), BY_DATA[loop], inputs(), ratio)


def test_assigned_data_of_recurrent_layers():
    in_both(recurrent(), sharpness_aware(lambda p: p.data), inputs())


def test_memory_is_as_before_after_the_block():
    """The flat state of a model, and others that share its memory, see the trained values."""
    model = mixed()
    before = [(p.data_ptr(), p.stride(), p.detach().clone()) for p in model.parameters()]
    with block(model) as part:
        for p in part.parameters():
            p.data = p.data + 1
    after = [(p.data_ptr(), p.stride()) for p in model.parameters()]
    assert after == [(place, stride) for place, stride, _ in before]
    moved = sum(
        float((p.detach() - old).sum())
        for p, (*_, old) in zip(model.parameters(), before, strict=True)
    )
    assert moved == pytest.approx(part.num_trained, rel=1e-5)
    part.restore()
    assert all(torch.equal(p, old) for p, (*_, old) in zip(model.parameters(), before, strict=True))


@pytest.mark.parametrize("value", [torch.zeros(3, 3), torch.zeros(1).double()])
def test_data_of_another_shape_or_type_is_refused(value):
    with block(nn.Linear(6, 8)) as part:
        bias = dict(part.named_parameters())
        name = next(name for name in bias if name.startswith("bias"))
        with pytest.raises(CutError, match=r"bias\[.*\.data was given"):
            bias[name].data = value.expand(bias[name].shape) if value.ndim == 1 else value


def test_slices_in_other_memory_are_refused():
    model = nn.Linear(6, 8)
    with pytest.raises(CutError, match=r"weight was moved to other memory"), block(model) as part:
        first = next(iter(part.parameters()))
        with torch.no_grad():
            first.set_(first.clone())


# Gradients that are changed in place.


class HalvesInPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.mul_(0.5)


def test_a_gradient_that_a_backward_changes_is_nobody_elses():
    norms = []
    for wrap in (lambda loss: loss, HalvesInPlace.apply, HalvesInPlace.apply, lambda loss: loss):
        torch.manual_seed(0)
        model, x = nn.Linear(6, 8), torch.randn(5, 6)
        with block(model) as part:
            part.fuse_sgd(RATE)
            part.backward(wrap(square(model, x)))
            part.step()
        norms.append(part.update().norm)
    assert norms[0] == norms[3]
    assert norms[1] == norms[2] == pytest.approx(norms[0] / 2, rel=1e-4)


# Ways that only some batches take.


def fixed_bias(model, x):
    """The first layer's weight, in some batches with a fixed bias and behind an adapter."""
    adapted = model.adapter(x)
    hidden = model.a(x) if len(x) % 2 else F.linear(adapted, model.a.weight, model.fixed)
    return model.b(F.relu(hidden)) + adapted.mean()


def looked_up(model, x):
    """The first layer's weight, in some batches as a table."""
    hidden = model.a(x) if len(x) % 2 else F.embedding(x.argmax(1), model.a.weight)
    return model.b(F.relu(hidden))


@pytest.mark.parametrize("forward", [fixed_bias, looked_up])
@pytest.mark.filterwarnings("ignore:not trained")
def test_ways_of_some_batches(forward):
    torch.manual_seed(0)
    model = Model(
        forward,
        a=nn.Linear(6, 6, bias=False),
        fixed=nn.Parameter(torch.randn(6), requires_grad=False),
        adapter=nn.Linear(6, 6),
        b=nn.Linear(6, 4),
    )

    def loop(model, parameters, batches, masked):
        for x in batches:
            backward(model, parameters, x, masked)
            for p in gradients(parameters):
                p.data -= RATE * p.grad

    in_both(model, loop, [torch.randn(number, 6).double() for number in (5, 6, 5, 6)])


# What outlives its block.


def stepped(model, part, optimizer, x):
    """Each trains by something that an earlier block may have left."""
    square(model, x).backward()
    optimizer.step()


def by_hand(model, part, optimizer, x):
    square(model, x).backward()
    with torch.no_grad():
        for p in optimizer.param_groups[0]["params"]:
            if p.grad is not None:
                p.sub_(RATE * p.grad)


def by_autograd(model, part, optimizer, x):
    kept = optimizer.param_groups[0]["params"]
    found = torch.autograd.grad(square(model, x), kept, allow_unused=True)
    with torch.no_grad():
        for p, gradient in zip(kept, found, strict=True):
            p.sub_(0 if gradient is None else RATE * gradient)


def cleared(model, part, optimizer, x):
    optimizer.zero_grad()


def by_inputs(model, part, optimizer, x):
    square(model, x).backward(inputs=optimizer.param_groups[0]["params"])


def by_part(model, part, optimizer, x):
    part.backward(square(model, x))


def by_step_of_part(model, part, optimizer, x):
    square(model, x).backward()
    part.step()


USES = [stepped, by_hand, by_autograd, cleared, by_inputs, by_part, by_step_of_part]


@pytest.mark.parametrize("use", USES)
def test_slices_of_an_earlier_block_are_refused(use):
    model, x = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8)), torch.randn(5, 6)
    with block(model) as part:
        optimizer = torch.optim.SGD(part.parameters(), lr=RATE)
        use(model, part, optimizer, x)  # the block's own
    with block(model), pytest.raises(CutError, match="block that has ended"):
        use(model, part, optimizer, x)


def test_steps_after_the_block_are_refused():
    model = nn.Linear(6, 8)
    with block(model) as part:
        optimizer = torch.optim.SGD(part.parameters(), lr=RATE)
        square(model, torch.randn(5, 6)).backward()
    with pytest.raises(CutError, match="this SGD has slices of a train_only block that has ended"):
        optimizer.step()
    ordinary = torch.optim.SGD(model.parameters(), lr=RATE)
    square(model, torch.randn(5, 6)).backward()
    ordinary.step()


def test_two_blocks_at_once():
    one, other = nn.Linear(6, 8), nn.Linear(8, 4)
    with block(one) as first, block(other) as second:
        for part in (first, second):
            optimizer = torch.optim.SGD(part.parameters(), lr=RATE)
            square(nn.Sequential(one, other), torch.randn(5, 6)).backward()
            optimizer.step()
    assert first.update().norm > 0
    assert second.update().norm > 0


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, weight):
        return 2 * weight

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient


LATE = {
    "normalization": lambda: nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8)),
    "recurrent": recurrent,
    "a bare parameter": lambda: Model(lambda m, x: m.scale * x, scale=nn.Parameter(torch.ones(6))),
    "a function of the user's": lambda: Model(
        lambda m, x: F.linear(x, Doubled.apply(m.a.weight)), a=nn.Linear(6, 8)
    ),
}


@pytest.mark.parametrize("name", LATE)
def test_a_backward_pass_after_the_block_is_refused_where_a_gradient_would_be_lost(name):
    model, x = LATE[name](), torch.randn(5, 6)
    before = square(model, x)
    with block(model):
        loss = square(model, x)
    with pytest.raises(CutError, match="after the train_only block"):
        loss.backward()
    before.backward()
    wanted = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    assert wanted
    model.zero_grad()
    square(model, x).backward()  # although the block's graph is still there
    found = [p.grad for p in model.parameters() if p.grad is not None]
    assert all(torch.equal(one, other) for one, other in zip(wanted, found, strict=True))


def test_a_backward_pass_after_the_block_where_all_layers_have_kernels():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4)), torch.randn(5, 6)
    with block(model) as part:
        square(model, x).backward()
        wanted = [p.grad.clone() for p in part.parameters()]
        for p in part.parameters():
            p.grad = None
        loss = square(model, x)
    loss.backward()
    assert all(torch.equal(p.grad, one) for p, one in zip(part.parameters(), wanted, strict=True))


# Hooks on slices.


def normed():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv1d(6, 8, 1), nn.BatchNorm1d(8), nn.ReLU(), nn.Conv1d(8, 4, 1), nn.Flatten()
    )


def with_attention():
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(6, 2)
    return Model(
        lambda m, x: m.head(m.attention(x, x.flip(1), x)[0]),
        attention=attention,
        head=nn.Linear(6, 4),
    )


def with_table():
    """A table that scores are computed with, too."""
    torch.manual_seed(0)
    return Model(
        lambda m, x: m.first(m.table(x.argmax(1))) @ m.table.weight.T + m.scale,
        table=nn.Embedding(6, 8), first=nn.Linear(8, 8), scale=nn.Parameter(torch.tensor(0.3)),
    )  # fmt: skip


def converted():
    """Weights in the type of the input, as they are: kernels see the parameter itself."""
    torch.manual_seed(0)
    return Model(lambda m, x: F.linear(x, m.a.weight.to(x.dtype), m.a.bias), a=nn.Linear(6, 8))


def penalized():
    """A gradient of a gradient."""

    def forward(model, x):
        other = x.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(model.a(other).pow(2).sum(), other, create_graph=True)
        return model.a(x) + model.norm(gradient).sum()

    torch.manual_seed(0)
    return Model(forward, a=nn.Linear(6, 8), norm=nn.LayerNorm(6))


def penalized_twice():
    """The same, of a layer that is used twice in a row."""

    def forward(model, x):
        other = x.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(model.chain(other).sum(), other, create_graph=True)
        return model.chain(x) * gradient.pow(2).sum()

    torch.manual_seed(0)
    layer = nn.Linear(6, 6)
    return Model(forward, chain=nn.Sequential(layer, nn.ReLU(), layer))


HOOKED = {
    "normalization": (mixed, (5, 6)),
    "running statistics": (normed, (5, 6, 3)),
    "recurrent": (recurrent, (5, 6)),
    "attention": (with_attention, (5, 2, 6)),
    "a table": (with_table, (5, 6)),
    "converted": (converted, (5, 6)),
    "gradient of a gradient": (penalized, (5, 6)),
    "gradient of a gradient, used twice": (penalized_twice, (5, 6)),
}


def decayed(model, x):
    """Also of parameters that kernels have a gradient of."""
    return square(model, x) + 0.1 * sum(p.pow(2).sum() for p in nn.Module.parameters(model))


def clamped(model, parameters, batches, masked):
    """A hook that is not linear: it must see the sum of all gradients, and be called once."""
    calls = []

    def hook(gradient):
        calls.append(1)
        return gradient.clamp(-0.02, 0.02)

    for p in parameters:
        p.register_hook(hook)
    for x in batches:
        for p in parameters:
            p.grad = None
        decayed(model, x).backward()
        for p in parameters:
            masked(p)
        torch.optim.SGD(parameters, RATE).step()
    assert len(calls) == len(batches) * len(parameters)


def step_in_backward(model, parameters, batches, masked):
    optimizers = {p: torch.optim.Adam([p], lr=RATE, eps=1e-3) for p in parameters}

    def step(p):
        masked(p)
        optimizers[p].step()
        p.grad = None

    for p in parameters:
        p.register_post_accumulate_grad_hook(step)
    for x in batches:
        decayed(model, x).backward()
        assert all(p.grad is None for p in parameters)


def at_nodes(model, parameters, batches, masked):
    """Before torch had hooks for it, they were put on the node that adds gradients up."""
    nodes = [p.expand_as(p).grad_fn.next_functions[0][0] for p in parameters]
    calls = []
    for node in nodes:
        node.register_hook(lambda *_: calls.append(1))
    for x in batches:
        backward(model, parameters, x, masked)
        torch.optim.SGD(gradients(parameters), RATE).step()
    assert len(calls) == len(batches) * len(parameters)


def plain(model, parameters, batches, masked):
    for x in batches:
        backward(model, parameters, x, masked)
        torch.optim.SGD(gradients(parameters), RATE).step()


LOOPS = {
    "none": plain,
    "a hook": clamped,
    "a step in the backward pass": step_in_backward,
    "nodes": at_nodes,
}


@pytest.mark.parametrize("ratio", [0.4, 1.0])
@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("name", HOOKED)
def test_hooks_on_slices(name, loop, ratio):
    make, shape = HOOKED[name]
    in_both(make(), LOOPS[loop], inputs(3, *shape), ratio)


@pytest.mark.parametrize("is_fused", [True, False])
@pytest.mark.parametrize("name", HOOKED)
def test_slices_without_a_gradient(name, is_fused):
    """Every second parameter's gradients are switched off."""
    make, shape = HOOKED[name]
    model, (x, *_) = make().double(), inputs(1, *shape)
    ours, full = copy.deepcopy(model), copy.deepcopy(model)
    with block(ours) as part:
        off = {leaf.split("[")[0] for leaf, _ in list(part.named_parameters())[::2]}
        for leaf, p in part.named_parameters():
            p.requires_grad_(leaf.split("[")[0] not in off)
        optimizer = torch.optim.SGD(part.parameters(), lr=RATE)
        if is_fused:
            part.fuse_sgd(RATE)
            part.backward(decayed(ours, x))
            part.step()
        else:
            decayed(ours, x).backward()
            optimizer.step()
        assert all(p.grad is None for p in part.parameters() if not p.requires_grad)
        mask = masks(part.assignment)
    decayed(full, x).backward()
    for wanted, (key, p), old in zip(
        full.parameters(), ours.named_parameters(), model.parameters(), strict=True
    ):
        change = RATE * wanted.grad * mask.get(key, torch.zeros(())) * (key not in off)
        torch.testing.assert_close(p, old - change, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", HOOKED)
def test_hooks_on_slices_of_a_fused_step(name):
    make, shape = HOOKED[name]
    model, (x, *_) = make().double(), inputs(1, *shape)
    ours, full = copy.deepcopy(model), copy.deepcopy(model)
    with block(ours) as part:
        for p in part.parameters():
            p.register_hook(lambda gradient: gradient.clamp(-0.02, 0.02))
        part.fuse_sgd(RATE)
        part.backward(decayed(ours, x))
        part.step()
        mask = masks(part.assignment)
    decayed(full, x).backward()
    for wanted, (key, p), old in zip(
        full.parameters(), ours.named_parameters(), model.parameters(), strict=True
    ):
        change = RATE * wanted.grad.clamp(-0.02, 0.02) * mask.get(key, torch.zeros(()))
        torch.testing.assert_close(p, old - change, rtol=1e-10, atol=1e-12)


def test_hooks_where_a_weight_is_used_unseen():
    def forward(model, x):
        y = F.linear(x, Doubled.apply(model.a.weight))
        return y + model.a(x) if model.in_both_ways else y

    torch.manual_seed(0)
    model = Model(forward, a=nn.Linear(6, 8, bias=False))
    model.in_both_ways = False
    in_both(model, at_nodes, inputs())
    model.in_both_ways = True
    with pytest.raises(CutError, match=r"hooks on slices of a\.weight would be called twice"):
        in_both(model, clamped, inputs())


def test_hooks_registered_after_the_forward_pass():
    torch.manual_seed(0)
    model, x = mixed(), torch.randn(5, 6)
    for loss_of in (square, decayed):
        with block(model) as part:
            loss = loss_of(model, x)
            seen = []
            for p in part.parameters():
                p.register_hook(seen.append)
            if loss_of is square:
                loss.backward()
                assert len(seen) == len(list(part.parameters()))
            else:
                with pytest.raises(CutError, match="would be called twice"):
                    loss.backward()
