"""The oracle for partial training: full gradients times a mask, frozen entries restored."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedplt import train_only
from fedplt.kernels import keeps_statistics
from fedplt.planning import dotted
from fedplt.planning.assignment import Assignment

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "weight decay": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1),
    # eps bounds Adam's amplification of gradients that are zero but for rounding.
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, eps=1e-3),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, eps=1e-3, weight_decay=0.1),
}
Batch = tuple[Tensor, Tensor]


def masks(assignment: Assignment) -> dict[str, Tensor]:
    """1 where the assignment trains (or moves a buffer), by tensor name."""
    result = {spec.name: torch.zeros(spec.shape) for _, _, spec in assignment.layers.placed}
    for spec, start, stop, _ in assignment.layers.tensor_segments(assignment.slices):
        mask = result[spec.name]
        (mask.narrow(spec.axis, start, stop - start) if spec.shape else mask).fill_(1)
    return result


def train_masked(
    model: nn.Module,
    assignment: Assignment,
    batches: Sequence[Batch],
    make_optimizer: Callable[..., torch.optim.Optimizer],
    loss: Callable[[Tensor, Tensor], Tensor],
) -> None:
    """Slow and obvious."""
    mask = masks(assignment)
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    old = {name: tensor.detach().clone() for name, tensor in tensors.items()}
    optimizer = make_optimizer(model.parameters())
    for inputs, targets in batches:
        optimizer.zero_grad()
        loss(model(inputs), targets).backward()
        for name, parameter in model.named_parameters():
            if name not in mask:
                parameter.grad = None  # not even weight decay
            elif parameter.grad is not None:
                parameter.grad *= mask[name]
        optimizer.step()
        _put_back(tensors, old, mask)
    kept = tensors.keys() - buffers_by_hand(model)
    _put_back(tensors, old, {**{name: torch.zeros(()) for name in kept}, **mask})


def buffers_by_hand(model: nn.Module) -> set[str]:
    """Buffers outside of torch's normalization layers: they change as the model changes them."""
    return {
        dotted(owner, key)
        for owner, module in model.named_modules()
        if not keeps_statistics(module)
        for key, _ in module.named_buffers(recurse=False)
    }


def _put_back(tensors: dict[str, Tensor], old: dict[str, Tensor], mask: dict[str, Tensor]) -> None:
    """Frozen entries get their old values (batch counters only at the end)."""
    with torch.no_grad():
        for name, keep in mask.items():
            tensors[name].copy_(torch.where(keep.bool(), tensors[name], old[name]))


def train_part(model, assignment, data, optimizer, loss=F.cross_entropy):
    """With the package; ``optimizer``: one of ``OPTIMIZERS``, or "fused"."""
    with train_only(model, assignment) as part:
        if optimizer == "fused":
            part.fuse_sgd(0.1)
            step = part.step
        else:
            made = OPTIMIZERS[optimizer](part.parameters())

            def step():
                made.step()
                made.zero_grad()

        for inputs, targets in data:
            part.backward(loss(model(inputs), targets))
            step()
    return part


def assert_equals_masked(
    model, assignment, data, optimizer, tolerance=(2e-5, 1e-4), loss=F.cross_entropy
):
    """What is trained equals masked training; all else, and what is put back, keeps its bits."""
    ours, reference = copy.deepcopy(model), copy.deepcopy(model)
    part = train_part(ours, assignment, data, optimizer, loss)
    full = OPTIMIZERS["sgd" if optimizer == "fused" else optimizer]
    train_masked(reference, assignment, data, full, loss)
    mask, initial, after = masks(assignment), model.state_dict(), reference.state_dict()
    names = {id(p): name for name, p in model.named_parameters()}
    tied = {
        name: names.get(id(tensor), name)
        for name, tensor in model.state_dict(keep_vars=True).items()
    }
    by_hand = buffers_by_hand(model)
    moved, (atol, rtol) = False, tolerance
    for name, tensor in ours.state_dict().items():
        own = mask.get(tied[name])
        if name in by_hand:  # the model changes it itself
            torch.testing.assert_close(tensor, after[name], atol=atol, rtol=rtol, msg=name)
            continue
        if own is None:
            assert torch.equal(tensor, initial[name]), name
            continue
        torch.testing.assert_close(tensor, after[name], atol=atol, rtol=rtol, msg=name)
        assert torch.equal(tensor[own == 0], initial[name][own == 0]), name
        moved |= not torch.equal(tensor, initial[name])
    assert moved
    assert part.update().values.size == assignment.update_size
    part.restore()
    for name, tensor in ours.state_dict().items():
        assert name in by_hand or torch.equal(tensor, initial[name]), name
    for ours_parameter, theirs in zip(ours.parameters(), model.parameters(), strict=True):
        assert ours_parameter.requires_grad == theirs.requires_grad
        assert ours_parameter.grad is None
