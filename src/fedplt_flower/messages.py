"""Contents of messages: orders (server to node) and answers, validated by the receiver."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from fedplt.client import LocalTraining, TrainingConfig
from fedplt.configuration import AnnouncedDevice
from fedplt.errors import UpdateError
from fedplt.planning import Encoding, LocalRecipe
from fedplt.schema import first_problem

HELLO, TRAIN, UPLOAD, EVALUATE = "query.hello", "train", "train.upload", "evaluate"
"""Types of Flower messages. A user's app handles the second and fourth with ``@app.train()`` and
``@app.evaluate()``."""
Index = Annotated[int, Field(ge=0, le=2**31)]
Round = Annotated[int, Field(ge=-1)]
"""A round, counted from 0; -1: none."""
Name = Annotated[str, Field(max_length=1000)]
MAX_EXAMPLES = 10**9
"""A message that reports more examples is refused."""
NumExamples = Annotated[int, Field(ge=1, le=MAX_EXAMPLES)]
Kind = TypeVar("Kind", bound=BaseModel)
Number = Annotated[float, Field(allow_inf_nan=True)]
MAX_SUMS = 100_000
"""Largest number of sums of a metric: macro F1 has three per label."""
MAX_METRICS = 1000
NUM_EXAMPLES = "num-examples"


class Strict(BaseModel):
    """A message with exactly these fields and types."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class TrainHeader(Strict):
    """Order to train. A user's app has its own training loop, so it ignores training settings."""

    client: Index
    round: Index
    plan: Name
    """The plan's fingerprint; the client's answer repeats it."""
    assignment: dict[str, Any]
    local: list[Name]
    """Names of tensors that stay on the client."""
    recipe: dict[str, bool | str]
    """Values of :class:`fedplt.planning.LocalRecipe`."""
    local_state_round: Round
    """Start from the client's local state after this round, its last committed one."""
    oldest_state_round: Round
    """Of the local states up to this round, only the newest is still needed."""
    upload: bool
    """Whether to send the update with the answer."""
    seed: Annotated[int, Field(ge=0)]
    training: TrainingConfig
    """Training settings; loss, augmentation and data are the node's own."""
    learning_rate: Annotated[float, Field(gt=0)]
    """The learning rate of this client in this round."""
    check: bool
    """Whether to first compare a step with full gradients times mask: the server has no data for
    this self-check."""
    down: Encoding = "float32"
    """Encoding of the model."""
    is_difference: bool = False
    """Whether the order has the difference to the reference in the local state, not the model."""
    keep_reference: bool = False
    """Whether to save the received model as the reference of the next difference."""
    up: Encoding = "float32"
    """Encoding of the update."""
    layers: list[dict[str, Any]] = []
    """Layers of the model, for a user's app; a node of a deployment finds them itself."""
    flow: list[dict[str, Any]] = []
    spaces: dict[str, Any] | None = None
    """Coupled units, for a user's app with a sub-model: rows and columns of the same units."""

    def local_recipe(self) -> LocalRecipe:
        recipe: LocalRecipe = read_plain(LocalRecipe, self.recipe)
        return recipe

    def local_training(self, own: LocalTraining) -> LocalTraining:
        """The node's local training with the settings of this order."""
        return replace(own, settings=self.training, recipe=self.local_recipe())


class UploadHeader(Strict):
    """Order to send the update of the last training; the answer repeats it."""

    client: Index
    round: Index
    plan: Name


class EvaluateHeader(Strict):
    client: Index
    round: Index
    part: Name
    local: list[Name]
    local_state_round: Round


class HelloAnswer(Strict):
    """What a node reports about itself when it joins."""

    client: Index
    num_examples: NumExamples | None
    """Number of examples; None: a user's app reports it after training."""
    layers: Name | None
    """Fingerprint of the node's layers; None: a user's app receives the server's layers."""
    version: Name
    profile: AnnouncedDevice | None = None


class TrainAnswer(Strict):
    client: Index
    round: Index
    plan: Name
    num_examples: NumExamples
    norm: Number
    loss: Number
    seconds: Annotated[float, Field(ge=0)]
    weighted_norm: Number | None
    metrics: Annotated[dict[Name, Number], Field(max_length=MAX_METRICS)] = {}
    """Metrics of a user's app."""


class EvaluateAnswer(Strict):
    client: Index
    round: Index
    num_examples: NumExamples
    loss: Number
    count: NumExamples
    """Number of evaluated examples."""
    sums: Annotated[list[Number], Field(min_length=1, max_length=MAX_SUMS, fail_fast=True)]
    """The metric's numbers, summed over the examples."""
    label_counts: Annotated[list[Annotated[int, Field(ge=0)]], Field(fail_fast=True)] | None
    label_scores: Annotated[list[Number], Field(fail_fast=True)] | None


class MetricsAnswer(Strict):
    """The metrics that an app's ``@app.evaluate()`` returns."""

    metrics: Annotated[dict[Name, int | float], Field(max_length=MAX_METRICS)]

    def split(self) -> tuple[int, dict[str, float]]:
        """The number of examples, and the other metrics."""
        number = self.metrics.get(NUM_EXAMPLES)
        if not isinstance(number, int) or not 1 <= number <= MAX_EXAMPLES:
            raise UpdateError(f"its metrics must contain {NUM_EXAMPLES!r}, at least 1.")
        others = {name: float(each) for name, each in self.metrics.items() if name != NUM_EXAMPLES}
        return number, others


def read(kind: type[Kind], header: Any) -> Kind:
    """A message of this kind; :class:`UpdateError` names the first wrong field."""
    try:
        return kind.model_validate(header)
    except ValidationError as error:
        raise UpdateError(first_problem(error)) from error
    except (RecursionError, OverflowError) as error:
        raise UpdateError("the message cannot be read.") from error


def read_plain(kind: Any, values: Any) -> Any:
    """Read plain values of an order as a type of the plan, without importing named code."""
    try:
        return TypeAdapter(kind).validate_python(values)
    except (ValidationError, IndexError, ZeroDivisionError, RecursionError) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UpdateError(f"the server's order cannot be read: {first}") from error


def metric_names(name: str) -> tuple[str, ...]:
    """Names under which an app may report a metric: ``accuracy`` also as ``acc``.

    >>> metric_names("macro F1")
    ('macro f1', 'f1')
    """
    words = _words(name)
    short = {"accuracy": ["acc"]}.get(words[-1], []) if words else []
    return tuple(dict.fromkeys([" ".join(words), *words[-1:], *short]))


def find_metric(metrics: Mapping[str, float], *names: str) -> float | None:
    """The metric of this name, or else the first whose last word is this name.

    >>> find_metric({"num": 1.0, "eval_acc": 0.5}, "accuracy", "acc")
    0.5
    """
    words = {key: _words(key) for key in metrics}
    for name in filter(None, names):
        whole = [key for key, found in words.items() if " ".join(found) == name]
        ending = [key for key, found in words.items() if found[-1:] == [name]]
        for key in [*whole, *ending]:
            return float(metrics[key])
    return None


def _words(name: str) -> list[str]:
    return [word for word in re.split(r"[^a-z0-9]+", name.lower()) if word]
