"""The verb ``theory``: measured convergence against the paper's bound."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedplt.cli.app import figures, out, print_json, save_picture, verb
from fedplt.errors import FedpltError


@verb()
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
    from fedplt import theory

    if schedule not in ("constant", "decaying"):
        raise FedpltError(f"--schedule {schedule}: choose constant or decaying.")
    if counterexample:
        chosen, masks, start = theory.counterexample()
        rounds, local_steps, step_size = 40, 1, step_size or 0.0005
        objective: theory.Problem = chosen
    else:
        objective = theory.example_problem(
            problem,
            num_clients=clients,
            dimension=dimension,
            heterogeneity=heterogeneity,
            seed=seed,
        )
        masks = theory.rotating_masks(dimension, [ratio] * clients)
        start = objective.optimum + 3.0
    first = 0.05 / objective.smoothness if step_size is None else step_size
    fall = first * objective.strong_convexity / 2 if schedule == "decaying" else 0.0
    found = theory.study_convergence(
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
        figures()  # fails early if matplotlib is missing
        from fedplt.report.theory_figures import theory_figure

        save_picture(theory_figure(found), picture)
