"""A run's rule of aggregation: what it does not go together with, where it cannot help."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedplt.configuration import RunConfig
from fedplt.errors import ConfigError
from fedplt.federation.job import Job
from fedplt.planning import Plan
from fedplt.server import AggregationRule, Aggregator, ClippedAggregator

MAX_LISTED = 50
FEWEST_CLIENTS = 3
"""The median of two clients is their mean: one bad client of them moves it anywhere."""


def rule_of(job: Job) -> AggregationRule:
    rule = job.config.server.rule
    if rule.counts_clients and job.recipe.normalizer == "participants":
        raise ConfigError(
            f"{job.config.server.aggregation!r} is over the clients that "
            "trained a sub-layer, but method.normalizer is 'participants'. Set it to "
            "'contributors', or use 'clipped-mean'.",
            key="server.aggregation",
        )
    return rule


def clipped_clients(aggregator: Aggregator, added: Sequence[int]) -> dict[str, float]:
    """The clients whose updates were scaled down, those most of all first."""
    if not isinstance(aggregator, ClippedAggregator):
        return {}
    found = sorted(zip(aggregator.factors, added, strict=True))
    return {str(client): float(f"{by:.3g}") for by, client in found[:MAX_LISTED] if by < 1}


def participants_warning(config: RunConfig) -> str:
    """Whether rounds may have too few clients for a robust rule, in words; empty: they do not."""
    server, (share, when) = config.server, _taking_part(config)
    number = share * config.clients.num_clients
    if server.aggregation == "mean":
        return ""
    given = f"WARNING: server.aggregation = {server.aggregation!r}"
    if number < FEWEST_CLIENTS:
        return (
            f"{given} does not protect this run: {number:.3g} clients take part in a round{when}, "
            f"and with fewer than {FEWEST_CLIENTS} one bad client ruins the model. Use more "
            "clients, or only clients that you trust."
        )
    if config.engine.name == "flower" and server.min_clients < FEWEST_CLIENTS:
        return (
            f"{given}, but a round counts with {max(1, server.min_clients)} clients "
            f"(server.min_clients): with fewer than {FEWEST_CLIENTS}, one bad client ruins the "
            f"model. Set server.min_clients = {FEWEST_CLIENTS} or more."
        )
    return ""


def coverage_warnings(config: RunConfig, plan: Plan) -> list[str]:
    """Rounds and sub-layers with too few clients for the rule, before any training."""
    server, rule = config.server, config.server.rule
    share, when = _taking_part(config)
    result = []
    for layer, clients in zip(plan.layers, plan.coverage, strict=True):
        contributors = share * clients
        thin = _thin(contributors, clients, server.min_contributors)
        if server.min_contributors > 1 and thin:
            result.append(
                f"WARNING: layer {layer.name}: {thin} of its {layer.num_sublayers} sub-layers have "
                f"fewer than {server.min_contributors} contributors{when} "
                "(server.min_contributors): they are not changed in such a round."
            )
        least = rule.fewest_to_outvote_one()
        thin = _thin(contributors, clients, least)
        if least and thin:
            result.append(
                f"WARNING: layer {layer.name}: {thin} of its {layer.num_sublayers} sub-layers have "
                f"fewer than {least} contributors{when}: {server.aggregation} cannot outvote one "
                "bad client there. More clients, larger ratios, server.aggregation = "
                "'clipped-mean' or server.min_contributors help."
            )
    return [*result, text] if (text := participants_warning(config)) else result


def _thin(contributors: NDArray[np.floating], clients: NDArray[np.int64], least: int) -> int:
    """Sub-layers that some client trains, but too few in a round."""
    return int(np.count_nonzero((clients > 0) & (contributors < least)))


def _taking_part(config: RunConfig) -> tuple[float, str]:
    """The share of the clients that take part in a round, and words for it."""
    sampling, number = config.sampling, config.clients.num_clients
    if config.privacy is not None or sampling.name == "all":
        return 1.0, ""
    if not sampling.by_norm:
        return sampling.sampler.share(number), " on average"
    return min(1.0, (sampling.budget or number) / number), " on average"
