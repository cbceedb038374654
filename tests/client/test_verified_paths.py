"""What fast paths take for granted is verified in every call: else torch's own way is taken.

Compared by ``tests/support/block_battery.py``: steps in a block, and full gradients times mask.
"""

from __future__ import annotations

import copy
import subprocess
import sys
import threading
from unittest import mock

import pytest
import torch
import torch.distributed
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import fedplt
from fedplt import CutError, allocation_of, bind_state, cut, make_plan, train_only
from tests.support.block_battery import (
    Model,
    adam,
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


def mlp():
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))


# One example without a batch axis: as many rows as channels.


def one_example(second, norm=None, flat=False):
    def forward(model, x):
        hidden = F.relu(model.a(x[0]))  # (4, 4, 5)
        hidden = hidden if norm is None else model.n(hidden)
        return model.b(hidden.flatten(1) if flat else hidden)

    modules = {} if norm is None else {"n": norm}
    return Model(forward, a=nn.Conv2d(3, 4, 3), **modules, b=second)


UNBATCHED = {
    "flatten and Linear": lambda: one_example(nn.Linear(20, 4), flat=True),
    "Conv1d": lambda: one_example(nn.Conv1d(4, 4, 1)),
    "BatchNorm1d": lambda: one_example(nn.Conv1d(4, 4, 1), nn.BatchNorm1d(4)),
    "BatchNorm1d, flatten and Linear": lambda: one_example(
        nn.Linear(20, 4), nn.BatchNorm1d(4), flat=True
    ),
}


@pytest.mark.parametrize("name", UNBATCHED)
def test_a_convolution_of_one_example(name):
    torch.manual_seed(0)
    check(UNBATCHED[name](), torch.randn(2, 3, 6, 7))


def test_pooling_over_flattened_channels():
    torch.manual_seed(0)
    model = Model(
        lambda m, x: m.b(F.avg_pool1d(m.a(x).flatten(1), 3, 1, 1)),
        a=nn.Conv1d(3, 4, 3), b=nn.Linear(20, 4),
    )  # fmt: skip
    check(model, torch.randn(3, 3, 7))


def test_columns_are_still_left_out_where_channels_keep_their_places():
    """After a batch axis, pooling and a flatten: with and without normalization."""
    layers = cut(
        nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.MaxPool2d(2), nn.Conv2d(4, 6, 3),
            nn.MaxPool2d(3), nn.Flatten(), nn.BatchNorm1d(6), nn.Linear(6, 3),
        ),
        torch.randn(2, 1, 12, 12),
    )  # fmt: skip
    known = {flow.name: (flow.feeder, flow.columns, flow.norms) for flow in layers.flow}
    assert known["3"] == ("0", 1, ("1",)) and known["7"] == ("3", 1, ("6",))


# Classes, functions and weights that are not torch's own.


class Backwards(nn.Sequential):
    def __iter__(self):
        return iter(list(self._modules.values())[::-1])


class Between(nn.Sequential):
    def __iter__(self):
        for module in self._modules.values():
            yield module
            yield nn.Tanh()


@pytest.mark.parametrize(
    "make",
    [
        lambda: Backwards(nn.Linear(6, 4), nn.ReLU(), nn.Linear(6, 6)),
        lambda: Between(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6)),
    ],
)
def test_sequences_in_an_order_of_their_own(make):
    torch.manual_seed(0)
    check(make(), torch.randn(5, 6))


def shadowed(key, module_name):
    def forward(model, x):
        module = model.get_submodule(module_name)
        vars(module)[key] = 2 * module._parameters[key]
        try:
            return model.inner(x)
        finally:
            del vars(module)[key]

    return forward


class Looking(nn.Sequential):
    def forward(self, x):
        return super().forward(x.argmax(1))


@pytest.mark.parametrize("key", ["weight", "bias"])
@pytest.mark.parametrize("child", ["0", "2"])
def test_shadowed_weights(key, child):
    torch.manual_seed(0)
    check(Model(shadowed(key, f"inner.{child}"), inner=mlp()), torch.randn(5, 6))
    alone = Model(straight, **two())
    check(Model(shadowed(key, "inner.a"), inner=alone), torch.randn(5, 6))


def test_shadowed_embeddings():
    torch.manual_seed(0)
    inner = Looking(nn.Embedding(6, 8), nn.Linear(8, 4))
    check(Model(shadowed("weight", "inner.0"), inner=inner), torch.randn(5, 6))


def larger(function):
    def changed(*args, **kwargs):
        result = function(*args, **kwargs)
        return 1.5 * result if isinstance(result, torch.Tensor) else result

    return changed


def one_more(iterate):
    def changed(self):
        yield from iterate(self)
        yield nn.Tanh()

    return changed


