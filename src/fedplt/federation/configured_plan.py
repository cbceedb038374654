"""Make the plan from a configuration and a model: cut the model, let the method plan."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from torch import Tensor, nn

from fedplt.client import LocalTraining, MemoryCounter, batch_statistics, try_submodel
from fedplt.configuration import CutConfig, RunConfig, refuse_weighted_votes
from fedplt.cutting import cut, find_spaces
from fedplt.errors import ConfigError, CutError, FedpltError
from fedplt.federation.assigned_devices import ClientDevices, client_devices, nominal_workload
from fedplt.kernels import check_dtypes
from fedplt.methods import Method, PlanRequest, make_method
from fedplt.models import MODELS
from fedplt.planning import Allocation, Layers, Plan, Spaces, allocation_of


def plan_from_config(
    config: RunConfig,
    model: nn.Module,
    example: Tensor | None = None,
    ratios: Sequence[float | Allocation] | None = None,
    num_examples: int | None = None,
    training: LocalTraining | None = None,
) -> tuple[Plan, ClientDevices | None]:
    """Cut the model and let the method plan; with ``[fleet]``, also the clients' devices.

    ``training`` lets the fleet planner count the memory of the devices' training.
    """
    _check_named_code(config)
    if config.training.micro_batch is not None and (name := batch_statistics(model)):
        raise ConfigError(
            f"{name} normalizes by the statistics of the whole batch, which micro-batches do not "
            "have. Leave out micro_batch, or use layers without them (GroupNorm, LayerNorm).",
            key="training.micro_batch",
        )
    how: dict[str, Any] = config.model.model_dump(include=set(CutConfig.model_fields))
    if how["groups"] is None and config.model.name in MODELS:
        how["groups"] = MODELS[config.model.name].groups
    try:
        layers = cut(model, example, **how)
    except CutError as error:
        raise ConfigError(str(error), key="model") from error
    try:
        check_dtypes(model, layers)
    except CutError as error:
        do = "Call model.float() first. (fedplt.train_only in your training loop takes any type.)"
        raise ConfigError(f"{error} {do}", key="model") from error
    counter = MemoryCounter(model, example, training) if training and example is not None else None
    workload = partial(nominal_workload, config, layers, num_examples, counter)
    devices = client_devices(config, workload)
    if ratios is None:
        ratios = (devices.ratios if devices else ()) or _ratios(config, layers)
    elif devices is not None:
        # Given ratios take precedence over planned ones.
        devices = ClientDevices(devices.profiles, availability=devices.availability)

    def spaces() -> Spaces:
        if example is None:
            raise ConfigError("sub-models need an example input.", key="method.name")
        found = find_spaces(model, layers, example)
        try_submodel(model, layers, found, example)
        return found

    request = PlanRequest(layers, ratios, config.seed, spaces)
    return method_from_config(config).full_plan(request), devices


def _check_named_code(config: RunConfig) -> None:
    """Import the sampler and the aggregation rule, so that mistakes show before anything runs."""
    _ = config.sampling.rule if config.sampling.by_norm else config.sampling.sampler
    _ = config.server.rule
    refuse_weighted_votes(config)


def method_from_config(config: RunConfig) -> Method:
    options = {key: value for key, value in config.method.items() if key != "name"}
    return make_method(config.method["name"], options)


def _ratios(config: RunConfig, layers: Layers) -> list[float | Allocation]:
    result: list[float | Allocation] = []
    sizes = config.clients.group_sizes()
    for index, (group, number) in enumerate(zip(config.clients.groups, sizes, strict=True)):
        if group.ratio is not None:
            result += [group.ratio] * number
            continue
        try:
            result += [allocation_of(layers.sizes, group.layer_ratios or [])] * number
        except FedpltError as error:
            raise ConfigError(str(error), key=f"clients.groups.{index}.layer_ratios") from error
    return result
