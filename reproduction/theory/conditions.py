"""All conditions that the bound needs, stated in the paper or not, checked on trajectories."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reproduction.theory.bounds import Constants, masking_factor
from reproduction.theory.problems import Problem, Vector
from reproduction.theory.trajectory import Trajectory

_ROUNDING = 1e-9


@dataclass(frozen=True)
class Condition:
    """One condition and whether it held."""

    name: str
    stated: str
    """Where the paper states it: ``theorem``, ``appendix``, ``corollary``; empty: nowhere."""
    holds: bool
    detail: str
    first_failure: int | None = None
    """The first local step at which it failed, if it is about steps."""


def measured_constants(
    problem: Problem,
    masks: NDArray[np.bool_],
    step_sizes: Sequence[float],
    local_steps: int,
    noise: float,
    trajectories: Sequence[Trajectory],
) -> Constants:
    """L, mu, Gamma and Lambda exactly, rho and G as the extremes on the trajectories."""
    weights, optimum = problem.weights, problem.optimum
    factors = np.array([masking_factor(int(mask.sum())) for mask in masks])
    alignment = min(float(np.min(run.alignments)) for run in trajectories)
    best = float(weights @ problem.losses(np.tile(optimum, (len(weights), 1))))
    smallest = 1 - min(step_sizes) * problem.smoothness
    return Constants(
        smoothness=problem.smoothness,
        strong_convexity=problem.strong_convexity,
        alignment=alignment,
        gradient_bound=max(float(run.local_gradients.max()) for run in trajectories),
        noise=noise,
        local_steps=local_steps,
        masking=float(weights @ factors**2),
        heterogeneity=max(0.0, best - float(weights @ problem.local_minima)),
        nu=float(np.max(2 * factors**2 * smallest)) + alignment,
    )


def check_conditions(
    constants: Constants,
    masks: NDArray[np.bool_],
    step_sizes: Sequence[float],
    trajectories: Sequence[Trajectory],
) -> list[Condition]:
    """All conditions under which the bound is proven, each with the observed values."""
    steps = np.asarray(step_sizes)
    largest, smallest, rho = float(steps.max()), float(steps.min()), constants.alignment
    smooth, sigma = constants.smoothness, constants.noise
    global_ = max(float(run.global_gradients.max()) for run in trajectories)
    slack = np.concatenate([run.convexity_slacks for run in trajectories])
    curve = max(float(run.smoothness_ratios.max()) for run in trajectories)
    gamma = rho - 2 * largest * smooth
    rounding = -_ROUNDING * (1 + float(abs(slack).max()))
    return [
        Condition("1 smooth", "theorem", curve <= 1 + _ROUNDING,
                  f"L = {smooth:.4g}; the steepest change seen is {curve:.3f} L"),
        Condition("2 strongly convex", "theorem", bool(slack.min() >= rounding),
                  f"mu = {constants.strong_convexity:.4g}; smallest slack {slack.min():.3g}"),
        Condition("3 unbiased gradients", "theorem", True,
                  "noise of mean zero" if sigma else "whole gradients"),
        Condition("4 bounded variance", "theorem", True, f"sigma = {sigma:.4g}, by construction"),
        Condition("5 bounded global gradient", "theorem", True,
                  f"at most {global_:.4g} on the way (nowhere bounded on the whole space)"),
        _along("6 masked alignment rho > 0", "theorem", [run.alignments for run in trajectories],
               "smallest rho"),
        _along("7 every client descends to W*", "", [run.descents for run in trajectories],
               "smallest <grad F_k, W - W*>", zero_is_fine=True),
        Condition("8 bounded local gradients", "", True,
                  f"G = {constants.gradient_bound:.4g} is theirs (the global one: {global_:.4g})"),
        Condition("9 everybody trains something", "", bool(masks.any(axis=1).all()),
                  f"alpha = 1 for all, Gamma = {constants.masking:.4g}"),
        Condition("10 step size below 1 / L", "appendix", largest * smooth < 1,
                  f"largest step times L is {largest * smooth:.3g}"),
        Condition("11 step size below rho / (2 L)", "appendix", gamma > 0,
                  f"largest step is {largest:.3g}, rho / (2 L) is {rho / (2 * smooth):.3g}"),
        Condition("12 rho - 2 step L at most 1", "appendix",
                  constants.local_steps == 1 or rho - 2 * smallest * smooth <= 1,
                  f"{rho - 2 * smallest * smooth:.3g} (needed for several local steps)"),
        Condition("13 step size at most 1 / z", "corollary",
                  0 < constants.contraction * largest <= 1,
                  f"largest step times z is {constants.contraction * largest:.3g}"),
    ]  # fmt: skip


def _along(
    name: str, stated: str, values: list[Vector], what: str, zero_is_fine: bool = False
) -> Condition:
    """A condition on every client at every step: positive (or at least not negative)."""
    every = np.array([value.min(axis=1) for value in values]).min(axis=0)  # (steps,)
    fine = every >= 0 if zero_is_fine else every > 0
    failing = np.flatnonzero(~fine)  # NaN fails too
    first = int(failing[0]) if len(failing) else None
    detail = f"{what} {np.min(every):.4g}"
    if first is not None:
        detail += f"; fails first at step {first}, in {len(failing)} of {len(every)} steps"
    return Condition(name, stated, first is None, detail, first)
