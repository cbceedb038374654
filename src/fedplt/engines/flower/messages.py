"""The contents of orders and answers, checked by whoever reads them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from fedplt.client import LocalTraining, TrainOrder
from fedplt.configuration import AnnouncedDevice
from fedplt.errors import UpdateError
from fedplt.planning import LocalRecipe
from fedplt.schema import first_problem

Index = Annotated[int, Field(ge=0, le=2**31)]
Name = Annotated[str, Field(max_length=1000)]
MAX_EXAMPLES = 10**9
"""More than a node has: a message that says so is refused."""
NumExamples = Annotated[int, Field(ge=1, le=MAX_EXAMPLES)]
Kind = TypeVar("Kind", bound=BaseModel)
Number = Annotated[float, Field(allow_inf_nan=True)]
MAX_SUMS = 100_000
"""Largest number of sums of a metric: macro F1 has three per label."""


class Strict(BaseModel):
    """A message with these fields, of these types, and no others."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Training(Strict):
    """Values of :class:`fedplt.client.LocalTraining`; losses and data are the node's own."""

    local_epochs: Annotated[int, Field(ge=1)] | None
    local_steps: Annotated[int, Field(ge=1)] | None
    batch_size: Annotated[int, Field(ge=1)] | None
    optimizer: Name
    optimizer_options: dict[str, Any]
    proximal: Annotated[float, Field(ge=0)]
    recipe: dict[str, bool | str]

    @classmethod
    def of(cls, training: LocalTraining) -> Training:
        return cls(
            local_epochs=training.local_epochs,
            local_steps=training.local_steps,
            batch_size=training.batch_size,
            optimizer=training.optimizer,
            optimizer_options=training.optimizer_options,
            proximal=training.proximal,
            recipe=asdict(training.recipe),
        )

    def local_recipe(self) -> LocalRecipe:
        return TypeAdapter(LocalRecipe).validate_python(self.recipe)


class TrainHeader(Strict):
    """The server asks a client to train."""

    client: Index
    round: Index
    plan: Name
    """The plan's fingerprint; the client's answer repeats it."""
    seed: Annotated[int, Field(ge=0)]
    assignment: dict[str, Any]
    local: list[Name]
    """Tensors that stay on the client."""
    training: Training
    learning_rate: Annotated[float, Field(gt=0)]
    kept: Annotated[int, Field(ge=-1)]
    """The last round that counts and whose state the client kept; -1: none."""
    oldest: Annotated[int, Field(ge=-1)]
    """Kept states of rounds before this one are not needed again."""
    upload: bool
    """Send the update with the answer."""
    check: bool
    """Compare a step of this training with full gradients times mask first: the server, which has
    no data, cannot."""


class EvaluateHeader(Strict):
    client: Index
    round: Index
    part: Name
    local: list[Name]
    kept: Annotated[int, Field(ge=-1)]


class UploadHeader(Strict):
    client: Index
    round: Index
    plan: Name


class HelloAnswer(Strict):
    """A node says who it is."""

    client: Index
    num_examples: NumExamples | None
    """None: not known before it trains (the app has data of its own)."""
    layers: Name | None
    """Fingerprint of how the node's model is cut; None: it takes the server's layers."""
    version: Name
    profile: AnnouncedDevice | None = None
    """What its device can do, if its owner says it."""


class TrainAnswer(Strict):
    client: Index
    round: Index
    plan: Name
    num_examples: NumExamples
    norm: Number
    loss: Number
    seconds: Annotated[float, Field(ge=0)]
    weighted_norm: Number | None


class EvaluateAnswer(Strict):
    client: Index
    round: Index
    num_examples: NumExamples
    loss: Number
    count: NumExamples
    """Number of evaluated examples."""
    sums: Annotated[list[Number], Field(min_length=1, max_length=MAX_SUMS, fail_fast=True)]
    """The metric's numbers, summed over them."""
    label_counts: Annotated[list[Annotated[int, Field(ge=0)]], Field(fail_fast=True)] | None
    label_scores: Annotated[list[Number], Field(fail_fast=True)] | None


def read(kind: type[Kind], header: Any) -> Kind:
    """A message of this kind; :class:`UpdateError` names the first thing that is wrong with it."""
    try:
        return kind.model_validate(header)
    except ValidationError as error:
        raise UpdateError(first_problem(error)) from error
    except (RecursionError, OverflowError) as error:
        raise UpdateError("the message cannot be read.") from error


def train_header(
    order: TrainOrder, *, plan: str, kept: int, oldest: int, upload: bool, check: bool
) -> TrainHeader:
    return TrainHeader(
        client=order.client,
        round=order.round,
        plan=plan,
        seed=order.seed,
        assignment=order.assignment.to_message(),
        local=sorted(order.assignment.local),
        training=Training.of(order.training),
        learning_rate=order.learning_rate,
        kept=kept,
        oldest=oldest,
        upload=upload,
        check=check,
    )
