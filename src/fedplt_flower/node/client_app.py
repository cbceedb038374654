"""Client apps made from files: ``node.toml`` of a deployment, or a simulation's configuration."""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from numpy.typing import NDArray
from torch import Tensor

from fedplt import __version__
from fedplt.client import (
    ClientResult,
    ClientTrainer,
    LocalTraining,
    TrainOrder,
    Uplink,
    combine,
    evaluate_chunk,
    num_chunks,
)
from fedplt.configuration import AnnouncedDevice, load_config
from fedplt.cutting import find_spaces
from fedplt.data import first_examples
from fedplt.errors import ConfigError, RunError, UpdateError
from fedplt.federation import Job, check_job, evaluation_chunks, job_from_config
from fedplt.files import write_text
from fedplt.fleet import DeviceProfile
from fedplt.planning import Assignment, FlatIndex, read_assignment, state_packing, update_packing
from fedplt_flower.app.slices_app import (
    UNLIMITED,
    SlicesApp,
    receive,
    refuse_other,
    reply,
    reply_trained,
)
from fedplt_flower.messages import (
    EVALUATE,
    HELLO,
    TRAIN,
    UPLOAD,
    EvaluateAnswer,
    EvaluateHeader,
    HelloAnswer,
    TrainHeader,
    read,
)
from fedplt_flower.node.daily_bytes import LEDGER
from fedplt_flower.node.local_state import StateFiles
from fedplt_flower.node.node_config import load_node, node_device, node_job
from fedplt_flower.node.owner_limits import AdmittedOrder, load_limits
from fedplt_flower.records import Arrays, from_records

_log = logging.getLogger("flwr")
CHECKED = "checked.txt"
"""Name of the file that records which training last passed the self-check."""


class NodeClient:
    """One client, with a job made from the node's files: its model code, data and loss."""

    def __init__(
        self,
        job: Job,
        client: int,
        examples: range,
        state_folder: Path,
        device: DeviceProfile | None = None,
    ) -> None:
        self.job, self.client, self.examples, self.device = job, client, examples, device
        self.states = StateFiles(state_folder, client)
        self._global = torch.zeros(job.layers.state_size)

    def hello(self) -> HelloAnswer:
        return HelloAnswer(
            client=self.client,
            num_examples=len(self.examples),
            layers=self.job.layers.fingerprint,
            version=__version__,
            profile=None if self.device is None else AnnouncedDevice.of(self.device),
        )

    def train(
        self, header: Mapping[str, Any], arrays: Arrays, admitted: AdmittedOrder
    ) -> tuple[TrainHeader, ClientResult, NDArray[Any]]:
        """The order, its result, and the update in the order's encoding."""
        order = read(TrainHeader, header)
        local = self._local(order)
        assignment = read_assignment(
            self.job.layers, order.assignment, frozenset(order.local), lambda: self._spaces
        )
        training = order.local_training(self.job.training)
        admitted.admit_training(assignment.ratio, training.settings.num_steps(len(self.examples)))
        admitted.admit_upload(update_packing(assignment, order.up).size, now=order.upload)
        saved = self._saved(order, local)
        state = _decoded(order, assignment, arrays.get("state"), saved.get("reference"))
        trainer = self._trainer(local, assignment.received, state)
        if order.check:
            self._check(assignment, training, order.recipe)
            admitted.check()
        if "kept" in saved:
            trainer.load_local_state(saved["kept"])
        weights = arrays.get("weights")
        settings = TrainOrder(
            client=order.client, round=order.round, seed=order.seed, assignment=assignment,
            training=training, learning_rate=order.learning_rate,
            block_weights=None if weights is None else torch.from_numpy(weights.copy()),
        )  # fmt: skip
        update = torch.empty(assignment.update_size)
        result = trainer.train(settings, self.job.samples, self.examples, update, admitted.on_step)
        new = {"kept": trainer.local_state()} if local.size else {}
        if order.keep_reference:
            new["reference"] = torch.from_numpy(state)
        upload: NDArray[Any] = update.numpy()
        if order.up != "float32":
            uplink = Uplink(order.up)
            if "residual" in saved:
                uplink.residuals[self.client] = saved["residual"]
            upload = np.frombuffer(uplink.send(self.client, upload, assignment)[0], np.uint8)
            uplink.keep([self.client])
            new["residual"] = uplink.residuals[self.client]
        if new:
            self.states.save(order.round, new, order)
        return order, result, upload

    def _saved(self, order: TrainHeader, local: FlatIndex) -> dict[str, Tensor]:
        """The tensors of the local state that this order needs."""
        sizes = {"kept": local.size} if local.size else {}
        if order.is_difference:
            sizes["reference"] = self.job.layers.state_size
        if order.up != "float32":
            sizes["residual"] = self.job.layers.state_size
        if order.local_state_round < 0 or not sizes:
            return {}
        try:
            return self.states.load(order.local_state_round, sizes)
        except RunError as error:
            if set(sizes) != {"residual"}:
                raise
            _log.warning("fedplt: the rounding errors of earlier uploads are lost: %s", error)
            return {}

    def evaluate(
        self, header: Mapping[str, Any], arrays: Arrays, admitted: AdmittedOrder
    ) -> EvaluateAnswer:
        order = read(EvaluateHeader, header)
        job, local = self.job, self._local(order)
        trainer = self._trainer(local, FlatIndex([(0, job.layers.state_size)]), arrays.get("state"))
        if order.local_state_round >= 0 and local.size:
            saved = self.states.load(order.local_state_round, {"kept": local.size})
            trainer.load_local_state(saved["kept"])
        samples = job.test if order.part == "test" and job.test is not None else job.validation
        results = []
        for chunk in evaluation_chunks(job, num_chunks(samples), self.client):
            admitted.check()
            loss, metric = job.training.loss, job.metric
            results.append(evaluate_chunk(trainer.model, samples, chunk, loss, metric))
        found = combine(results, job.metric)
        trainer.reset_buffers(warn=False)
        counts, scores = found.label_counts, found.label_scores
        assert found.sums is not None
        return EvaluateAnswer(
            client=self.client, round=order.round, num_examples=len(self.examples),
            loss=found.loss, count=found.count, sums=found.sums.tolist(),
            label_counts=None if counts is None else counts.tolist(),
            label_scores=None if scores is None else scores.tolist(),
        )  # fmt: skip

    def _check(
        self, assignment: Assignment, training: LocalTraining, recipe: Mapping[str, Any]
    ) -> None:
        """Refuse a model whose partial training is wrong; checked once per kind of assignment."""
        kind = [__version__, torch.__version__, self.job.layers.fingerprint]
        kind += [f"{assignment.ratio:.2f}", json.dumps(recipe, sort_keys=True)]
        path = self.states.folder / CHECKED
        if path.exists() and path.read_text(encoding="utf-8").splitlines() == kind:
            return
        check_job(replace(self.job, training=training), assignment)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, "\n".join(kind))

    def _local(self, order: TrainHeader | EvaluateHeader) -> FlatIndex:
        """The part of the flat state that stays on this client."""
        refuse_other(order, self.client, self.job.layers)
        return self.job.layers.flat_index(frozenset(order.local))

    def _trainer(self, local: FlatIndex, received: FlatIndex, state: Any) -> ClientTrainer:
        trainer = ClientTrainer(self.job.model, self.job.layers, self._global, local)
        receive(self._global, received, state)
        trainer.refresh()
        return trainer

    @functools.cached_property
    def _spaces(self) -> Any:
        example, _ = first_examples(self.job.validation)
        return find_spaces(self.job.model, self.job.layers, example)


