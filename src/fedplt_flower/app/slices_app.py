"""The client app of every node: a user's app with custom code, or one made from ``node.toml``."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message
from flwr.clientapp import ClientApp
from torch import Tensor, nn

from fedplt import __version__
from fedplt.client import ClientResult, HeldModels, TrainableSlices, train_held, weighted_norm
from fedplt.errors import ConfigError, FedpltError, RunError, UpdateError
from fedplt.kernels import bind_state, check_dtypes, put
from fedplt.planning import (
    Assignment,
    FlatIndex,
    Layer,
    Layers,
    ModuleFlow,
    Spaces,
    read_assignment,
)
from fedplt_flower.messages import (
    EVALUATE,
    HELLO,
    UPLOAD,
    EvaluateHeader,
    HelloAnswer,
    Strict,
    TrainAnswer,
    TrainHeader,
    UploadHeader,
    find_metric,
    read,
    read_plain,
)
from fedplt_flower.node.local_state import load_from_memory, save_in_memory
from fedplt_flower.node.owner_limits import AdmittedOrder, Limits
from fedplt_flower.records import HEADER, Arrays, dump_header, from_records, load_header, to_records

_log = logging.getLogger("flwr")
UNLIMITED = AdmittedOrder(Limits(max_steps=2**62))
UPDATE = "fedplt-update"
"""Name of the record, in the node's memory, of an update that was not requested yet."""


class SlicesApp(ClientApp):
    """A ``ClientApp`` for the strategy :class:`~fedplt_flower.FedPLT`.

    Use it instead of ``ClientApp()``, and call :func:`train_slices` in the ``@app.train()``
    function. The app reports to the server which client this is (``partition-id`` of the node's
    configuration), sends stored updates, and reports exceptions.
    """

    allows_other_strategies = True

    def __call__(self, message: Message, context: Context) -> Message:
        if self.allows_other_strategies and HEADER not in message.content.config_records:
            return super().__call__(message, context)
        try:
            size = sum(record.count_bytes() for record in message.content.values())
            admitted = self.admit(context, size)
            with admitted.stopping():
                return self.answer(message, context, admitted)
        except FedpltError as error:
            reason = str(error)
        except Exception as error:  # the model and the data may raise anything
            reason = f"{type(error).__name__}: {error}"
            _log.exception("fedplt: the order failed")
        return Message(to_records({"refused": reason}, {}), reply_to=message)

    def admit(self, context: Context, bytes_down: int) -> AdmittedOrder:
        """Check an order of this size, of any type, against the owner's limits."""
        return UNLIMITED

    def answer(self, message: Message, context: Context, admitted: AdmittedOrder) -> Message:
        action = message.metadata.message_type
        if action == HELLO:
            client = _client(context)
            return reply(
                message,
                HelloAnswer(client=client, num_examples=None, layers=None, version=__version__),
            )
        if action == UPLOAD:
            return reply_upload(message, context, admitted)
        if action == EVALUATE:
            _load_local_state(message, context)
        return super().__call__(message, context)


def reply(message: Message, answer: Strict, arrays: Arrays | None = None) -> Message:
    return Message(to_records(answer.model_dump(), arrays or {}), reply_to=message)


def reply_trained(
    message: Message,
    context: Context,
    order: TrainHeader,
    result: ClientResult,
    update: Any,
    metrics: Mapping[str, float] | None = None,
) -> Message:
    """Reply with the update, or store it until the server requests it."""
    answer = TrainAnswer(
        round=order.round, plan=order.plan, metrics=dict(metrics or {}), **asdict(result)
    )
    if order.upload:
        return reply(message, answer, {"update": update})
    header = answer.model_dump(include={"client", "round", "plan"})
    context.state[UPDATE] = ArrayRecord({"update": Array(np.asarray(update))})
    context.state[UPDATE + "-of"] = ConfigRecord({"header": dump_header(header)})
    return reply(message, answer)


