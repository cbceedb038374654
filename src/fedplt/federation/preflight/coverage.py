"""Warn of sub-layers and rounds with too few clients, before any training."""

from __future__ import annotations

import warnings

import numpy as np

from fedplt.configuration import RunConfig
from fedplt.errors import UntrainedWarning
from fedplt.planning import Plan

FEWEST_CLIENTS = 3
"""The median of two clients is their mean, so one bad client can move it anywhere."""


def warn_of_gaps(plan: Plan, label: str = "", stacklevel: int = 3) -> None:
    """Warn of sub-layers that no client trains: they keep their initial values."""
    for entry in plan.uncovered:
        warnings.warn(f"{label}{entry}", UntrainedWarning, stacklevel=stacklevel)


def participants_warning(config: RunConfig) -> str:
    """A warning if rounds may have too few clients for a robust rule, else an empty text."""
    server, (share, when) = config.server, _taking_part(config)
    number, least = share * config.clients.num_clients, server.min_clients
    given = f"WARNING: server.aggregation = {server.aggregation!r}"
    ruin = f"with fewer than {FEWEST_CLIENTS}, one bad client ruins the model"
    if server.aggregation == "mean":
        return ""
    if number < FEWEST_CLIENTS:
        text = f"{given} does not protect this run: {number:.3g} clients take part in a round{when}"
        return f"{text}, and {ruin}. Use more clients, or only clients that you trust."
    if config.engine.name == "flower" and least < FEWEST_CLIENTS:
        text = f"{given}, but a round counts with {max(1, least)} clients (server.min_clients): "
        return f"{text}{ruin}. Set server.min_clients = {FEWEST_CLIENTS} or more."
    return ""


def coverage_warnings(config: RunConfig, plan: Plan) -> list[str]:
    """Rounds and sub-layers with too few clients for the aggregation rule."""
    server, result, (share, when) = config.server, [], _taking_part(config)
    least, outvoting = server.min_contributors, server.rule.fewest_to_outvote_one()
    limits = [
        (least if least > 1 else 0, " (server.min_contributors): they are not changed then."),
        (outvoting, f": {server.aggregation} cannot outvote one bad client there. More clients, "
         "larger ratios, server.aggregation = 'clipped-mean' or server.min_contributors help."),
    ]  # fmt: skip
    for layer, clients in zip(plan.layers, plan.coverage, strict=True):
        for limit, consequence in limits:
            thin = int(np.count_nonzero((clients > 0) & (share * clients < limit)))
            if thin:
                result.append(
                    f"WARNING: layer {layer.name}: {thin} of its {layer.num_sublayers} sub-layers "
                    f"have fewer than {limit} contributors{when}{consequence}"
                )
    return [*result, text] if (text := participants_warning(config)) else result


def _taking_part(config: RunConfig) -> tuple[float, str]:
    """The share of the clients that take part in a round, and its wording in messages."""
    sampling, number = config.sampling, config.clients.num_clients
    if config.privacy is not None or sampling.name == "all":
        return 1.0, ""
    if not sampling.by_norm:
        return sampling.sampler.share(number), " on average"
    return min(1.0, (sampling.budget or number) / number), " on average"
