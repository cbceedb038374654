"""What models do with their layers beyond calling them, as modules around others."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from tests.support.fuzzed_layers import WIDTH


class Around(nn.Module):
    """Does something with an inner module."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)


class Residual(Around):
    def forward(self, x):
        return x + self.inner(x)


class Twice(Around):
    def forward(self, x):
        return self.inner(torch.tanh(self.inner(x)))


class CallsItself(Around):
    def forward(self, x, depth=2):
        if depth:
            return 0.5 * (self(x, depth - 1) + x)
        return self.inner(x)


class SplitsItself(Around):
    """Calls itself with the halves of a batch."""

    def forward(self, x):
        if len(x) > 2:
            return torch.cat([self(x[:2]), self(x[2:])])
        return self.inner(x)


class CalledWithCopies(Around):
    def forward(self, x):
        copies = {name: 1.1 * value for name, value in self.inner.named_parameters()}
        return functional_call(self.inner, copies, (x,))


class CalledWithSome(Around):
    """Some weights are given, others are its own; it is called as it is, too."""

    def forward(self, x):
        names = sorted(name for name, _ in self.inner.named_parameters())[::2]
        values = dict(self.inner.named_parameters())
        given = {name: values[name].detach().clone() for name in names}
        return functional_call(self.inner, given, (x,)) + self.inner(x)


class CalledWithItsOwn(Around):
    def forward(self, x):
        return functional_call(self.inner, dict(self.inner.named_parameters()), (x,))


class GradientInForward(Around):
    """As in virtual adversarial training."""

    def forward(self, x):
        with torch.enable_grad():
            other = x.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(self.inner(other).pow(2).sum(), other)
        return self.inner(x + 0.1 * gradient)


class GradientOfOutput(Around):
    """Takes the gradient of its own output with respect to its own input, and goes on with both."""

    def forward(self, x):
        with torch.enable_grad():
            x = x if x.requires_grad else x.detach().requires_grad_()
            y = self.inner(x)
            (gradient,) = torch.autograd.grad(y.sum(), x, retain_graph=True)
        return y + 0.1 * gradient


class GradientPenalty(Around):
    """Needs gradients of gradients, which are refused where kernels have none."""

    def forward(self, x):
        with torch.enable_grad():
            other = x.detach().requires_grad_()
            y = self.inner(other)
            (gradient,) = torch.autograd.grad(y.pow(2).sum(), other, create_graph=True)
        return self.inner(x) + 0.1 * gradient


class Checkpointed(Around):
    def forward(self, x):
        return checkpoint(self.inner, x, use_reentrant=False)


class CheckpointedReentrant(Around):
    def forward(self, x):
        if not x.requires_grad and torch.is_grad_enabled():
            x = x.detach().requires_grad_()
        return checkpoint(self.inner, x, use_reentrant=True)


class HookedActivation(Around):
    def forward(self, x):
        y = torch.relu(self.inner(x))
        if y.requires_grad:
            y.register_hook(lambda gradient: gradient.flip(-1))
        return y


class RetainedActivation(Around):
    def forward(self, x):
        y = 1.0 * self.inner(x)
        if y.requires_grad and y.grad_fn is not None:
            y.retain_grad()
        return torch.relu(y)


def _doubled(gradient):
    return 2 * gradient


class HookedWeight(Around):
    """Registers a hook on a parameter when it is first called, which may be inside a block."""

    def forward(self, x):
        first = next((p for p in self.inner.parameters() if p.requires_grad), None)
        if first is not None and _doubled not in (first._backward_hooks or {}).values():
            first.register_hook(_doubled)
        return self.inner(x)


def _larger(module, inputs, output):
    return 1.1 * output


def _smaller(module, inputs):
    return (0.9 * inputs[0], *inputs[1:])


def _more_gradient(module, grad_input, grad_output):
    return tuple(None if gradient is None else 1.5 * gradient for gradient in grad_input)


class HookedModule(Around):
    def __init__(self, inner):
        super().__init__(inner)
        inner.register_forward_pre_hook(_smaller)
        inner.register_forward_hook(_larger)


class HookedBackward(Around):
    def __init__(self, inner):
        super().__init__(inner)
        inner.register_full_backward_hook(_more_gradient)


class HookedWithin(Around):
    """Hooks on children, registered when it is first called."""

    def forward(self, x):
        for child in self.inner.modules():
            if isinstance(child, (nn.Linear, nn.Conv1d)) and not child._forward_hooks:
                child.register_forward_hook(_larger)
        return self.inner(x)


class SavedElsewhere(Around):
    """What the backward pass needs is packed, as torch's save_on_cpu does."""

    def forward(self, x):
        with saved_tensors_hooks(lambda tensor: tensor.clone(), lambda tensor: tensor):
            return self.inner(x)


class Autocast(Around):
    """Double precision is never cast; kernels step back all the same."""

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.float16):
            return self.inner(x)


