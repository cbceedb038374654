"""Device profiles in a run: what each client's device is, and what it should train."""

from __future__ import annotations

from fedplt.data.catalog import CATALOG
from fedplt.errors import ConfigError
from fedplt.federation.config import RunConfig
from fedplt.fleet import ExactWorkload
from fedplt.layers import Layers


def nominal_workload(
    config: RunConfig, layers: Layers, num_examples: int | None = None
) -> ExactWorkload:
    """A client's round before it is known who owns what: as if all had equally many examples.

    ``num_examples`` are those of all clients together; known for built-in data sets.
    """
    settings = config.training
    if num_examples is None and config.data.name in CATALOG:
        num_examples = CATALOG[config.data.name].num_train
    if settings.local_steps is not None and settings.batch_size != "full":
        return ExactWorkload(layers, settings.local_steps, settings.batch_size)
    if num_examples is None:
        raise ConfigError(
            f"training: how much work a round is depends on the size of {config.data.name!r}. "
            "Set training.local_steps and training.batch_size."
        )
    each = max(1, round(num_examples / config.clients.num_clients))
    batch = each if settings.batch_size == "full" else min(settings.batch_size, each)
    epochs = settings.local_epochs or 1
    return ExactWorkload(
        layers, settings.local_steps or max(1, round(epochs * each / batch)), batch
    )
