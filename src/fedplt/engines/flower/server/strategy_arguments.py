"""What the strategy is told: ratios, the metric, and what an app cannot do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from fedplt.client import METRICS, Metric, MetricInfo
from fedplt.configuration import RunConfig
from fedplt.errors import ConfigError, RunError, did_you_mean
from fedplt.federation import local_training_of
from fedplt.federation.preflight import as_list, checked_ratio, described


def ratio_list(
    ratios: Sequence[float] | Mapping[int, float] | float, num_clients: int | None
) -> list[float]:
    given = as_list(ratios)
    if isinstance(given, (int, float)) and not isinstance(given, bool):
        if num_clients is None or num_clients < 1:
            raise ConfigError(f"{given} for how many clients? Give num_clients.", key="ratios")
        given = [given] * num_clients
    if isinstance(given, Mapping):
        if set(given) != set(range(len(given))):
            raise ConfigError(
                f"clients are numbered 0 to {len(given) - 1} (the partition-id of their "
                f"nodes); the mapping has {', '.join(map(repr, given))}.",
                key="ratios",
            )
        given = [given[client] for client in range(len(given))]
    if isinstance(given, str) or not isinstance(given, Sequence) or not given:
        raise ConfigError(f"ratios is a {described(ratios)}; give one number per client.")
    if num_clients not in (None, len(given)):
        raise ConfigError(
            f"{len(given)} for {num_clients} clients; give one per client.", key="ratios"
        )
    return [float(checked_ratio(client, ratio)) for client, ratio in enumerate(given)]


def metric_of(given: str | MetricInfo) -> Metric:
    """The metric that the app's own metrics are searched for."""
    if isinstance(given, Metric):
        return given
    if isinstance(given, MetricInfo):
        return Metric(_computed_by_the_app, **given.to_json())
    if not isinstance(given, str):
        raise ConfigError(f"metric is a {described(given)}; give a name or a fedplt.MetricInfo.")
    if given not in METRICS:
        raise ConfigError(
            f"there is no {given!r}. {did_you_mean(given, METRICS)} For one of your own, "
            "give a fedplt.MetricInfo(name=..., direction='higher' or 'lower').",
            key="metric",
        )
    return METRICS[given]


def _computed_by_the_app(outputs: Any, targets: Any) -> NoReturn:
    raise RunError("this metric is computed by the app's own function.")


def refuse_recipe(config: RunConfig) -> None:
    """What needs the clients' data or their loss, which are the app's own."""
    recipe = local_training_of(config).recipe
    for key, needs in (("masked_loss", "the labels"), ("static_norm", "the training data")):
        if getattr(recipe, key):
            raise ConfigError(
                f"it needs {needs}, which is in the app's own code; leave it out.",
                key=f"method.{key}",
            )
