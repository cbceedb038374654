"""Static partial training: measured distance, bound, and the bound's conditions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedplt.errors import FedpltError
from fedplt.text import table
from reproduction.theory.bounds import Constants, finite_horizon_bound
from reproduction.theory.conditions import Condition, check_conditions, measured_constants
from reproduction.theory.problems import Matrix, Problem, Vector
from reproduction.theory.trajectory import (
    CONFIDENCE,
    MeanIntervals,
    mean_intervals,
    static_partial_training,
)

_ROUNDING = 1e-9


@dataclass(frozen=True, eq=False)
class TheoryReport:
    """The measured distances, the bounds and the conditions."""

    samples: Matrix
    """Squared distances to the optimum by local step, (repetitions, steps + 1)."""
    bounds: Vector | None
    """None if z <= 0 or a step is too long: the recursion gives no bound then."""
    step_sizes: Vector
    """By local step."""
    constants: Constants
    conditions: tuple[Condition, ...]
    local_steps: int

    @property
    def all_hold(self) -> bool:
        return all(condition.holds for condition in self.conditions)

    @property
    def stated_hold(self) -> bool:
        return all(condition.holds for condition in self.conditions if condition.stated)

    @cached_property
    def distances(self) -> Vector:
        """Mean squared distance to the optimum, by local step; (steps + 1,)."""
        return np.asarray(self.samples.mean(axis=0))

    @cached_property
    def intervals(self) -> MeanIntervals | None:
        """Of the expected distances; None without noise, where the distances are themselves."""
        return mean_intervals(self.samples) if self.constants.noise else None

    @property
    def contradicted_at(self) -> int | None:
        """The first local step that contradicts the bound: with noise, by its interval."""
        if self.bounds is None:
            return None
        least = self.distances if self.intervals is None else self.intervals.low
        above = np.flatnonzero(least > self.bounds * (1 + _ROUNDING))
        return int(above[0]) if len(above) else None

    @property
    def bound_holds(self) -> bool:
        """There is a bound and nothing contradicts it."""
        return self.bounds is not None and self.contradicted_at is None

    @property
    def recursion_violations(self) -> int:
        """Steps that contradict the one-step recursion: with noise, by the interval of the step."""
        z, residual = self.constants.contraction, self.constants.residual
        kept, added = 1 - z * self.step_sizes, self.step_sizes**2 * residual
        steps = self.samples[:, 1:] - kept * self.samples[:, :-1]
        least = mean_intervals(steps).low if self.constants.noise else steps.mean(axis=0)
        rounding = _ROUNDING * np.abs(kept * self.distances[:-1] + added)
        return int(np.count_nonzero(least > added + rounding))

    def summary(self) -> str:
        rows = [
            [
                condition.name,
                condition.stated or "unstated",
                "holds" if condition.holds else "FAILS",
            ]
            for condition in self.conditions
        ]
        lines = table(["condition", "in the paper", "here"], rows).splitlines()
        details = ["seen", "-" * 4, *(condition.detail for condition in self.conditions)]
        c = self.constants
        numbers = {
            "L": c.smoothness, "mu": c.strong_convexity, "rho": c.alignment, "z": c.contraction,
            "G": c.gradient_bound, "sigma": c.noise, "Gamma": c.masking, "Lambda": c.heterogeneity,
            "nu": c.nu, "B": c.residual,
        }  # fmt: skip
        return "\n\n".join(
            [
                "Static partial training, clients weighted by n_k / n (as the analysis does).",
                "\n".join(f"{a}  {b}" for a, b in zip(lines, details, strict=True)),
                ", ".join(f"{name} = {value:.4g}" for name, value in numbers.items()),
                self._verdict(),
            ]
        )

    def _verdict(self) -> str:
        steps = len(self.step_sizes)
        text = f"Squared distance {self.distances[0]:.4g} -> {self.distances[-1]:.4g}"
        if self.bounds is None:
            return f"{text} in {steps} local steps; without z > 0 there is no bound."
        text += f", bound {self.bounds[-1]:.4g} after {steps} local steps. "
        return f"{text}{self._proven()}, and {self._compared()}"

    def _proven(self) -> str:
        seen, number = "", len(self.samples)
        if self.constants.noise:
            seen = " in the repetition" if number == 1 else f" in all {number} repetitions"
        if self.all_hold and self.constants.noise:
            return f"All conditions hold{seen}: the bound on the mean is proven if they always do"
        if self.all_hold:
            return "All conditions hold: the bound is proven"
        if self.stated_hold:
            return f"Only the stated conditions hold{seen}: the bound is not proven"
        return "Some conditions fail: the bound is not proven"

    def _compared(self) -> str:
        broken, step = self.recursion_violations, self.contradicted_at
        if self.intervals is None:
            return (
                f"it {'holds' if step is None else 'is broken'}. The one-step recursion is broken "
                f"in {broken} steps."
            )
        if len(self.samples) == 1:
            return "one repetition says nothing about a mean: repeat it to compare."
        level = f"{100 * CONFIDENCE:g} % interval"
        if step is None:
            words = f"it is not contradicted by the samples ({level}s of all means together)"
        else:
            assert self.bounds is not None
            low, high = (float(ends[step]) for ends in self.intervals)
            words = (
                f"it is contradicted by the samples (at step {step} the {level} of the mean is "
                f"{low:.6g} to {high:.6g}, the bound {self.bounds[step]:.6g})"
            )
        return f"{words}. The one-step recursion is contradicted in {broken} steps."

    def to_json(self) -> dict[str, Any]:
        return {
            "distances": self.distances.tolist(),
            "repetitions": len(self.samples),
            "intervals": self._intervals_json(),
            "bounds": None if self.bounds is None else self.bounds.tolist(),
            "step_sizes": self.step_sizes.tolist(),
            "local_steps": self.local_steps,
            "constants": {
                **asdict(self.constants),
                "contraction": self.constants.contraction,
                "residual": self.constants.residual,
            },
            "conditions": [asdict(condition) for condition in self.conditions],
            "bound_holds": self.bound_holds,
            "contradicted_at": self.contradicted_at,
            "recursion_violations": self.recursion_violations,
        }

    def _intervals_json(self) -> dict[str, Any] | None:
        if self.intervals is None or len(self.samples) == 1:
            return None
        low, high = (ends.tolist() for ends in self.intervals)
        return {"level": CONFIDENCE, "low": low, "high": high}


def study_convergence(
    problem: Problem,
    masks: NDArray[np.bool_],
    step_sizes: Sequence[float],
    start: Vector,
    *,
    local_steps: int = 1,
    noise: float = 0.0,
    repeats: int = 1,
    seed: int = 0,
) -> TheoryReport:
    """Train (``repeats`` times if there is noise), measure, compute the bound, check."""
    if not len(step_sizes) or min(step_sizes) <= 0:
        raise FedpltError("step sizes: give one per round, all positive.")
    trajectories = [
        static_partial_training(
            problem, masks, step_sizes, start, local_steps=local_steps, noise=noise, seed=seed + i
        )
        for i in range(repeats if noise else 1)
    ]
    constants = measured_constants(problem, masks, step_sizes, local_steps, noise, trajectories)
    conditions = check_conditions(constants, masks, step_sizes, trajectories)
    per_step = np.repeat(np.asarray(step_sizes, dtype=np.float64), local_steps)
    samples = np.array([run.distances for run in trajectories])
    z = constants.contraction
    bounds = None
    if z > 0 and z * per_step.max() <= 1:
        bounds = finite_horizon_bound(
            float(samples[0, 0]), z, constants.residual, per_step.tolist()
        )
    return TheoryReport(samples, bounds, per_step, constants, tuple(conditions), local_steps)