def reply_upload(message: Message, context: Context, admitted: AdmittedOrder) -> Message:
    """Reply with the stored update."""
    order, state = read(UploadHeader, from_records(message.content)[0]), context.state
    if UPDATE not in state.array_records:
        raise RunError("the update is gone: this node was restarted since it trained.")
    stored = read(UploadHeader, load_header(state.config_records[UPDATE + "-of"]["header"]))
    if stored != order:
        raise UpdateError(
            f"the stored update is client {stored.client}'s of round {stored.round + 1}; the order "
            f"is for round {order.round + 1}."
        )
    update = state.array_records[UPDATE]["update"].numpy()
    admitted.admit_upload(update.nbytes)
    del state[UPDATE]
    return reply(message, stored, {"update": update})


def _client(context: Context) -> int:
    client = context.node_config.get("partition-id")
    if not isinstance(client, int):
        raise ConfigError(
            "this node has no partition-id, which is the client's number: start its SuperNode with "
            '--node-config "partition-id=0 num-partitions=4".'
        )
    return client


def _load_local_state(message: Message, context: Context) -> None:
    """Replace tensors of the server's model by the client's local ones."""
    order = read(EvaluateHeader, from_records(message.content)[0])
    if order.local_state_round >= 0 and order.local:
        own = load_from_memory(context, order.local_state_round)
        arrays = message.content.array_records["arrays"]
        message.content["arrays"] = ArrayRecord(
            {name: own[name] if name in order.local else arrays[name] for name in arrays}
        )


def refuse_other(order: TrainHeader | EvaluateHeader, client: int, layers: Layers) -> None:
    """Refuse an order for another client or another model."""
    if order.client != client:
        raise UpdateError(f"this is client {client}; the order is for client {order.client}.")
    if unknown := sorted(set(order.local) - {tensor.name for tensor in layers.tensors}):
        raise UpdateError(f"there is no tensor {unknown[0]!r} in the model's layers.")


def receive(state: Tensor, places: FlatIndex, numbers: Any) -> None:
    """Write the received numbers into a flat state, and zeros elsewhere."""
    if numbers is None or len(numbers) != places.size or numbers.dtype != np.float32:
        found = "no" if numbers is None else f"{len(numbers)} {numbers.dtype}"
        raise UpdateError(f"{found} numbers were received; this client holds {places.size}.")
    state.zero_()
    put(state, places, torch.from_numpy(numbers.copy()).to(state.device))


class ClientSlices:
    """The slices that a client trains in a round, and its reply."""

    def __init__(
        self,
        message: Message,
        context: Context,
        order: TrainHeader,
        assignment: Assignment,
        model: nn.Module,
        slices: TrainableSlices,
        weights: Tensor | None,
    ) -> None:
        self.model = model
        """The model to train: the whole model or a sub-model. Its ``parameters()`` are the slices
        that this client trains."""
        self.client, self.round, self.ratio = order.client, order.round + 1, assignment.ratio
        self._message, self._context, self._order = message, context, order
        self._assignment, self._slices, self._weights = assignment, slices, weights
        self._started = time.perf_counter()

    def parameters(self) -> Iterator[nn.Parameter]:
        """The trained slices, for an optimizer."""
        return self._slices.parameters()

    def reply(self, *, num_examples: int, loss: float | None = None, **metrics: float) -> Message:
        """The reply to the server; call it inside the block or after it.

        ``loss`` is for the run's records; default: a metric such as ``train_loss``. All metrics are
        averaged over the clients, weighted by ``num_examples``.
        """
        order, update = self._order, self._slices.update(num_examples)
        numbers = {name: float(value) for name, value in metrics.items()}
        if loss is None:
            loss = find_metric(numbers, "loss")
        else:
            numbers["loss"] = float(loss)
        result = ClientResult(
            order.client,
            num_examples,
            update.norm,
            math.nan if loss is None else float(loss),
            time.perf_counter() - self._started,
            weighted_norm(torch.from_numpy(update.values), self._weights, self._assignment),
        )
        if order.local:
            save_in_memory(self._context, _local_tensors(self.model, order), order)
        return reply_trained(self._message, self._context, order, result, update.values, numbers)