def _decoded(
    order: TrainHeader, assignment: Assignment, state: Any, reference: Tensor | None
) -> Any:
    """The decoded values of the model in an order."""
    if order.down == "float32":
        return state
    if state is None or state.dtype != np.uint8:
        raise UpdateError(f"the order sends no model as {order.down}.")
    values = state_packing(assignment.on_client.layers, order.down).decode(state)
    if not order.is_difference:
        return values
    if reference is None:
        raise UpdateError("this client has no model that a difference could be added to.")
    return (reference + torch.from_numpy(values)).numpy()


class NodeApp(SlicesApp):
    """Answers orders with the client that ``find`` returns, within the owner's limits."""

    allows_other_strategies = False

    def __init__(
        self,
        find: Callable[[Context], NodeClient],
        admit: Callable[[Context, int], AdmittedOrder] = lambda *_: UNLIMITED,
    ) -> None:
        super().__init__()
        self._find, self._admit = find, admit

    def admit(self, context: Context, bytes_down: int) -> AdmittedOrder:
        return self._admit(context, bytes_down)

    def answer(self, message: Message, context: Context, admitted: AdmittedOrder) -> Message:
        action = message.metadata.message_type
        if action == UPLOAD:
            return super().answer(message, context, admitted)
        if action not in (HELLO, TRAIN, EVALUATE):
            raise UpdateError("this node does not know orders of this type.")
        header, arrays = from_records(message.content)
        torch.set_num_threads(1)  # the same bits as in the simulator
        client = self._find(context)
        if action == HELLO:
            return reply(message, client.hello())
        if action == EVALUATE:
            return reply(message, client.evaluate(header, arrays, admitted))
        return reply_trained(message, context, *client.train(header, arrays, admitted))


def client_app() -> ClientApp:
    """The app of a node in a deployment, from its ``node.toml`` and ``limits.toml``.

    The key ``fedplt-node`` in the SuperNode's ``--node-config`` has the path of ``node.toml``.
    Nothing that the server sends names code or data.
    """

    def admit(context: Context, bytes_down: int) -> AdmittedOrder:
        node = load_node(_path(context))
        limits, ledger = load_limits(node.limits), Path(node.state) / LEDGER
        return AdmittedOrder(limits, node=node.name, bytes_down=bytes_down, ledger=ledger)

    return NodeApp(lambda context: _client_of_node(_path(context)), admit)


def _path(context: Context) -> str:
    path = context.node_config.get("fedplt-node")
    if not isinstance(path, str):
        raise ConfigError(
            "this node has no path of its node.toml: start its SuperNode with "
            "--node-config \"fedplt-node='/path/node.toml'\"."
        )
    return path


@functools.lru_cache(maxsize=1)
def _client_of_node(path: str) -> NodeClient:
    node = load_node(path)
    job = node_job(node)
    return NodeClient(job, node.client, job.examples(0), Path(node.state), node_device(node))


def simulated_client_app(config: str, state_folder: str) -> ClientApp:
    """The clients of ``fedplt run --engine flower``: all from one configuration on this machine."""

    def find(context: Context) -> NodeClient:
        client = int(context.node_config["partition-id"])
        job = _job(config)
        return NodeClient(job, client, job.examples(client), Path(state_folder))

    return NodeApp(find)


@functools.lru_cache(maxsize=1)
def _job(config: str) -> Job:
    """The job; made once per process, which Flower's simulation uses for many clients."""
    return job_from_config(load_config(Path(config)))
