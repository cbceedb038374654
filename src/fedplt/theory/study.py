"""Static partial training: measured distance, bound, and the bound's conditions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedplt.errors import FedpltError
from fedplt.text import table
from fedplt.theory.bounds import Constants, finite_horizon_bound
from fedplt.theory.conditions import Condition, check_conditions, measured_constants
from fedplt.theory.problems import Problem, Vector
from fedplt.theory.trajectory import static_partial_training


@dataclass(frozen=True, eq=False)
class TheoryReport:
    """The measured distances, the bounds and the conditions."""

    distances: Vector
    """Mean squared distance to the optimum, by local step; (steps + 1,)."""
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

    @property
    def bound_holds(self) -> bool:
        if self.bounds is None:
            return False
        return bool(np.all(self.distances <= self.bounds * (1 + 1e-9)))

    @property
    def recursion_violations(self) -> int:
        """Steps whose distance exceeds what the one-step recursion allows."""
        z, residual = self.constants.contraction, self.constants.residual
        allowed = (1 - z * self.step_sizes) * self.distances[:-1] + self.step_sizes**2 * residual
        return int(np.count_nonzero(self.distances[1:] > allowed * (1 + 1e-9)))

    def summary(self) -> str:
        rows = [
            [
                condition.name,
                "stated" if condition.stated else "unstated",
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
        if self.all_hold:
            text += "All conditions hold: the bound is proven"
        elif self.stated_hold:
            text += "Only the stated conditions hold: the bound is not proven"
        else:
            text += "Some conditions fail: the bound is not proven"
        text += ", and it holds." if self.bound_holds else ", and it is broken."
        return f"{text} The one-step recursion is broken in {self.recursion_violations} steps."

    def to_json(self) -> dict[str, Any]:
        return {
            "distances": self.distances.tolist(),
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
            "recursion_violations": self.recursion_violations,
        }


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
    distances = np.mean([run.distances for run in trajectories], axis=0)
    z = constants.contraction
    bounds = None
    if z > 0 and z * per_step.max() <= 1:
        bounds = finite_horizon_bound(float(distances[0]), z, constants.residual, per_step.tolist())
    return TheoryReport(distances, bounds, per_step, constants, tuple(conditions), local_steps)
