"""The section ``[privacy]`` of a run's configuration, and what it does not go together with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from fedplt.configuration.section import Section

if TYPE_CHECKING:
    from fedplt.configuration.config import RunConfig


class PrivacyConfig(Section):
    """Client-level differential privacy of the released models (``docs/privacy.md``)."""

    clip: Annotated[float, Field(gt=0)]
    """Updates are scaled down to at most this Euclidean norm, over the client's whole slice."""
    noise_multiplier: Annotated[float, Field(ge=0.1)]
    """Standard deviation of the noise on the sum of the updates, in clips; far below 1 it protects
    nobody."""
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    """The delta for which epsilon is stated; less than one over the number of clients."""
    noise_seed: Annotated[int, Field(ge=0)] | None = None
    """Draw the noise and the clients from this seed, to repeat a run. Whoever knows it can remove
    the noise. Default: a secret key from the operating system, kept in the checkpoint."""


def refuse_unprivate(config: RunConfig) -> None:
    """Raise ValueError where something in the configuration would void the guarantee."""
    settings = config.privacy
    if settings is None:
        return
    sampling, server, number = config.sampling, config.server, config.clients.num_clients
    if settings.delta * number >= 1:
        raise ValueError(
            f"privacy.delta is {settings.delta:g}; with {number} clients it must be below "
            f"{1 / number:g} (one over the number of clients)."
        )
    needs = "[privacy] needs"
    if sampling.name not in ("all", "bernoulli"):
        why = "depends on the clients' data" if sampling.by_norm else "is not independent"
        raise ValueError(
            f"{needs} sampling.name = 'bernoulli' (with sampling.probability) or 'all': the choice "
            f"of {sampling.name!r} {why}."
        )
    if sampling.estimator is not None:
        raise ValueError(
            f"{needs} no sampling.estimator: it divides by fixed numbers, the clients that the "
            "plan assigns to a block times the probability. Leave it out."
        )
    if server.aggregation != "mean":
        raise ValueError(
            f"{needs} server.aggregation = 'mean': how much one client can change the result of "
            f"{server.aggregation!r} depends on the other clients' data."
        )
    if server.weights != "equal":
        raise ValueError(
            f"{needs} server.weights = 'equal': numbers of examples are the clients' data, and as "
            "weights they would be in the result."
        )
    if server.min_clients:
        raise ValueError(
            f"{needs} server.min_clients = 0: whether a round counts would tell who took part."
        )
    for key in ("keep_best", "stop_after"):
        given = getattr(config.evaluation, key)
        if given and "nodes" in (config.evaluation.on, config.data.name):
            raise ValueError(
                f"{needs} no evaluation.{key} ({given!r} was given) where the nodes evaluate: "
                "their scores have no noise, and which model is released would depend on them. "
                "Leave it out, or evaluate on data of the server (evaluation.on = 'server')."
            )
