"""``[privacy]``, and the settings of other sections that would void its guarantee."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from fedplt.configuration.fleet_config import ON_NODES
from fedplt.errors import ConfigError
from fedplt.schema import Section

if TYPE_CHECKING:
    from fedplt.configuration.config import RunConfig


class PrivacyConfig(Section):
    """Client-level differential privacy of the released models (``docs/privacy.md``)."""

    clip: Annotated[float, Field(gt=0)]
    """Updates are scaled down to at most this Euclidean norm, over the client's whole slice."""
    noise_multiplier: Annotated[float, Field(ge=0.1)]
    """Standard deviation of the noise on the sum of the updates, in clips; far below 1 there is
    no protection."""
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    """The delta for which epsilon is stated; less than one over the number of clients."""
    noise_seed: Annotated[int, Field(ge=0)] | None = None
    """Draw the noise and the clients from this seed, to repeat a run. Whoever knows it can remove
    the noise. Default: a secret key from the operating system, stored in the checkpoint."""


def refuse_unprivate(config: RunConfig) -> None:
    """Refuse settings that would void the privacy guarantee."""
    settings = config.privacy
    if settings is None:
        return
    sampling, server, number = config.sampling, config.server, config.clients.num_clients
    why = "depends on the clients' data" if sampling.by_norm else "is not independent"
    for key, is_wrong, reason in (
        ("privacy.delta", settings.delta * number >= 1,
         f"it is {settings.delta:g}; with {number} clients it must be below {1 / number:g} "
         "(one over the number of clients)."),
        ("sampling.name", sampling.name not in ("all", "bernoulli"),
         "[privacy] needs 'bernoulli' (with sampling.probability) or 'all': the choice of "
         f"{sampling.name!r} {why}."),
        ("sampling.estimator", sampling.estimator is not None,
         "[privacy] divides by fixed numbers, the clients that the plan assigns to a block times "
         "the probability. Leave it out."),
        ("server.aggregation", server.aggregation != "mean",
         "[privacy] needs 'mean': how much one client can change the result of "
         f"{server.aggregation!r} depends on the other clients' data."),
        ("server.weights", server.weights != "equal",
         "[privacy] needs 'equal': numbers of examples are the clients' data, and as weights they "
         "would be in the result."),
        ("server.min_clients", server.min_clients > 0,
         "[privacy] needs 0: whether a round counts would reveal who took part."),
    ):  # fmt: skip
        if is_wrong:
            raise ConfigError(reason, key=key)
    for key in ("keep_best", "stop_after"):
        given = getattr(config.evaluation, key)
        if given and ON_NODES in (config.evaluation.on, config.data.name):
            raise ConfigError(
                f"it is {given!r}, which [privacy] does not allow where the nodes evaluate: their "
                "scores have no noise, and which model is released would depend on them. Leave it "
                "out, or evaluate on data of the server (evaluation.on = 'server').",
                key=f"evaluation.{key}",
            )
