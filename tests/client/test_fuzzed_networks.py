"""Random networks in random training loops, and what they brought to light."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedplt import CutError, GradientError, allocation_of, cut, make_plan, train_only
from tests.support.fuzzed_families import (
    Checkpointed,
    GradientInForward,
    GradientPenalty,
    HookedWeight,
    StopsGradient,
)
from tests.support.fuzzed_layers import LAYERS, LENGTH, WIDTH, Scaled, Turned
from tests.support.fuzzed_loops import Loop
from tests.support.fuzzing import Tally, compare, network, run_case

SHARE = 20
"""Networks per test."""


def seeds(first, last):
    return pytest.mark.parametrize("first", range(first, last, SHARE))


def run_share(first):
    tally = Tally()
    for seed in range(first, first + SHARE):
        outcome = run_case(seed)
        assert outcome.kind != "different", (seed, outcome)
        tally.add(outcome)
    assert tally.outcomes["equal"] > SHARE / 2, tally


@pytest.mark.slow
@seeds(0, 60)
def test_equal_or_refused_in_words(first):
    run_share(first)


@pytest.mark.slow
@seeds(60, 180)
def test_more_of_them(first):
    run_share(first)


SGD = Loop("sgd")
FUSED = Loop("fused", backward="part")
FOUND = {
    "the gradient of a single number is read": (Scaled, Loop("sgd", clip="norm")),
    "backward hooks where an input is a frozen parameter": (
        LAYERS["weight norm"],
        Loop("sgd", extra="global backward hook"),
    ),
    "a hook on a weight without trained rows": (lambda: HookedWeight(nn.LayerNorm(WIDTH)), SGD),
    "a view made without gradients": (lambda: StopsGradient(LAYERS["convolution"]()), SGD),
    "a checkpoint computed again in the forward pass": (
        lambda: GradientInForward(Checkpointed(nn.Linear(WIDTH, WIDTH))),
        FUSED,
    ),
    "a checkpoint that ends with a kernel": (
        lambda: Checkpointed(nn.Sequential(nn.Linear(WIDTH, WIDTH), LAYERS["two"]())),
        FUSED,
    ),
    "a checkpoint that ends with running statistics": (
        lambda: Checkpointed(
            Turned(nn.Sequential(nn.Conv1d(WIDTH, WIDTH, 1), nn.BatchNorm1d(WIDTH)))
        ),
        FUSED,
    ),
}


@pytest.mark.parametrize("ratio", [0.1, 0.35, 1.0])
@pytest.mark.parametrize("name", FOUND)
def test_found_by_fuzzing(name, ratio):
    torch.manual_seed(0)
    make, loop = FOUND[name]
    outcome = compare(network(make()), loop, ratio)
    assert outcome.kind == "equal" and outcome.moved > 1e-4, outcome


def test_gradients_of_gradients_are_right():
    outcome = compare(network(GradientPenalty(nn.Linear(WIDTH, WIDTH))), SGD, 1.0)
    assert outcome.kind == "equal"
    assert issubclass(GradientError, RuntimeError)


def test_gradients_of_what_needs_none_are_refused_in_words():
    """Where nothing below an activation is trained, it has no gradient."""
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    layers = cut(model)
    top = allocation_of(layers.sizes, [0.0, 1.0])
    with train_only(model, make_plan(layers, [top]).assignment(0)):
        hidden = model[:2](torch.randn(2, 6))
        with pytest.raises(GradientError, match="trains nothing that it depends on"):
            torch.autograd.grad(model[2](hidden).sum(), hidden)


def test_cutting_does_not_compute_checkpoints_again():
    """Whoever looks into the graph of a checkpoint runs it again."""
    model = network(
        Checkpointed(nn.Sequential(LAYERS["batch norm"](), LAYERS["attention with weights"]()))
    )
    before = {name: value.clone() for name, value in model.state_dict().items()}
    calls = []
    model[0].inner[0].register_forward_hook(lambda *_: calls.append(1))
    cut(model, torch.randn(4, LENGTH, WIDTH).double())
    assert len(calls) == 2  # in training and in evaluation mode
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("name", ["register_hook", "register_post_accumulate_grad_hook"])
def test_hooks_after_the_forward_pass_are_refused(name):
    model, x = nn.Linear(6, 8), torch.randn(2, 6)
    with train_only(model, make_plan(cut(model), [0.4] * 3).assignment(1)):
        with torch.no_grad():
            model(x)
        handle = getattr(model.weight, name)(lambda gradient: None)  # nothing is waiting for it
        model(x).sum().backward()
        handle.remove()
        loss = model(x).sum()
        with pytest.raises(CutError, match="Register it before the forward pass"):
            getattr(model.weight, name)(lambda gradient: None)
        loss.backward()
