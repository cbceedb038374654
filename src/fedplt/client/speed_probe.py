"""Measure how fast this machine trains a model, at several ratios, and compare with exact FLOPs.

Uses one thread, like the simulator. The ratios are timed in turn, several times, and the fastest
time of each counts, so that other load on the machine has little effect.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from fedplt.client.train_only import train_only
from fedplt.errors import ConfigError
from fedplt.fleet import DeviceProfile
from fedplt.planning import Assignment, Layers, exact_flops, make_plan
from fedplt.text import table

RATIOS = (1.0, 0.5, 0.25, 0.1, 0.06)
TOLERANCE = 0.15


@dataclass(frozen=True)
class TimedStep:
    """Time and FLOPs of one training step at one ratio, per batch."""

    ratio: float
    seconds: float
    flops: int


@dataclass(frozen=True)
class Probe:
    """The measured times, and the speed that predicts them."""

    forward_seconds: float
    """Time of the forward pass of one batch, without gradients."""
    steps: tuple[TimedStep, ...]
    """Forward pass, backward pass and update of one batch, one entry per ratio."""
    batch_size: int

    @property
    def flops_per_second(self) -> float:
        """The single speed that best predicts all measured steps (least squares of logarithms)."""
        speeds = [math.log(step.flops / step.seconds) for step in self.steps]
        return math.exp(math.fsum(speeds) / len(speeds))

    def predicted(self, step: TimedStep) -> float:
        return step.flops / self.flops_per_second

    @property
    def mean_error(self) -> float:
        """Mean relative error of the predicted times over the ratios."""
        errors = [abs(self.predicted(step) / step.seconds - 1) for step in self.steps]
        return math.fsum(errors) / len(errors)

    def summary(self) -> str:
        rows = [
            [
                f"{step.ratio:g}",
                f"{1e3 * step.seconds:.3f}",
                f"{1e3 * (step.seconds - self.forward_seconds):.3f}",
                f"{1e3 * self.predicted(step):.3f}",
                f"{100 * (self.predicted(step) / step.seconds - 1):+.1f} %",
            ]
            for step in self.steps
        ]
        within = "within" if self.mean_error <= TOLERANCE else "NOT within"
        times = table(["ratio", "step", "of it backward", "predicted", "error"], rows)
        return (
            f"milliseconds per batch of {self.batch_size}, one thread; a forward pass alone "
            f"takes {1e3 * self.forward_seconds:.3f}\n\n{times}\n\n"
            f"{self.flops_per_second / 1e9:.2f} GFLOP/s predict these times to "
            f"{100 * self.mean_error:.1f} % on average over the ratios "
            f"({within} {100 * TOLERANCE:.0f} %)."
        )

    def profile(self, name: str, down: float, up: float) -> DeviceProfile:
        """A device profile with the measured speed and the given bandwidths (bit/s)."""
        return DeviceProfile(name, self.flops_per_second, down, up)


def probe(
    model: nn.Module,
    example: Tensor,
    layers: Layers,
    *,
    ratios: Sequence[float] = RATIOS,
    batch_size: int = 64,
    passes: int = 12,
    steps: int = 5,
) -> Probe:
    """Time forward passes and training steps on inputs shaped like the example."""
    if batch_size < 1 or passes < 1:
        raise ConfigError("probe: the batch size and the number of passes are at least 1.")
    inputs = example[:1].repeat(batch_size, *[1] * (example.ndim - 1))
    if inputs.is_floating_point():
        inputs = torch.randn(inputs.shape)
    with torch.no_grad():
        outputs = model(inputs)
    if not isinstance(outputs, Tensor):
        raise ConfigError(f"probe: the model must give a tensor, not a {type(outputs).__name__}.")
    assignments = [make_plan(layers, [ratio]).assignment(0) for ratio in ratios]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    model.train()
    try:
        trainings = [partial(_training, model, inputs, steps, part) for part in assignments]
        best = _race([partial(_forward, model, inputs, steps), *trainings], passes)
    finally:
        torch.set_num_threads(threads)
    measured = tuple(
        TimedStep(ratio, seconds / steps, batch_size * exact_flops(assignment).total)
        for ratio, seconds, assignment in zip(ratios, best[1:], assignments, strict=True)
    )
    return Probe(best[0] / steps, measured, batch_size)


def _forward(model: nn.Module, inputs: Tensor, steps: int) -> float:
    started = time.perf_counter()
    with torch.no_grad():
        for _ in range(steps):
            model(inputs)
    return time.perf_counter() - started


def _training(model: nn.Module, inputs: Tensor, steps: int, assignment: Assignment) -> float:
    with train_only(model, assignment, keep_old=False) as part:
        part.fuse_sgd(1e-4)
        started = time.perf_counter()
        for _ in range(steps):
            part.backward(model(inputs).square().mean())
            part.step()
        return time.perf_counter() - started


def _race(alternatives: Sequence[Callable[[], float]], passes: int) -> list[float]:
    """Time the alternatives in turn, several times; return the fastest time of each."""
    best = [math.inf] * len(alternatives)
    collecting = gc.isenabled()
    gc.disable()
    try:
        for number in range(passes + 1):
            for index, run in enumerate(alternatives):
                seconds = run()
                if number:  # the first pass only warms up
                    best[index] = min(best[index], seconds)
    finally:
        if collecting:
            gc.enable()
    return best