@contextmanager
def train_slices(message: Message, context: Context, model: nn.Module) -> Iterator[ClientSlices]:
    """Inside the block, a training loop trains the slices that FedPLT assigned to this client.

    ``model`` has the names and shapes of the server's model and is on the device for training; its
    values are replaced by the server's.
    """
    if HEADER not in message.content.config_records:
        raise UpdateError(
            "this message is not from FedPLT: train_slices needs fedplt_flower.FedPLT as "
            "the strategy in server_app.py."
        )
    header, arrays = from_records(message.content)
    order = read(TrainHeader, header)
    layers, recipe = _read_layers(order, model), order.local_recipe()
    refuse_other(order, _client(context), layers)
    assignment = read_assignment(
        layers, order.assignment, frozenset(order.local), lambda: _read_spaces(order, layers)
    )
    state = bind_state(model, layers)
    receive(state, assignment.received, arrays.get("state"))
    if order.local_state_round >= 0 and order.local:
        own = load_from_memory(context, order.local_state_round)
        for name, tensor in _local_tensors(model, order).items():
            tensor.copy_(torch.from_numpy(own[name].numpy()).reshape(tensor.shape))
    held = assignment.build(HeldModels(model, state))
    with train_held(held, assignment, recipe) as slices:
        weights = torch.from_numpy(arrays["weights"]) if "weights" in arrays else None
        yield ClientSlices(message, context, order, assignment, held.module, slices, weights)


def _local_tensors(model: nn.Module, order: TrainHeader) -> dict[str, Tensor]:
    tensors = model.state_dict()
    return {name: tensors[name] for name in order.local}


def _read_layers(order: TrainHeader, model: nn.Module) -> Layers:
    """The server's layers; :class:`UpdateError` if they do not fit this model."""
    layers = Layers(
        read_plain(tuple[Layer, ...], order.layers), read_plain(tuple[ModuleFlow, ...], order.flow)
    )
    parameters = model.named_parameters(remove_duplicate=False)
    shapes = {name: (tuple(p.shape), False) for name, p in parameters}
    shapes |= {name: (tuple(b.shape), True) for name, b in model.named_buffers()}
    seen: set[str] = set()
    for layer in layers:
        for tensor in layer.tensors:
            if tensor.name in seen or layer.num_sublayers < 1:
                raise UpdateError(f"the server cannot cut {tensor.name!r} so, or names it twice.")
            seen.add(tensor.name)
            here = shapes.get(tensor.name)
            if here != (tensor.shape, tensor.is_buffer):
                found = "no such tensor" if here is None else f"{here[0]}"
                raise UpdateError(
                    f"this client's model is not the server's: {tensor.name} has shape "
                    f"{tensor.shape} there and {found} here."
                )
            if not 0 <= tensor.axis < max(1, len(tensor.shape)) or tensor.repeats < 1:
                raise UpdateError(f"{tensor.name} cannot be cut as the server orders.")
    check_dtypes(model, layers)
    return layers


def _read_spaces(order: TrainHeader, layers: Layers) -> Spaces:
    """The server's groups of coupled units, which must fit its layers."""
    if order.spaces is None:
        raise UpdateError("the server orders a sub-model without its units.")
    spaces: Spaces = read_plain(Spaces, order.spaces)
    for tensor in layers.tensors:
        units = spaces.by_tensor.get(tensor.name)
        if units is None:
            raise UpdateError(f"the order has no units of {tensor.name}.")
        for axis, space in enumerate((units.rows, units.columns)):
            if space is not None and not _fits(spaces, space, tensor.shape[axis : axis + 1]):
                raise UpdateError(f"{tensor.name} does not have the units of the order.")
    return spaces


def _fits(spaces: Spaces, space: int, length: tuple[int, ...]) -> bool:
    if not (0 <= space < len(spaces.widths) and length):
        return False
    return spaces.widths[space] >= 1 and length[0] % spaces.widths[space] == 0