PATCHED = {
    "Linear.forward": (nn.Linear, "forward", larger),
    "Linear.__call__": (nn.Linear, "__call__", larger),
    "ReLU.forward": (nn.ReLU, "forward", larger),
    "ReLU.__call__": (nn.ReLU, "__call__", larger),
    "Sequential.forward": (nn.Sequential, "forward", larger),
    "Sequential.__iter__": (nn.Sequential, "__iter__", one_more),
    "Module.__call__": (nn.Module, "__call__", larger),
    "Module._call_impl": (nn.Module, "_call_impl", larger),
    "F.linear": (F, "linear", larger),
    "F.relu": (F, "relu", larger),
    "torch.relu": (torch, "relu", larger),
    "Embedding.forward": (nn.Embedding, "forward", larger),
    "F.embedding": (F, "embedding", larger),
    "F.batch_norm": (F, "batch_norm", larger),
    "LayerNorm.forward": (nn.LayerNorm, "forward", larger),
}
CALLED = {
    "a sequence": (mlp, (5, 6)),
    "modules": (lambda: Model(straight, **two()), (5, 6)),
    "normalized": (
        lambda: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.LayerNorm(8), nn.Linear(8, 4)),
        (5, 6),
    ),
    "embedded": (lambda: Looking(nn.Embedding(6, 8), nn.Linear(8, 4)), (5, 6)),
    "attention": (
        lambda: Model(
            lambda m, x: m.b(m.a(x, x, x)[0].mean(1)),
            a=nn.MultiheadAttention(6, 2, batch_first=True), b=nn.Linear(6, 4),
        ),
        (5, 3, 6),
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("model", CALLED)
@pytest.mark.parametrize("name", PATCHED)
def test_patched_classes_and_functions(name, model):
    owner, key, change = PATCHED[name]
    torch.manual_seed(0)
    build, shape = CALLED[model]
    made = build()
    with mock.patch.object(owner, key, change(getattr(owner, key))):
        check(made, torch.randn(shape))


@pytest.mark.parametrize("name", ["Linear.forward", "ReLU.forward", "F.linear"])
def test_patched_inside_of_the_block(name):
    owner, key, change = PATCHED[name]
    torch.manual_seed(0)
    model, x = mlp(), torch.randn(5, 6)
    with block(model, 1.0):
        plain = model(x)
        with mock.patch.object(owner, key, change(getattr(owner, key))):
            found = model(x)
            assert not torch.allclose(found, plain)
    with mock.patch.object(owner, key, change(getattr(owner, key))):
        torch.testing.assert_close(found, model(x))


# A client that trains nothing below: activations have no gradient, and would have one.


def top(model, x, ratios):
    """As ``check``, for a client with these ratios of the layers."""
    model, x = model.double(), x.double()
    layers = cut(model, x)
    assignment = make_plan(layers, [allocation_of(layers.sizes, ratios)]).assignment(0)
    for optimizer in (None, sgd, adam):
        wanted = reference(model, assignment, x, square, optimizer or sgd)
        got = in_block(model, assignment, x, square, optimizer, standard)
        for (name, value), other in zip(wanted.named_parameters(), got.parameters(), strict=True):
            difference = float((value - other).detach().abs().max())
            assert difference < 1e-10, (name, optimizer, difference)


def three():
    return {"a": nn.Linear(6, 8), "c": nn.Linear(8, 8), "b": nn.Linear(8, 4)}


def reentrant(model, x):
    return model.b(checkpoint(lambda y: torch.tanh(model.c(y)), model.a(x), use_reentrant=True))


def all_reentrant(model, x):
    return checkpoint(lambda y: model.b(torch.tanh(model.c(y))), model.a(x), use_reentrant=True)


def asked(hidden):
    return torch.tanh(hidden) if hidden.requires_grad else -hidden


def hooked(model, x):
    hidden = model.a(x)
    if hidden.requires_grad:
        hidden.register_hook(lambda gradient: 2 * gradient)
        hidden.retain_grad()
    return model.b(model.c(F.relu(hidden, inplace=True)))


def chunks(model, x):
    one, other = model.a(x).chunk(2, 1)
    return model.b(model.c(torch.cat([asked(one), other], 1)))


def gradient(model, x):
    hidden = model.a(x)
    made = model.c(hidden)
    if hidden.requires_grad:
        loss = model.c(torch.tanh(hidden)).pow(2).sum()
        made = made + torch.autograd.grad(loss, hidden, create_graph=True)[0].pow(2)
    return model.b(made)


class Square(torch.autograd.Function):
    """No function mode sees it."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient * ctx.saved_tensors[0]


own_square = Square.apply  # kept from before the block, as most people do


def observed(model, x):
    hidden = model.a(x)
    hidden.register_hook(lambda gradient: 2 * gradient)
    hidden.retain_grad()
    return model.b(model.c(hidden))


UNTRAINED = {
    "branches on grad_fn": lambda m, x: m.b(m.c(m.a(x) * (2 - (m.a(x).grad_fn is None)))),
    "branches on is_leaf": lambda m, x: m.b(m.c(m.a(x) * (2 - m.a(x).is_leaf))),
    "branches after a custom function": lambda m, x: m.b(m.c(asked(own_square(m.a(x))))),
    "a custom function of a weight": lambda m, x: m.b(
        m.c(asked(F.linear(x, own_square(m.a.weight), m.a.bias)))
    ),
    "a hook without a question": observed,
    "a reentrant checkpoint": reentrant,
    "a reentrant checkpoint of all that is trained": all_reentrant,
    "branches on requires_grad": lambda m, x: m.b(m.c(asked(m.a(x)))),
    "branches on an expanded tensor": lambda m, x: m.b(m.c(asked(m.a(x[:1]).expand(5, 8)))),
    "branches on a chunk": chunks,
    "branches for data": lambda m, x: m.b(m.c(m.a(asked(2 * x)))),
    "a hook, then in place": hooked,
    "the gradient of an activation": gradient,
}


@pytest.mark.parametrize("name", UNTRAINED)
def test_above_a_layer_that_the_client_does_not_train(name):
    torch.manual_seed(0)
    top(Model(UNTRAINED[name], **three()), torch.randn(5, 6), [0.0, 0.5, 0.5])


@pytest.mark.parametrize("norm", [nn.LayerNorm(4), nn.BatchNorm1d(4)])
def test_branches_after_normalization_and_flatten(norm):
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv1d(3, 4, 3), norm, nn.ReLU(), nn.Flatten())
    model = Model(lambda m, x: m.b(asked(m.body(x))), body=body, b=nn.Linear(16, 4))
    top(model, torch.randn(5, 3, 6), [0.0, 0.5])


def test_custom_functions_are_torchs_own_after_the_block():
    kind, model = torch.autograd.function._SingleLevelFunction, Model(straight, **two())
    layers = cut(model)
    assignment = make_plan(layers, [allocation_of(layers.sizes, [0.0, 1.0])]).assignment(0)
    with train_only(model, assignment):
        assert "apply" in vars(kind)
    assert "apply" not in vars(kind)


def on_node(register):
    def forward(model, x):
        hidden = F.relu(model.a(x))
        if hidden.grad_fn is not None:
            register(hidden.grad_fn)
        return model.b(hidden)

    return forward


@pytest.mark.parametrize("register", [
    lambda node: node.register_prehook(lambda gradients: (gradients[0].flip(1),)),
    lambda node: node.register_hook(lambda inputs, outputs: (inputs[0].flip(1),)),
])  # fmt: skip
def test_hooks_on_autograd_nodes(register):
    torch.manual_seed(0)
    check(Model(on_node(register), **two()), torch.randn(5, 6))


# Normalization.


def in_thread(function, *args):
    result = []

    def run():
        result.append(function(*args))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return result[0]


@pytest.mark.parametrize("norm", [
    nn.BatchNorm1d(8), nn.InstanceNorm1d(8, affine=True, track_running_stats=True),
])  # fmt: skip
def test_frozen_statistics_in_another_thread(norm):
    torch.manual_seed(0)
    model = Model(
        lambda m, x: m.b(in_thread(lambda: m.n(m.a(x)))),
        a=nn.Conv1d(6, 8, 1), n=norm, b=nn.Conv1d(8, 4, 1),
    )  # fmt: skip
    x, before = torch.randn(5, 6, 3), copy.deepcopy(norm)
    assignment = make_plan(cut(model, x), [0.4] * 3).assignment(1)
    rows = {t.name: rows for t, rows in assignment.trained_rows}["n.running_mean"]
    trained = torch.zeros(8, dtype=torch.bool)
    for start, stop in rows:
        trained[start:stop] = True
    with train_only(model, assignment) as part:
        part.fuse_sgd(0.1)
        part.backward(model(x).pow(2).mean())
        part.step()
    assert 0 < trained.sum() < 8
    for key in ("running_mean", "running_var"):
        now, old = getattr(norm, key), getattr(before, key)
        assert torch.equal(now[~trained], old[~trained])
        assert not (now == old)[trained].any()


# What was refused or broken without words.


@pytest.mark.parametrize("model", [
    nn.Sequential(nn.Embedding(7, 6), nn.Flatten(), nn.Linear(18, 4)), mlp(),
])  # fmt: skip
def test_many_gradients_at_once(model):
    torch.manual_seed(0)
    is_embedding = isinstance(model[0], nn.Embedding)
    x = torch.randint(0, 7, (5, 3)) if is_embedding else torch.randn(5, 6).double()
    model = model.double()
    whole = copy.deepcopy(model)
    outputs = whole(x)
    basis = torch.eye(outputs.numel()).double().view(-1, *outputs.shape)
    found = torch.autograd.grad(outputs, list(whole.parameters()), basis, is_grads_batched=True)
    wanted = dict(zip(dict(whole.named_parameters()), found, strict=True))
    with train_only(model, make_plan(cut(model, x), [0.4] * 3).assignment(1)) as part:
        leaves = dict(part.named_parameters())
        found = torch.autograd.grad(model(x), list(leaves.values()), basis, is_grads_batched=True)
        for name, gradients in zip(leaves, found, strict=True):
            tensor, _, rows = name.rstrip("]").partition("[")
            start, stop = map(int, rows.split(":"))
            torch.testing.assert_close(gradients, wanted[tensor][:, start:stop])


def test_forwards_that_are_deleted_or_kept():
    model, x = mlp(), torch.randn(5, 6)
    with block(model):
        del model[0].forward
        kept = model[2].forward
        model[2].forward = lambda input: 2 * kept(input)
        doubled = model(x)
        doubled.sum().backward()
    assert {name for name, m in model.named_modules() if "forward" in vars(m)} == {"2"}
    assert all(parameter.requires_grad for parameter in model.parameters())
    loss = model(x).sum()
    loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_a_weight_computed_of_another_that_is_used_itself():
    torch.manual_seed(0)
    model = Model(
        lambda m, x: F.linear(x, m.a(m.b.weight)) * m.b(x), a=nn.Linear(6, 6), b=nn.Linear(6, 4)
    )
    check(model, torch.randn(5, 6))


def test_parallel_wrappers_are_refused():
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        model = nn.parallel.DistributedDataParallel(mlp())
        with pytest.raises(CutError, match=r"DistributedDataParallel.*\.module"):
            block(model).__enter__()
    finally:
        torch.distributed.destroy_process_group()


def test_a_flat_state_of_two_types_is_refused():
    model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 4).double())
    with pytest.raises(CutError, match=r"1\.weight is torch\.float64.*torch\.float32"):
        bind_state(model, cut(model))
    assert model[1].weight.dtype is torch.float64


class MeanAlone(nn.Module):
    """A buffer of this name, without a variance."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 4)
        self.register_buffer("running_mean", torch.zeros(8))

    def forward(self, x):
        hidden = self.a(x)
        if self.training:
            with torch.no_grad():
                self.running_mean.lerp_(hidden.mean(0).to(self.running_mean), 0.1)
        return self.b(hidden - hidden.mean(0))


def test_a_running_mean_alone_is_a_buffer():
    torch.manual_seed(0)
    check(MeanAlone(), torch.randn(5, 6))
    assert fedplt.check(MeanAlone(), torch.randn(5, 6)).is_right


PATCHED_FIRST = """
import copy, os, sys, torch
import torch.nn.functional as F
from torch import nn

def check(owner, key, outcome):
    owner = eval(owner)
    own = getattr(owner, key)
    setattr(owner, key, lambda *args, **kwargs: 1.5 * own(*args, **kwargs).flip(-1))
    import fedplt
    torch.manual_seed(0)
    x = torch.randn(5, 6).double()
    model = nn.Sequential(
        nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 4)
    ).double()
    full = copy.deepcopy(model)
    assignment = fedplt.make_plan(fedplt.cut(model, x), [1.0]).assignment(0)
    with fedplt.train_only(model, assignment) as part:
        try:
            model(x).pow(2).sum().backward()
        except fedplt.CutError as error:
            assert outcome == "refused" and key in str(error), error
            return
        found = [p.grad for p in model.parameters()]
    assert outcome == "right"
    full(x).pow(2).sum().backward()
    for one, other in zip(found, full.parameters()):
        torch.testing.assert_close(one, other.grad)
    assert key == "layer_norm" or fedplt.check(model, x).is_right

wrong = []
for case in sys.argv[1:]:  # one process each: a patch comes before fedplt's import
    if not (child := os.fork()):
        try:
            check(*case.split())
        except BaseException as error:
            print(case, repr(error), file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        wrong.append(case)
assert not wrong, wrong
"""


@pytest.mark.slow
def test_patched_before_fedplt_was_imported():
    cases = [
        "nn.Linear forward right",
        "nn.Sequential forward right",
        "nn.ReLU forward right",
        "F linear right",
        "F relu refused",
        "torch relu right",
        "F layer_norm right",
    ]
    done = subprocess.run(
        [sys.executable, "-c", PATCHED_FIRST, *cases],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
