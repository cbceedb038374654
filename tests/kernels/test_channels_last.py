"""Images that are channels last: gradients keep the layout, and fixed rules choose what is cut."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedplt import cut, make_plan, train_only
from fedplt.kernels.convolution import _pays

SHAPE = (8, 3, 32, 32)


class Residual(nn.Module):
    """A slice and a mean, whose gradients have the default layout."""

    def __init__(self, width):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.conv = nn.Conv2d(width, width, 3, padding=1)
        self.head = nn.Linear(width, 4)

    def forward(self, x):
        x = F.relu(self.stem(x))
        x = torch.relu(self.conv(x) + x[:, :, ::1])
        return self.head(x.mean((2, 3)))


@pytest.mark.parametrize("batch_size", [8, 16])  # below and above the size of the rule
@pytest.mark.parametrize("width", [16, 40])
def test_equals_full_gradients_times_mask(width, batch_size):
    torch.manual_seed(0)
    model = Residual(width)
    x = torch.randn(batch_size, *SHAPE[1:]).contiguous(memory_format=torch.channels_last)
    y = torch.randint(0, 4, (batch_size,))
    F.cross_entropy(model(x), y).backward()
    full = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    plan = make_plan(cut(model, x), [0.2] * 5)
    for client in range(5):
        with train_only(model, plan.assignment(client)) as part:
            F.cross_entropy(model(x), y).backward()
            found = {name: p.grad for name, p in part.named_parameters()}
        assert found
        for name, gradient in found.items():
            tensor, rows = name.removesuffix("]").split("[")
            start, stop = map(int, rows.split(":"))
            torch.testing.assert_close(gradient, full[tensor][start:stop], rtol=1e-4, atol=1e-6)


def test_relu_gets_gradients_in_its_own_layout():
    model = Residual(16)
    x = torch.randn(SHAPE).contiguous(memory_format=torch.channels_last)
    seen = []

    def note(module, inputs, output):
        output.register_hook(lambda gradient: seen.append(gradient.stride()))

    model.conv.register_forward_hook(note)
    with train_only(model, make_plan(cut(model, x), [0.5]).assignment(0)):
        model(x).sum().backward()
    assert seen == [(32 * 32 * 16, 1, 32 * 16, 16)]


@pytest.mark.parametrize(
    ("channels", "number", "pays"),
    [
        (((0, 16),), 16, False),
        (((0, 4),), 16, False),  # 16 channels are computed at once
        (((0, 4),), 17, True),
        (((0, 4), (28, 32)), 32, False),
        (((0, 4), (60, 64)), 64, True),
        ((), 16, True),
    ],
)
def test_fewer_channels_pay_where_they_save_a_block(channels, number, pays):
    large, small = torch.empty(1).expand(2**18), torch.empty(8)
    assert _pays(channels, number, large) == pays
    assert _pays(channels, number, small) == (channels != ((0, number),))
