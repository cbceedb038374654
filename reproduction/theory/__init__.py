"""The paper's convergence theory: constants, bounds, and whether their conditions hold."""

from __future__ import annotations

from reproduction.theory.bounds import (
    Alignment,
    Constants,
    constant_step_bound,
    decaying_step_bound,
    decaying_step_sizes,
    faster_step_bound,
    faster_step_sizes,
    finite_horizon_bound,
    masked_alignment,
    masking_factor,
)
from reproduction.theory.conditions import Condition
from reproduction.theory.examples import counterexample, example_problem
from reproduction.theory.problems import Problem, Quadratics, RidgeLogistic
from reproduction.theory.study import TheoryReport, study_convergence
from reproduction.theory.trajectory import (
    CONFIDENCE,
    Trajectory,
    rotating_masks,
    static_partial_training,
)

__all__ = [
    "CONFIDENCE", "Alignment", "Condition", "Constants", "Problem", "Quadratics", "RidgeLogistic",
    "TheoryReport", "Trajectory", "constant_step_bound", "counterexample", "decaying_step_bound",
    "decaying_step_sizes", "example_problem", "faster_step_bound", "faster_step_sizes",
    "finite_horizon_bound", "masked_alignment", "masking_factor", "rotating_masks",
    "static_partial_training", "study_convergence",
]  # fmt: skip
