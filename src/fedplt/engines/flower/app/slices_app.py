"""The client's side for people who have a Flower app: their model, their data, their loop."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, Context, Message
from flwr.clientapp import ClientApp
from torch import Tensor, nn

from fedplt import __version__
from fedplt.client import HeldModels, TrainableSlices, train_held, weighted_norm
from fedplt.engines.flower.app_messages import (
    EVALUATE,
    SlicesAnswer,
    SlicesHeader,
    find_metric,
    read_layers,
    read_recipe,
    read_spaces,
)
from fedplt.engines.flower.messages import EvaluateHeader, HelloAnswer, read
from fedplt.engines.flower.node.client import receive
from fedplt.engines.flower.node.client_app import answering, park, upload_parked
from fedplt.engines.flower.node.gate import Work
from fedplt.engines.flower.node.local_state import not_needed
from fedplt.engines.flower.records import from_records, to_records
from fedplt.errors import ConfigError, FedpltError, RunError, UpdateError
from fedplt.kernels import bind_state
from fedplt.planning import Assignment, read_assignment

_log = logging.getLogger("flwr")
KEPT = "fedplt-kept-"
"""Records of what a client keeps after a round and never sends, in the node's memory."""


class SlicesApp(ClientApp):
    """A ``ClientApp`` for the strategy :class:`~fedplt.engines.flower.FedPLT`.

    Use it where ``ClientApp()`` was, with :func:`train_slices` in the ``@app.train()`` function. It
    tells the server which client this is (``partition-id`` of the node's configuration) and sends
    updates that wait. What fails in the app is said to the server in words.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.query("hello")(answering(_hello))
        self.train("upload")(answering(upload_parked))

    def __call__(self, message: Message, context: Context) -> Message:
        if "fedplt" not in message.content.config_records:
            return super().__call__(message, context)
        try:
            if message.metadata.message_type == EVALUATE:
                _put_kept(message, context)
            return super().__call__(message, context)
        except FedpltError as error:
            why = str(error)
        except Exception as error:  # the app's model and data may raise anything
            why = f"{type(error).__name__}: {error}"
            _log.exception("fedplt: the app failed")
        return Message(to_records({"refused": why}, {}), reply_to=message)


def _hello(
    context: Context, work: Work, header: Any, arrays: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    answer = HelloAnswer(
        client=_client(context), num_examples=None, layers=None, version=__version__
    )
    return answer.model_dump(), {}


def _client(context: Context) -> int:
    client = context.node_config.get("partition-id")
    if not isinstance(client, int):
        raise ConfigError(
            "this node does not say which client it is: start its SuperNode with --node-config "
            '"partition-id=0 num-partitions=4".'
        )
    return client


class ClientSlices:
    """What a client trains in a round, and its reply."""

    def __init__(
        self,
        message: Message,
        context: Context,
        asked: SlicesHeader,
        assignment: Assignment,
        model: nn.Module,
        slices: TrainableSlices,
        weights: Tensor | None,
    ) -> None:
        self.model = model
        """The model to train: the whole one, or a smaller one. Its ``parameters()`` are the slices
        that this client trains."""
        self.client, self.round, self.ratio = asked.client, asked.round + 1, assignment.ratio
        self._message, self._context, self._asked = message, context, asked
        self._assignment, self._slices, self._weights = assignment, slices, weights
        self._started = time.perf_counter()

    def parameters(self) -> Iterator[nn.Parameter]:
        """The trained slices, for an optimizer."""
        return self._slices.parameters()

    def reply(self, *, num_examples: int, loss: float | None = None, **metrics: float) -> Message:
        """The reply to the server, inside of the block or after it.

        ``loss`` is for the run's records; without it, a metric such as ``train_loss`` is taken.
        All metrics are averaged over the clients, weighted by ``num_examples``.
        """
        asked, update = self._asked, self._slices.update(num_examples)
        numbers = {name: float(value) for name, value in metrics.items()}
        if loss is None:
            loss = find_metric(numbers, "loss")
        else:
            numbers["loss"] = float(loss)
        values = torch.from_numpy(update.values)
        answer = SlicesAnswer(
            client=asked.client, round=asked.round, plan=asked.plan, num_examples=num_examples,
            norm=update.norm, loss=math.nan if loss is None else float(loss),
            seconds=time.perf_counter() - self._started,
            weighted_norm=weighted_norm(values, self._weights, self._assignment), metrics=numbers,
        ).model_dump()  # fmt: skip
        if asked.local:
            _keep(self._context, asked, self.model)
        arrays = {"update": update.values}
        if not asked.upload:
            park(self._context, answer, update.values)
            arrays = {}
        return Message(to_records(answer, arrays), reply_to=self._message)


@contextmanager
def train_slices(message: Message, context: Context, model: nn.Module) -> Iterator[ClientSlices]:
    """Inside the block, a training loop trains what FedPLT assigned to this client.

    ``model`` is the app's own, on the device it is trained on, with any values: those of the server
    are put into it. It must have the names and shapes that the server's model has.
    """
    if "fedplt" not in message.content.config_records:
        raise UpdateError(
            "this message is not from FedPLT: train_slices needs fedplt.engines.flower.FedPLT as "
            "the strategy in server_app.py."
        )
    header, arrays = from_records(message.content)
    asked = read(SlicesHeader, header)
    if asked.client != _client(context):
        raise UpdateError(
            f"this is client {_client(context)}; the order is for client {asked.client}."
        )
    layers, recipe = read_layers(asked, model), read_recipe(asked)
    assignment = read_assignment(
        layers, asked.assignment, frozenset(asked.local), lambda: read_spaces(asked, layers)
    )
    state = bind_state(model, layers)
    receive(state, assignment.received, arrays.get("state"))
    if asked.kept >= 0 and asked.local:
        kept = _kept(context, asked.kept)
        for name, tensor in _local_tensors(model, asked):
            tensor.copy_(torch.from_numpy(kept[name].numpy()).reshape(tensor.shape))
    held = assignment.build(HeldModels(model, state))
    with train_held(held, assignment, recipe) as slices:
        weights = torch.from_numpy(arrays["weights"]) if "weights" in arrays else None
        yield ClientSlices(message, context, asked, assignment, held.module, slices, weights)


def _local_tensors(model: nn.Module, asked: SlicesHeader) -> list[tuple[str, Tensor]]:
    tensors = model.state_dict()
    return [(name, tensors[name]) for name in asked.local]


def _keep(context: Context, asked: SlicesHeader, model: nn.Module) -> None:
    """Keep this round's values of what stays here, and forget those that nobody asks for again."""
    state = context.state
    rounds = [int(name[len(KEPT) :]) for name in state.array_records if name.startswith(KEPT)]
    for number in not_needed(rounds, asked.oldest):
        del state[f"{KEPT}{number}"]
    state[f"{KEPT}{asked.round}"] = ArrayRecord(
        {
            name: Array(tensor.numpy(force=True).copy())
            for name, tensor in _local_tensors(model, asked)
        }
    )


def _kept(context: Context, round: int) -> ArrayRecord:
    kept = context.state.array_records.get(f"{KEPT}{round}")
    if kept is None:
        raise RunError(
            f"the state that this client kept after round {round + 1} is gone: its node was "
            "restarted."
        )
    return kept


def _put_kept(message: Message, context: Context) -> None:
    """The app evaluates the server's model with what this client keeps."""
    asked = read(EvaluateHeader, from_records(message.content)[0])
    if asked.kept >= 0 and asked.local:
        kept = _kept(context, asked.kept)
        arrays = message.content.array_records["arrays"]
        message.content["arrays"] = ArrayRecord(
            {name: kept[name] if name in asked.local else arrays[name] for name in arrays}
        )
