"""Rounds that do not count: too few updates came, or all of them were refused."""

from __future__ import annotations

from collections.abc import Mapping

from fedplt.errors import DivergedError, TooFewClientsError
from fedplt.federation.job import Job


def refuse_too_few(job: Job, round: int, number: int, rejected: Mapping[str, str]) -> None:
    """Raise if fewer updates came than ``server.min_clients``; ``round`` counts from 1."""
    least = job.config.server.min_clients
    if number < least:
        names = {job.client_name(int(k)): why for k, why in rejected.items()}
        reasons = "; ".join(f"{name}: {why}" for name, why in names.items())
        raise TooFewClientsError(
            f"round {round}: {number} of at least {least} updates came "
            f"(server.min_clients). {reasons}"
        )


def stop_if_all_are_bad(
    job: Job, round: int, num_trained: int, rejected: Mapping[str, str]
) -> None:
    """Raise if every update was rejected.

    A sampler by norm may draw one client alone: rejecting that one does not stop the run.
    """
    alone = num_trained == 1 and job.config.sampling.by_norm
    if rejected and len(rejected) == num_trained and not alone:
        first, reason = next(iter(rejected.items()))
        scaler = job.recipe.scaler != "none"
        hint = " The scaler (method.scaler) makes steps larger; try it without." if scaler else ""
        raise DivergedError(
            f"round {round}: every client's update was refused; "
            f"{job.client_name(int(first))}: {reason}{hint}"
        )
