"""Settings of different sections that do not fit each other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from fedplt.configuration.fleet_config import ON_NODES
from fedplt.errors import ConfigError

if TYPE_CHECKING:
    from fedplt.configuration.config import PrivacyConfig, RunConfig

Rule = tuple[str, bool, str]
"""A key, whether its value is wrong, and the message."""


def refuse_unfit_sections(config: RunConfig) -> None:
    """Raise ConfigError for the first setting that another section does not allow."""
    for key, value in _on_nodes(config) if config.engine.name == "simulator" else ():
        problem = f"it is {value!r}, but the simulator has no nodes: set engine.name = 'flower', or"
        raise ConfigError(f"{problem} another value here.", key=key, also=["engine.name"])
    number = config.clients.num_clients
    for key in ("num_clients", "budget"):
        if (given := getattr(config.sampling, key) or 0) > number:
            raise ConfigError(
                f"it is {given:g}, but there are {number} clients (clients.num_clients). Lower the "
                "first, raise the second, or set sampling.name = 'all'.",
                key=f"sampling.{key}",
                also=["clients.num_clients"],
            )
    if ":" not in config.server.aggregation:
        refuse_weighted_votes(config)
    private = _with_privacy(config, config.privacy) if config.privacy else ()
    for key, is_wrong, reason in (*private, *_with_memory(config)):
        if is_wrong:
            raise ConfigError(reason, key=key)


def refuse_weighted_votes(config: RunConfig) -> None:
    """Refuse inverse-probability weights with a rule that ignores weights; may import the rule."""
    server, sampling = config.server, config.sampling
    if sampling.weighs and server.rule.counts_clients:
        raise ConfigError(
            f"{server.aggregation!r} counts every client once, but sampling.name = "
            f"{sampling.name!r} with the estimator {sampling.estimator_used!r} weighs each by one "
            "over its probability. Set server.aggregation = 'clipped-mean', or sample with "
            "'uniform' or 'all'.",
            key="server.aggregation",
            also=["sampling.name"],
        )


def _on_nodes(config: RunConfig) -> Iterator[tuple[str, str]]:
    """Settings that need the nodes of a deployment."""
    if config.data.name == ON_NODES:
        yield "data.name", ON_NODES
    if config.evaluation.on != "server":
        yield "evaluation.on", config.evaluation.on
    if config.fleet and config.fleet.replan != "never":
        yield "fleet.replan", config.fleet.replan


def _with_privacy(config: RunConfig, settings: PrivacyConfig) -> Iterator[Rule]:
    """Settings that would void the privacy guarantee."""
    sampling, server, number = config.sampling, config.server, config.clients.num_clients
    why = "depends on the clients' data" if sampling.by_norm else "is not independent"
    up, best = config.messages.up, config.evaluation
    yield from (
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
        ("server.max_medians", server.max_medians is not None,
         "[privacy] does not allow it: whether one client's update counts would depend on the "
         "others'. Leave it out: updates are clipped anyway."),
        ("server.memory", server.memory is not None,
         "[privacy] does not allow it: an update that is added again in later rounds changes more "
         "than the noise covers. Leave it out."),
        ("messages.up", up != "float32",
         f"it is {up!r}, which [privacy] does not allow: what an upload loses is added to the next "
         "one, and the noise does not cover it. Set 'float32'."),
    )  # fmt: skip
    for key, given in (("keep_best", best.keep_best), ("stop_after", best.stop_after)):
        yield (
            f"evaluation.{key}",
            bool(given) and ON_NODES in (best.on, config.data.name),
            f"it is {given!r}, which [privacy] does not allow where the nodes evaluate: their "
            "scores have no noise, and which model is released would depend on them. Leave it "
            "out, or evaluate on data of the server (evaluation.on = 'server').",
        )


def _with_memory(config: RunConfig) -> Iterator[Rule]:
    """Memory or encodings of updates that do not fit the sampler."""
    sampling, up = config.sampling, config.messages.up
    yield from (
        ("server.memory", config.server.memory is not None and sampling.weighs,
         f"sampling.name = {sampling.name!r} with the estimator {sampling.estimator_used!r} "
         "does not allow it: its weights hold for the clients of one round. Sample with 'uniform' "
         "or 'all', or leave it out."),
        ("messages.up", up != "float32" and sampling.by_norm and config.engine.name == "flower",
         f"it is {up!r}: from a rounded upload the server cannot check the norm by which "
         f"sampling.name = {sampling.name!r} chose the client. Set 'float32', or sample with "
         "'uniform' or 'all'."),
    )  # fmt: skip
