"""Orders to apps that have a model and a training loop of their own: what they hold and train."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError
from torch import nn

from fedplt.engines.flower.messages import (
    MAX_EXAMPLES,
    Index,
    Name,
    Number,
    Strict,
    TrainAnswer,
)
from fedplt.errors import UpdateError
from fedplt.kernels import check_dtypes
from fedplt.planning import Layer, Layers, LocalRecipe, ModuleFlow, Spaces, TensorSpec

TRAIN, EVALUATE = "train", "evaluate"
"""Flower's own message types: they reach the app's ``@app.train()`` and ``@app.evaluate()``."""
NUM_EXAMPLES = "num-examples"
MAX_METRICS = 1000


class SlicesHeader(Strict):
    """The server asks a client to train. The client's model has these layers, or it refuses."""

    client: Index
    round: Index
    plan: Name
    layers: list[dict[str, Any]]
    flow: list[dict[str, Any]]
    spaces: dict[str, Any] | None
    """For a sub-model: which rows and columns stand for the same units."""
    assignment: dict[str, Any]
    local: list[Name]
    """Tensors that stay on the client."""
    recipe: dict[str, bool | str]
    kept: Annotated[int, Field(ge=-1)]
    oldest: Annotated[int, Field(ge=-1)]
    upload: bool


class SlicesAnswer(TrainAnswer):
    """What an app says about its training, with metrics of its own."""

    metrics: Annotated[dict[Name, Number], Field(max_length=MAX_METRICS)]


class MetricsAnswer(Strict):
    """What an app's ``@app.evaluate()`` replies."""

    metrics: Annotated[dict[Name, int | float], Field(max_length=MAX_METRICS)]

    def split(self) -> tuple[int, dict[str, float]]:
        """The number of examples, and the other metrics."""
        number = self.metrics.get(NUM_EXAMPLES)
        if not isinstance(number, int) or not 1 <= number <= MAX_EXAMPLES:
            raise UpdateError(f"its metrics must say {NUM_EXAMPLES!r}, at least 1.")
        others = {name: float(each) for name, each in self.metrics.items() if name != NUM_EXAMPLES}
        return number, others


def read_layers(asked: SlicesHeader, model: nn.Module) -> Layers:
    """The server's layers; :class:`UpdateError` names what is different in this model."""
    layers = Layers(
        _plain(tuple[Layer, ...], asked.layers), _plain(tuple[ModuleFlow, ...], asked.flow)
    )
    shapes = {name: (tuple(p.shape), False) for name, p in _parameters(model)}
    shapes |= {name: (tuple(b.shape), True) for name, b in model.named_buffers()}
    seen: set[str] = set()
    for layer in layers:
        for tensor in layer.tensors:
            if tensor.name in seen or layer.num_sublayers < 1:
                raise UpdateError(f"the server cannot cut {tensor.name!r} so, or names it twice.")
            seen.add(tensor.name)
            _compare(tensor, shapes.get(tensor.name))
    if unknown := sorted(set(asked.local) - seen):
        raise UpdateError(f"there is no tensor {unknown[0]!r} in the server's layers.")
    check_dtypes(model, layers)
    return layers


def _parameters(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return list(model.named_parameters(remove_duplicate=False))


def _compare(tensor: TensorSpec, here: tuple[tuple[int, ...], bool] | None) -> None:
    if here != (tensor.shape, tensor.is_buffer):
        found = "no such tensor" if here is None else f"{here[0]}"
        raise UpdateError(
            f"this client's model is not the server's: {tensor.name} has shape {tensor.shape} "
            f"there and {found} here."
        )
    if not 0 <= tensor.axis < max(1, len(tensor.shape)) or tensor.repeats < 1:
        raise UpdateError(f"{tensor.name} cannot be cut as the server says.")


def read_spaces(asked: SlicesHeader, layers: Layers) -> Spaces:
    """The server's groups of coupled units, which fit its layers."""
    if asked.spaces is None:
        raise UpdateError("the server asks for a sub-model and does not say its units.")
    spaces: Spaces = _plain(Spaces, asked.spaces)
    for tensor in layers.tensors:
        units = spaces.by_tensor.get(tensor.name)
        if units is None:
            raise UpdateError(f"the server does not say the units of {tensor.name}.")
        for axis, space in enumerate((units.rows, units.columns)):
            if space is not None and not _fits(spaces, space, tensor.shape[axis : axis + 1]):
                raise UpdateError(f"{tensor.name} does not have the units that the server says.")
    return spaces


def _fits(spaces: Spaces, space: int, length: tuple[int, ...]) -> bool:
    if not (0 <= space < len(spaces.widths) and length):
        return False
    return spaces.widths[space] >= 1 and length[0] % spaces.widths[space] == 0


def read_recipe(asked: SlicesHeader) -> LocalRecipe:
    recipe: LocalRecipe = _plain(LocalRecipe, asked.recipe)
    return recipe


def _plain(kind: Any, values: Any) -> Any:
    """Plain values as one of the plan's types; nothing is imported for it."""
    try:
        return TypeAdapter(kind).validate_python(values)
    except (ValidationError, IndexError, ZeroDivisionError, RecursionError) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UpdateError(f"the server's order cannot be read: {first}") from error


def metric_names(name: str) -> tuple[str, ...]:
    """What an app may call a metric: ``accuracy`` also ``acc``.

    >>> metric_names("macro F1")
    ('macro f1', 'f1')
    """
    words = [word for word in re.split(r"[^a-z0-9]+", name.lower()) if word]
    short = {"accuracy": ["acc"]}.get(words[-1], []) if words else []
    return tuple(dict.fromkeys([" ".join(words), *words[-1:], *short]))


def find_metric(metrics: Mapping[str, float], *names: str) -> float | None:
    """The metric that is called so, or else the first whose last word is.

    >>> find_metric({"num": 1.0, "eval_acc": 0.5}, "accuracy", "acc")
    0.5
    """
    words = {key: [w for w in re.split(r"[^a-z0-9]+", key.lower()) if w] for key in metrics}
    for name in filter(None, names):
        whole = [key for key, found in words.items() if " ".join(found) == name]
        ending = [key for key, found in words.items() if found[-1:] == [name]]
        for key in [*whole, *ending]:
            return float(metrics[key])
    return None
