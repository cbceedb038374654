"""Rounds that do not count: too few updates came, or every one was refused."""

from __future__ import annotations

from collections.abc import Mapping

from fedplt.errors import DivergedError, TooFewClientsError
from fedplt.federation.job import Job


def refuse_too_few(job: Job, round: int, number: int, rejected: Mapping[str, str]) -> None:
    """Refuse a round with fewer updates than ``server.min_clients``."""
    least = job.config.server.min_clients
    if number < least:
        reasons = "; ".join(f"{job.client_name(int(k))}: {why}" for k, why in rejected.items())
        raise TooFewClientsError(
            f"round {round + 1}: {number} of at least {least} updates came "
            f"(server.min_clients). {reasons}"
        )


def stop_if_all_are_bad(
    job: Job, round: int, num_trained: int, rejected: Mapping[str, str]
) -> None:
    """Stop if every update was rejected.

    A sampler by norm may draw one client alone: rejecting that one does not stop the run. Nor does
    one node that is asked alone: it may be hostile, and others follow.
    """
    of_many = job.config.engine.name == "flower" and job.plan.num_clients > 1
    alone = num_trained == 1 and (job.config.sampling.by_norm or of_many)
    if rejected and len(rejected) == num_trained and not alone:
        first, reason = next(iter(rejected.items()))
        scaler = job.recipe.scaler != "none"
        hint = " The scaler (method.scaler) makes steps larger; try it without." if scaler else ""
        raise DivergedError(
            f"round {round + 1}: every client's update was refused; "
            f"{job.client_name(int(first))}: {reason}{hint}"
        )