class AutocastOff(Around):
    def forward(self, x):
        with torch.autocast("cpu", enabled=False):
            return self.inner(x)


class PartlyFrozen(Around):
    def __init__(self, inner):
        super().__init__(inner)
        for parameter in list(inner.parameters())[::2]:
            parameter.requires_grad_(False)


class StopsGradient(Around):
    def forward(self, x):
        with torch.no_grad():
            still = self.inner(x)
        return self.inner(x) - 0.5 * still


class InPlace(Around):
    def forward(self, x):
        return torch.relu_(self.inner(x) + 0)


class _Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return -0.5 * gradient


class Reversed(Around):
    def forward(self, x):
        return _Reversed.apply(self.inner(x))


class LooksAtWeights(Around):
    def forward(self, x):
        return self.inner(x) + 0.1 * sum(p.pow(2).mean() for p in self.inner.parameters())


class Mixed(Around):
    """Channels change places on the way to the next layer, in some batches only."""

    def forward(self, x):
        y = torch.relu(self.inner(x))
        return y.flip(-1) if len(x) % 2 else y


class AsksForGradient(Around):
    """Branches on whether its activation requires a gradient."""

    def forward(self, x):
        y = self.inner(x)
        return torch.tanh(y) if y.requires_grad else -y


class CheckpointedAsItIs(Around):
    """Torch computes no gradients in it where its input requires none."""

    def forward(self, x):
        return checkpoint(self.inner, x, use_reentrant=True)


class HookedNode(Around):
    def forward(self, x):
        y = torch.relu(self.inner(x))
        if y.grad_fn is not None:
            y.grad_fn.register_prehook(lambda gradients: (gradients[0].flip(-1),))
        return y


class InThread(Around):
    """Function modes, and gradients switched off, are those of a thread."""

    def forward(self, x):
        is_enabled = torch.is_grad_enabled()

        def run():
            with torch.set_grad_enabled(is_enabled):
                return self.inner(x)

        with ThreadPoolExecutor(1) as threads:
            return threads.submit(run).result()


class PatchedClasses(Around):
    """Linear and ReLU modules compute something else while it runs."""

    def forward(self, x):
        linear, relu = nn.Linear.forward, nn.ReLU.forward
        with (
            mock.patch.object(nn.Linear, "forward", lambda self, x: 0.9 * linear(self, x)),
            mock.patch.object(nn.ReLU, "forward", lambda self, x: 1.1 * relu(self, x)),
        ):
            return self.inner(x)


class ShadowedWeights(Around):
    """Modules have tensors in place of their weights while it runs."""

    def forward(self, x):
        shadowed = [
            module
            for module in self.inner.modules()
            if isinstance(module, (nn.Linear, nn.Embedding, nn.LayerNorm))
            if module._parameters.get("weight") is not None and "weight" not in vars(module)
        ]
        for module in shadowed:
            vars(module)["weight"] = 1.1 * module._parameters["weight"]
        try:
            return self.inner(x)
        finally:
            for module in shadowed:
                del vars(module)["weight"]


COMPUTED_AGAIN_OTHERWISE = ("functional call", "patched classes", "shadowed weights")
"""Families that a checkpoint inside of them does not see when it computes again."""


class Branches(nn.Module):
    def __init__(self, one, two):
        super().__init__()
        self.one, self.two, self.join = one, two, nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        return self.join(torch.cat([self.one(x), self.two(x)], -1))


FAMILIES = {
    "residual": Residual,
    "twice": Twice,
    "calls itself": CallsItself,
    "splits itself": SplitsItself,
    "functional call with copies": CalledWithCopies,
    "functional call with some": CalledWithSome,
    "functional call with its own": CalledWithItsOwn,
    "gradient in forward": GradientInForward,
    "gradient of its output": GradientOfOutput,
    "gradient penalty": GradientPenalty,
    "checkpoint": Checkpointed,
    "reentrant checkpoint": CheckpointedReentrant,
    "hook on an activation": HookedActivation,
    "retained gradient": RetainedActivation,
    "hook on a weight": HookedWeight,
    "hooks on a module": HookedModule,
    "backward hook": HookedBackward,
    "hooks registered inside": HookedWithin,
    "saved elsewhere": SavedElsewhere,
    "autocast": Autocast,
    "autocast off": AutocastOff,
    "partly frozen": PartlyFrozen,
    "no_grad": StopsGradient,
    "in place": InPlace,
    "own autograd function": Reversed,
    "looks at weights": LooksAtWeights,
    "mixed in some batches": Mixed,
    "branches on requires_grad": AsksForGradient,
    "reentrant checkpoint as it is": CheckpointedAsItIs,
    "hook on an autograd node": HookedNode,
    "another thread": InThread,
    "patched classes": PatchedClasses,
    "shadowed weights": ShadowedWeights,
}
