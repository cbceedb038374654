# mypy: implicit-reexport
"""The paper's convergence theory: constants, bounds, and whether their conditions hold."""

from __future__ import annotations

from reproduction.theory.bounds import Constants, finite_horizon_bound, masking_factor
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
