"""Turn the arguments of ``fedplt.train`` into sections of a configuration; refuse wrong types."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel
from torch import nn

from fedplt.client import Task, as_metric, classification_loss
from fedplt.configuration import FROM_PYTHON, TaskConfig, parse_config, read_fleet
from fedplt.errors import ConfigError
from fedplt.methods import Method, import_path
from fedplt.planning import Allocation

Values = Mapping[str, Any]
"""A section as a dictionary, with the keys of the TOML file."""


def task_section(given: str | Task | TaskConfig | Values) -> tuple[Values, Task]:
    """The section ``[task]``, and the task itself: its loss and metric may be objects."""
    if isinstance(given, Task):
        return {"name": FROM_PYTHON}, given
    values = dict({"name": given} if isinstance(given, str) else values_of("task", given))
    loss, metric = values.get("loss"), values.get("metric")
    if loss is torch.nn.functional.cross_entropy:
        loss = classification_loss  # takes wrapped outputs, too
    objects = {key for key in ("loss", "metric") if not isinstance(values.get(key), str)}
    named = {key: value for key, value in values.items() if key not in objects}
    task = parse_config({"task": named}).task.task()
    if "loss" in objects and loss is not None:
        named |= {"loss": FROM_PYTHON} if loss is not task.loss else {}
        task = replace(task, loss=loss)
    if "metric" in objects and metric is not None:
        named["metric"] = FROM_PYTHON
        task = replace(task, metric=as_metric(metric))
    return {"name": "classification", **named}, task


def clients_section(
    ratios: Sequence[float | Allocation] | None, fleet: Values, rates: Sequence[float] | None
) -> Values:
    """The section ``[clients]``; neighbors with the same ratio and learning rate form a group."""
    if isinstance(ratios, (int, float, Allocation)):
        problem = f"{ratios!r} is one value; give one per client: [{ratios!r}] * 10 for ten."
        raise ConfigError(problem, key="ratios")
    if (ratios is None) == (not fleet):
        problem = "give either ratios, the fraction of the model that every client trains, or "
        raise ConfigError(f"{problem}fleet, the devices to plan it from.", key="ratios")
    if ratios is None and not isinstance(fleet.get("devices"), str):
        given = repr(fleet["devices"]) if "devices" in fleet else "missing"
        problem = f"it is {given}; give the path of a .csv or .toml file."
        raise ConfigError(problem, key="fleet.devices")
    if ratios is None:
        devices = read_fleet(Path(str(fleet.get("devices", "")))).devices
        number = sum(device.count for device in devices)
        by_client = {} if rates is None else {"learning_rates": _rates(rates, number)}
        return {"num_clients": number, **by_client}
    if isinstance(ratios, str) or not isinstance(ratios, Sequence) or not ratios:
        problem = f"it is a {described(ratios)}; give a list with one per client."
        raise ConfigError(problem, key="ratios")
    clients = [_ratio(client, ratio) for client, ratio in enumerate(ratios)]
    if rates is not None:
        clients = [
            {**values, "learning_rate": rate}
            for values, rate in zip(clients, _rates(rates, len(clients)), strict=True)
        ]
    groups = [{"num_clients": len(list(same)), **values} for values, same in groupby(clients)]
    return {"num_clients": len(ratios), "groups": groups}


def _ratio(client: int, given: float | Allocation) -> dict[str, Any]:
    if isinstance(given, Allocation):
        return {"layer_ratios": [float(ratio) for ratio in given.layer_ratios]}
    return {"ratio": float(checked_ratio(client, given))}


def checked_ratio(client: int, given: Any) -> Any:
    """Refuse what is not a fraction of the model."""
    if not isinstance(given, numbers.Real) or not 0 < float(given) <= 1:
        problem = f"that of client {client} is {given!r}; it is the fraction of the model that "
        raise ConfigError(f"{problem}the client trains, above 0 and at most 1.", key="ratios")
    return given


def _rates(given: Any, number: int) -> list[float]:
    rates = given if isinstance(given, Sequence) and not isinstance(given, str) else []
    right = [isinstance(rate, numbers.Real) and 0 < float(rate) < math.inf for rate in rates]
    if len(rates) != number or not all(right):
        problem = f"it is {given!r:.80}; give {number} positive numbers, one per client."
        raise ConfigError(problem, key="learning_rate")
    return [float(rate) for rate in rates]


def as_list(given: Any) -> Any:
    """Arrays and tensors as lists; other values unchanged."""
    return given.tolist() if hasattr(given, "tolist") else given


def values_of(name: str, section: BaseModel | Values | None) -> Values:
    """The values that a section sets; defaults are left out."""
    if section is None:
        return {}
    if isinstance(section, BaseModel):
        return section.model_dump(exclude_unset=True, mode="json")
    if not isinstance(section, Mapping):
        home = {"cut": "model", "split": "data"}.get(name, name)
        problem = f"it is a {described(section)}; give a dictionary with keys of [{home}], or an "
        raise ConfigError(f"{problem}object of its section.", key=name)
    return {key: _plain(f"{name}.{key}", value) for key, value in section.items()}


def _plain(key: str, value: Any) -> Any:
    """Paths as texts; the user's method, sampler or rule by its import path."""
    if key in ("method.name", "sampling.name", "server.aggregation") and callable(value):
        return import_path(value)
    return str(value) if isinstance(value, Path) else value


def method_section(method: str | type[Method] | Values) -> Values:
    """The section ``[method]``; a name or a class means the method without options."""
    named = isinstance(method, (str, type))
    return values_of("method", {"name": method} if named else method)  # type: ignore[arg-type]


def check_arguments(model: Any, **functions: Any) -> None:
    """Refuse arguments of a wrong type."""
    if not isinstance(model, nn.Module):
        raise ConfigError(f"it is a {described(model)}; give a torch.nn.Module.", key="model")
    for name, function in functions.items():
        if not callable(function):
            raise ConfigError(f"it is a {described(function)}; give a function.", key=name)


def described(given: Any) -> str:
    kind = type(given).__name__
    return f"class ({given.__name__})" if isinstance(given, type) else f"{kind} ({given!r:.40})"
