"""Models that do unusual things with torch: right to the last bit of float64, or refused in words.

Compared by ``tests/support/block_battery.py``: steps in a block, and full gradients times mask.
"""

from __future__ import annotations

import copy
import io
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.autograd.forward_ad
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call
from torch.nn.utils import parametrizations, parametrize, prune
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

import fedplt
from fedplt import CutError, cut, make_plan, train_only
from tests.support.block_battery import Model, adam, block, check, sgd, straight, two

pytestmark = pytest.mark.slow


def as_buffer(module, key="weight"):
    value = getattr(module, key).detach().clone()
    delattr(module, key)
    module.register_buffer(key, value)
    return module


def mlp():
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))


class Flip(torch.autograd.Function):
    """Mixes channels, whatever it is called."""

    @staticmethod
    def forward(ctx, x):
        return x.flip(1)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.flip(1)


def named(name):
    function = type(name, (Flip,), {})
    return Model(lambda m, x: m.b(function.apply(m.a(x))), **two())


def dual(model, x):
    with torch.autograd.forward_ad.dual_level():
        made = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
        return sum(torch.autograd.forward_ad.unpack_dual(model.b(torch.tanh(model.a(made)))))


def jacobian(model, x):
    rows = torch.vmap(torch.func.jacrev(lambda y: torch.tanh(model.a(y))))(x)
    return rows.sum(-1) + model.a(x)


def adapted(model, x):
    """One inner step of MAML."""
    own = dict(model.a.named_parameters())
    gradients = torch.func.grad(lambda p: functional_call(model.a, p, (x,)).pow(2).mean())(own)
    moved = {name: own[name] - 0.1 * gradients[name] for name in own}
    return model.b(functional_call(model.a, moved, (x,)))


def nested(model, x):
    rows = model.a(torch.nested.as_nested_tensor(list(x), layout=torch.jagged))
    return model.b(F.relu(rows)).values().reshape(len(x), -1)


def in_place(model, x):
    with torch.no_grad():
        model.a.weight.mul_(0.9)
    return straight(model, x)


