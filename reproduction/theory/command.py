"""The verb ``theory``: measured convergence against the paper's bound."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from matplotlib.figure import Figure

from fedplt.cli.app import out, print_json, save_picture
from fedplt.errors import FedpltError
from fedplt.report.figures import style_axes
from fedplt.report.palette import SERIES
from reproduction.theory.examples import counterexample as stored_counterexample
from reproduction.theory.examples import example_problem
from reproduction.theory.problems import Problem
from reproduction.theory.study import TheoryReport, study_convergence
from reproduction.theory.trajectory import CONFIDENCE, rotating_masks


def theory(
    problem: Annotated[str, typer.Option(help="quadratic or logistic (ridge).")] = "quadratic",
    clients: Annotated[int, typer.Option(min=1, max=500)] = 6,
    dimension: Annotated[int, typer.Option(min=1, max=500)] = 12,
    ratio: Annotated[
        float, typer.Option(help="Fraction of the model that every client trains.")
    ] = 0.5,
    heterogeneity: Annotated[float, typer.Option(min=0, help="How much clients differ.")] = 0.05,
    rounds: Annotated[int, typer.Option(min=1)] = 100,
    local_steps: Annotated[int, typer.Option(min=1)] = 1,
    step_size: Annotated[float | None, typer.Option(help="Default: 0.05 / L.")] = None,
    schedule: Annotated[
        str, typer.Option(help="constant, or decaying: step / (1 + step mu t / 2).")
    ] = "constant",
    noise: Annotated[float, typer.Option(min=0, help="Std of stochastic gradients (sigma).")] = 0.0,
    repeats: Annotated[int, typer.Option(min=1, help="Runs to average, with noise.")] = 20,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    counterexample: Annotated[
        bool, typer.Option("--counterexample", help="Use the stored counterexample.")
    ] = False,
    picture: Annotated[
        Path | None, typer.Option(help="Draw distance and bound into this .png, .svg or .pdf.")
    ] = None,
) -> None:
    """Compare the measured distance to the optimum with the paper's bound; check conditions."""
    if schedule not in ("constant", "decaying"):
        raise FedpltError(f"--schedule {schedule}: choose constant or decaying.")
    if counterexample:
        chosen, masks, start = stored_counterexample()
        rounds, local_steps, step_size = 40, 1, step_size or 0.0005
        objective: Problem = chosen
    else:
        objective = example_problem(
            problem,
            num_clients=clients,
            dimension=dimension,
            heterogeneity=heterogeneity,
            seed=seed,
        )
        masks = rotating_masks(dimension, [ratio] * clients)
        start = objective.optimum + 3.0
    first = 0.05 / objective.smoothness if step_size is None else step_size
    fall = first * objective.strong_convexity / 2 if schedule == "decaying" else 0.0
    found = study_convergence(
        objective,
        masks,
        [first / (1 + fall * round) for round in range(rounds)],
        start,
        local_steps=local_steps,
        noise=noise,
        repeats=repeats,
        seed=seed,
    )
    out.print(found.summary(), soft_wrap=True)
    print_json(found.to_json)
    if picture:
        save_picture(theory_figure(found), picture)


def theory_figure(report: TheoryReport) -> Figure:
    """Distance and bound, log scale; a vertical line marks where a condition first fails."""
    figure = Figure(figsize=(7.2, 4.0), layout="constrained")
    axes = figure.add_subplot()
    rounds = np.arange(len(report.distances)) / report.local_steps
    axes.semilogy(rounds, report.distances, color=SERIES[0], label="measured")
    if report.intervals is not None and len(report.samples) > 1:
        low, high = report.intervals
        label = f"{100 * CONFIDENCE:g} % intervals of the mean"
        axes.fill_between(rounds, low, high, color=SERIES[0], alpha=0.25, linewidth=0, label=label)
    if report.bounds is not None:
        style = "-" if report.all_hold else "--"
        label = "bound" if report.all_hold else "bound (conditions fail)"
        axes.semilogy(rounds, report.bounds, color=SERIES[1], linestyle=style, label=label)
    failures = [
        (condition.first_failure, condition.name)
        for condition in report.conditions
        if condition.first_failure is not None
    ]
    for color, (step, name) in zip(SERIES[4:], sorted(failures), strict=False):
        place = step / report.local_steps
        axes.axvline(place, color=color, linewidth=1, linestyle=":", label=f"fails: {name}")
    axes.set(xlabel="round", ylabel="squared distance to the optimum")
    style_axes(axes)
    axes.legend(frameon=False)
    return figure
