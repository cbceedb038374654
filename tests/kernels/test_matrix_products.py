"""Products by oneDNN: nearly as exact as torch's own, the same bits, and only where they pay."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from fedplt.kernels import matrix_products as products
from fedplt.kernels.matrix_products import linear_relu, product, subtract_product

SHAPES = [
    (64, 784, 512),
    (33, 784, 512),
    (64, 300, 777),
    (4160, 64, 192),
    (7, 784, 512),
    (64, 9, 9),
]
"""Batch, inputs, outputs; the last two are left to torch, in part or as a whole."""


@pytest.fixture(autouse=True)
def no_grad():
    """As in the autograd functions that call these products."""
    with torch.no_grad():
        yield


def operands(batch, inputs, outputs, dtype=torch.float32):
    random = torch.Generator().manual_seed(1)
    shapes = ((batch, inputs), (outputs, inputs), (outputs,), (batch, outputs))
    return [torch.randn(shape, generator=random, dtype=dtype) for shape in shapes]


def all_products(x, weight, bias, grad):
    moved = weight.clone()
    subtract_product(moved, grad.T, x, 0.1)
    return {
        "linear": linear_relu(x, weight, bias),
        "relu": linear_relu(x, weight, bias, relu=True),
        "input gradient": product(grad, weight),
        "weight gradient": product(grad.T, x),
        "moved": moved,
    }


def plain(x, weight, bias, grad):
    return {
        "linear": F.linear(x, weight, bias),
        "relu": F.linear(x, weight, bias).relu(),
        "input gradient": grad @ weight,
        "weight gradient": grad.T @ x,
        "moved": weight - 0.1 * (grad.T @ x),
    }


@pytest.mark.parametrize("shape", SHAPES)
def test_nearly_as_exact_as_torch(shape):
    given = operands(*shape)
    exact = plain(*(tensor.double() for tensor in given))
    torchs = plain(*given)
    for name, found in all_products(*given).items():
        error = (found - exact[name]).abs().max()
        # It sums in longer chains: up to 2.7 times torch's rounding error was seen.
        assert error <= 4 * (torchs[name] - exact[name]).abs().max() + 1e-6, name


@pytest.mark.parametrize("shape", SHAPES[:4])  # torch's own may give others
def test_the_same_bits_wherever_the_tensors_are_in_memory(shape):
    first = all_products(*operands(*shape))
    for offset in (1, 3):
        moved = []
        for tensor in operands(*shape):
            memory = torch.empty(tensor.numel() + offset)
            moved.append(memory[offset:].view(tensor.shape).copy_(tensor))
        again = all_products(*moved)
        assert all(torch.equal(again[name], value) for name, value in first.items())


def test_rows_and_columns_of_a_larger_tensor():
    x, weight, bias, grad = operands(64, 784, 512)
    found = product(grad, weight[:, 100:500])
    torch.testing.assert_close(found, grad @ weight[:, 100:500], rtol=0, atol=1e-4)
    moved, expected = weight.clone(), weight.clone()
    subtract_product(moved[100:400], grad[:, 100:400].T, x, 0.1)
    expected[100:400] -= 0.1 * (grad[:, 100:400].T @ x)
    torch.testing.assert_close(moved, expected, rtol=0, atol=1e-5)
    assert torch.equal(moved[:100], weight[:100])
    assert torch.equal(moved[400:], weight[400:])
    torch.testing.assert_close(
        linear_relu(x[:, ::2], weight[:, ::2], bias), F.linear(x[:, ::2], weight[:, ::2], bias),
        rtol=0, atol=1e-4,
    )  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_other_types_are_torchs(dtype):
    given = operands(64, 784, 512, dtype)
    torchs = plain(*given)
    for name in ("linear", "relu", "input gradient", "weight gradient"):
        assert torch.equal(all_products(*given)[name], torchs[name])


def test_only_where_it_pays(monkeypatch):
    calls = []

    def counted(*args):
        calls.append(args)
        return torch.ops.mkldnn._linear_pointwise.default(*args)

    if products.onednn_linear is None:
        pytest.skip("torch was built without oneDNN")
    monkeypatch.setattr(products, "onednn_linear", counted)
    all_products(*operands(64, 100, 100))
    assert not calls
    all_products(*operands(16, 784, 512))  # weight gradients sum over 16 examples only
    assert len(calls) == 3
    all_products(*operands(64, 784, 512))
    assert len(calls) == 3 + 4  # the fused step adds in place, which oneDNN cannot


def test_without_onednn(monkeypatch):
    monkeypatch.setattr(products, "onednn_linear", None)
    given = operands(64, 784, 512)
    torchs = plain(*given)
    for name, found in all_products(*given).items():
        torch.testing.assert_close(found, torchs[name], rtol=0, atol=1e-5)