class Doubling(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        result = super().__torch_function__(func, types, args, kwargs or {})
        return 2 * result if func is F.linear else result


class DoublingMode(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return 2 * result if func is F.linear else result


def under_a_mode(model, x):
    with DoublingMode():
        return model.inner(x)


@torch.compile(backend="eager")
def compiled(model, x):
    return straight(model, x)


def shares(model, x):
    with ThreadPoolExecutor(2) as threads:
        return torch.cat(list(threads.map(lambda part: straight(model, part), x.chunk(2))))


class Standardized(nn.Conv2d):
    def forward(self, x):
        weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        return F.conv2d(x, weight / (weight.std((1, 2, 3), keepdim=True) + 1e-5), self.bias)


class Registered(nn.Module):
    """Has a parameter only after the first pass."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 4)

    def forward(self, x):
        if not hasattr(self, "late"):
            self.late = nn.Parameter(torch.ones(8).to(x))
        return self.b(self.a(x) * self.late)


def registered():
    model = Registered().double()
    model(torch.randn(2, 6).double())
    return model


def attention(**options):
    modules = {"at": nn.MultiheadAttention(8, 2, batch_first=True, **options), "b": nn.Linear(8, 4)}
    widths = {"k": nn.Linear(8, options.get("kdim", 8)), "v": nn.Linear(8, options.get("vdim", 8))}
    return Model(lambda m, x: m.b(m.at(x, m.k(x), m.v(x))[0].mean(1)), **modules, **widths)


def target(model, x):
    with torch.no_grad():
        wanted = straight(model, x)
    return straight(model, x) - 0.9 * wanted


def scripted(kind, inputs):
    with pytest.warns(DeprecationWarning):
        return torch.jit.trace(kind, inputs)


def sparse_rows(model, x):
    rows = F.embedding(x.argmax(1), model.a.weight, sparse=True)
    return model.b(torch.cat([rows, rows[:, :2]], 1))


MODELS = {
    "a weight that is a buffer": (
        lambda: nn.Sequential(nn.Linear(6, 8), as_buffer(nn.Linear(8, 8)), nn.Linear(8, 4)),
        (5, 6),
    ),
    "a bias that is a buffer": (
        lambda: nn.Sequential(
            nn.Linear(6, 8), nn.ReLU(), as_buffer(nn.Linear(8, 8), "bias"), nn.Linear(8, 4)
        ),
        (5, 6),
    ),
    "a convolution that is all buffers": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 6, 3), as_buffer(as_buffer(nn.Conv2d(6, 6, 3)), "bias"), nn.Flatten(),
            nn.Linear(6, 4),
        ),
        (4, 3, 5, 5),
    ),
    "a traced child": (
        lambda: nn.Sequential(
            nn.Linear(6, 8), scripted(nn.Linear(8, 8), torch.ones(2, 8)), nn.Linear(8, 4)
        ),
        (5, 6),
    ),
    **{
        f"an autograd function named {name}": (lambda name=name: named(name), (5, 6))
        for name in ("View", "Relu", "Clone", "MaxPool", "Mm", "Convolution", "ScaledDotProduct")
    },
    "forward mode": (lambda: Model(dual, **two()), (5, 6)),
    "vmap of jacrev": (lambda: Model(jacobian, a=nn.Linear(6, 8)), (5, 6)),
    "MAML": (lambda: Model(adapted, **two()), (5, 6)),
    "jagged tensors": (lambda: Model(nested, **two()), (5, 3, 6)),
    "sparse inputs": (lambda: Model(lambda m, x: m.b(m.a(x.to_sparse())), **two()), (5, 6)),
    "sparse gradients": (lambda: Model(sparse_rows, **two()), (5, 6)),
    "empty batches": (
        lambda: Model(
            lambda m, x: straight(m, x).mean(1) + m.a(x[:0]).sum() + m.a(x[:, :0]).sum(), **two()
        ),
        (5, 3, 6),
    ),
    "writes to its weights": (lambda: Model(in_place, **two()), (5, 6)),
    "inputs of a class of its own": (
        lambda: Model(lambda m, x: m.inner(x.as_subclass(Doubling)) * 1.0, inner=mlp()), (5, 6)
    ),
    "a mode of its own": (lambda: Model(under_a_mode, inner=mlp()), (5, 6)),
    "a compiled function": (lambda: Model(compiled, **two()), (5, 6)),
    "a compiled child": (
        # Inductor would run a C++ compiler; what we see of the graph is the same with this.
        lambda: Model(
            lambda m, x: m.b(m.c(x)),
            c=torch.compile(nn.Linear(6, 8), backend="aot_eager"),
            b=two()["b"],
        ),
        (5, 6),
    ),
    "threads": (lambda: Model(shares, **two()), (6, 6)),
    "standardized weights": (
        lambda: nn.Sequential(Standardized(3, 6, 3), nn.Flatten(), nn.Linear(54, 4)),
        (4, 3, 5, 5),
    ),
    "a parameter of the first pass": (registered, (5, 6)),
    "weight normalization": (
        lambda: nn.Sequential(parametrizations.weight_norm(nn.Linear(6, 8)), nn.Linear(8, 4)),
        (5, 6),
    ),
    "attention with other widths": (lambda: attention(kdim=5, vdim=7), (5, 3, 8)),
    "attention with biases": (lambda: attention(add_bias_kv=True, add_zero_attn=True), (5, 3, 8)),
    "a target without gradients": (lambda: Model(target, **two()), (5, 6)),
    "einsum": (
        lambda: Model(
            lambda m, x: m.b(torch.einsum("bi,oi->bo", x, m.a.weight) + m.a.bias), **two()
        ),
        (5, 6),
    ),
    "reflected borders": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 6, 3, padding=1, padding_mode="reflect"), nn.Flatten(), nn.Linear(150, 4)
        ),
        (4, 3, 5, 5),
    ),
    "data parallel": (lambda: nn.DataParallel(mlp()), (5, 6)),
    "pickles a part of itself": (
        lambda: Model(lambda m, x: straight(m, x) * bool(pickle.dumps(m.a)), **two()), (5, 6)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.filterwarnings("ignore:not trained", "ignore:.*torch.jit", "ignore:.*nested tensors")
def test_equals_full_gradients_times_mask(name):
    torch.manual_seed(0)
    build, shape = MODELS[name]
    check(build(), torch.randn(shape))


def penalty(model, x):
    x = x.clone().requires_grad_()
    outputs = model(x)
    (gradient,) = torch.autograd.grad(outputs.sum(), x, create_graph=True)
    return outputs.pow(2).mean() + (gradient.flatten(1).norm(dim=1) - 1).pow(2).mean()


def twice(model, x):
    x = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(torch.tanh(model(x)).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(gradient.pow(2).sum(), x, create_graph=True)
    return model(x).pow(2).mean() + second.pow(2).mean()


def checkpointed(model, x):
    return model.b(checkpoint(lambda y: torch.tanh(model.a(y)), x, use_reentrant=False))


SMOOTH = {
    "Linear": (lambda: Model(lambda m, x: m.b(torch.tanh(m.a(x))), **two()), (5, 6)),
    "one function for several layers": (mlp, (5, 6)),
    "convolutions": (
        lambda: nn.Sequential(
            nn.Conv2d(4, 8, 3, groups=2, bias=False), nn.BatchNorm2d(8), nn.Tanh(),
            nn.ConvTranspose2d(8, 4, 2), nn.Tanh(), nn.Flatten(), nn.Linear(64, 4),
        ),
        (4, 4, 5, 5),
    ),
    "a weight that is used twice": (
        lambda: Model(lambda m, x: torch.tanh(m.a(torch.tanh(m.a(x)))), a=nn.Linear(6, 6)), (5, 6)
    ),
    "checkpoint": (lambda: Model(checkpointed, **two()), (5, 6)),
    "attention": (attention, (5, 3, 8)),
}  # fmt: skip


@pytest.mark.parametrize("loss", [penalty, twice])
@pytest.mark.parametrize("name", SMOOTH)
def test_gradients_of_gradients(name, loss):
    torch.manual_seed(0)
    build, shape = SMOOTH[name]
    check(build(), torch.randn(shape), loss)


def test_gradients_of_gradients_of_embeddings():
    def loss(model, x):
        rows = model.a(x.argmax(2))
        outputs = model.b(torch.tanh(rows.flatten(1)))
        (gradient,) = torch.autograd.grad(outputs.sum(), rows, create_graph=True)
        return outputs.pow(2).mean() + gradient.pow(2).mean()

    torch.manual_seed(0)
    forward = lambda m, x: m.b(m.a(x.argmax(2)).flatten(1))  # noqa: E731
    model = Model(forward, a=nn.Embedding(7, 6), b=nn.Linear(18, 4))
    check(model, torch.randn(5, 3, 7), loss)


def test_gradients_with_respect_to_the_slices():
    """On both ways: through kernels, and through what torch does with the parameter itself."""
    torch.manual_seed(0)
    model, x = nn.Sequential(*mlp(), nn.LayerNorm(4)).double(), torch.randn(5, 6).double()

    def loss(of):
        outputs = of(x).pow(3).mean()
        return outputs + 0.1 * sum(parameter.pow(2).sum() for parameter in of.parameters())

    whole = copy.deepcopy(model)
    wanted = dict(zip(dict(whole.named_parameters()), torch.autograd.grad(
        loss(whole), list(whole.parameters())
    ), strict=True))  # fmt: skip
    with train_only(model, make_plan(cut(model, x), [0.4] * 3).assignment(1)) as part:
        leaves = dict(part.named_parameters())
        found = torch.autograd.grad(loss(model), list(leaves.values()))
        for name, gradient in zip(leaves, found, strict=True):
            tensor, _, rows = name.rstrip("]").partition("[")
            start, stop = map(int, rows.split(":"))
            torch.testing.assert_close(gradient, wanted[tensor][start:stop], rtol=1e-9, atol=1e-12)


def test_a_batch_that_uses_nothing_that_is_trained_moves_nothing():
    heads = Model(
        lambda m, x: (m.a if len(x) > 2 else m.b)(x), a=nn.Linear(6, 4), b=nn.Linear(6, 4)
    )
    plan = make_plan(cut(heads, never=["b"]), [0.5])
    with train_only(heads, plan.assignment(0)) as part:
        part.fuse_sgd(0.1)
        part.backward(heads(torch.randn(2, 6)).sum())
        part.step()
        heads(torch.randn(2, 6)).sum().backward()
    assert part.update().norm == 0


@pytest.mark.parametrize("make", [
    lambda: nn.Sequential(
        prune.random_unstructured(nn.Linear(6, 8), "weight", 0.5), nn.Linear(8, 4)
    ),
    lambda: nn.Sequential(nn.LazyLinear(8), nn.LazyBatchNorm1d(), nn.LazyLinear(4)),
    lambda: nn.Sequential(scripted(nn.Linear(6, 8), torch.ones(2, 6)), nn.Linear(8, 4)),
    lambda: nn.Sequential(parametrize.register_parametrization(
        nn.Linear(6, 6), "weight", nn.Tanh()
    ), nn.Linear(6, 4)),
])  # fmt: skip
@pytest.mark.filterwarnings("ignore:Lazy modules", "ignore:.*torch.jit")
def test_the_check_can_copy_them(make):
    torch.manual_seed(0)
    assert fedplt.check(make(), torch.randn(5, 6)).is_right


def test_the_check_notices_copies_that_compute_with_the_original():
    model = Model(lambda m, x: m.function(x), **two())
    model.function = lambda x: straight(model, x)
    assert "original" in fedplt.check(model, torch.randn(5, 6)).undecided[0]


def test_state_can_be_saved_inside():
    model = mlp()
    with block(model):
        torch.save(model.state_dict(), saved := io.BytesIO())
    assert saved.tell() > 100


@pytest.mark.parametrize("optimizer", [sgd, adam])
def test_modes_from_outside_of_the_block(optimizer):
    torch.manual_seed(0)
    x, model = torch.randn(5, 6), mlp()
    other = copy.deepcopy(model)
    with DoublingMode():
        with block(model, ratio=1.0) as part:
            made = optimizer(part.parameters())
            model(x).pow(2).mean().backward()
            made.step()
        made = optimizer(other.parameters())
        other(x).pow(2).mean().backward()
        made.step()
    for one, two_ in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one, two_)


def test_refuses_a_model_whose_copy_unties():
    linear = nn.Linear(6, 6)
    model = Model(lambda m, x: m.b(torch.tanh(m.a(x))), a=linear, b=linear)
    assert fedplt.check(model, torch.randn(5, 6)).is_right
    with pytest.raises(CutError, match="same memory"):
        memory = torch.randn(12, 6)
        model = Model(lambda m, x: m.a(x) + m.b(x), a=nn.Linear(6, 8), b=nn.Linear(6, 8))
        model.a.weight, model.b.weight = nn.Parameter(memory[:8]), nn.Parameter(memory[4:])
        cut(model)


class NoGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return None


def test_a_function_that_gives_no_gradient():
    torch.manual_seed(0)
    forward = lambda m, x: straight(m, x) + NoGradient.apply(m.b.bias)  # noqa: E731
    check(Model(forward, **two()), torch.randn(5, 6))
