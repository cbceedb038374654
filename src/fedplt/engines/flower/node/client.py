"""What a node does with the server's orders: a shell of messages around the client's trainer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedplt import __version__
from fedplt.client import (
    ClientTrainer,
    LocalTraining,
    TrainOrder,
    combine,
    evaluate_chunk,
    num_chunks,
    num_steps,
)
from fedplt.cutting import find_spaces
from fedplt.data import first_examples
from fedplt.engines.flower.messages import (
    EvaluateAnswer,
    EvaluateHeader,
    TrainAnswer,
    TrainHeader,
    Training,
    read,
)
from fedplt.engines.flower.node.gate import Work
from fedplt.engines.flower.node.local_state import KeptState
from fedplt.engines.flower.node.owner_limits import Limits
from fedplt.engines.flower.wire import Arrays
from fedplt.errors import UpdateError
from fedplt.federation import Job, check_job, evaluation_chunks
from fedplt.files import write_text
from fedplt.fleet import DeviceProfile
from fedplt.kernels import put
from fedplt.planning import Assignment, FlatIndex, read_assignment

FLOAT_BYTES = 4
CHECKED = "checked.txt"
"""What partial training was compared for last with full gradients times mask."""
Numbers = dict[str, NDArray[np.float32]]
UNLIMITED = Work(Limits(max_steps=2**62))


class NodeClient:
    """One client on its node.

    ``job`` is made from the node's own files: its model code, its data, its loss. The server's
    orders say how to train, in plain values.
    """

    def __init__(
        self,
        job: Job,
        client: int,
        examples: range,
        state_folder: Path,
        device: DeviceProfile | None = None,
    ) -> None:
        """``device`` is what the node says about itself when it joins."""
        self.job, self.client, self.examples, self.device = job, client, examples, device
        self.kept = KeptState(state_folder, client)
        self._global = torch.zeros(job.layers.state_size)

    def train(
        self, header: Mapping[str, Any], arrays: Arrays, work: Work = UNLIMITED
    ) -> tuple[dict[str, Any], Numbers]:
        """The answer to an order to train, and the update; ``work`` is the order at the gate."""
        asked = read(TrainHeader, header)
        self._refuse_other(asked.client)
        local = self._local(asked.local)
        assignment = read_assignment(
            self.job.layers, asked.assignment, frozenset(asked.local), lambda: self._spaces
        )
        training = self._training(asked.training)
        work.admit_training(assignment.ratio, num_steps(len(self.examples), training))
        work.admit_upload(FLOAT_BYTES * assignment.update_size, now=asked.upload)
        trainer = self._trainer(local)
        self._receive(trainer, assignment.received, arrays.get("state"))
        if asked.check:
            self._check(assignment, asked)
            work.check()
        if asked.kept >= 0:
            trainer.load_local_state(self.kept.load(asked.kept, local.size))
        weights = arrays.get("weights")
        order = TrainOrder(
            client=asked.client, round=asked.round, seed=asked.seed, assignment=assignment,
            training=training, learning_rate=asked.learning_rate,
            block_weights=None if weights is None else torch.from_numpy(weights.copy()),
        )  # fmt: skip
        update = torch.empty(assignment.update_size)
        result = trainer.train(order, self.job.samples, self.examples, update, work.on_step)
        if local.size:
            self.kept.forget_before(asked.oldest)
            self.kept.save(asked.round, trainer.local_state())
        answer = TrainAnswer(
            client=asked.client, round=asked.round, plan=asked.plan,
            num_examples=result.num_examples, norm=result.norm, loss=result.loss,
            seconds=result.seconds, weighted_norm=result.weighted_norm,
        )  # fmt: skip
        return answer.model_dump(), {"update": update.numpy()}

    def evaluate(
        self, header: Mapping[str, Any], arrays: Arrays, work: Work = UNLIMITED
    ) -> dict[str, Any]:
        asked = read(EvaluateHeader, header)
        self._refuse_other(asked.client)
        job, local = self.job, self._local(asked.local)
        trainer = self._trainer(local)
        self._receive(trainer, FlatIndex([(0, job.layers.state_size)]), arrays.get("state"))
        if asked.kept >= 0:
            trainer.load_local_state(self.kept.load(asked.kept, local.size))
        samples = job.test if asked.part == "test" and job.test is not None else job.validation
        chunks = evaluation_chunks(job, num_chunks(samples), self.client)
        results = []
        for chunk in chunks:
            work.check()
            loss, metric = job.training.loss, job.metric
            results.append(evaluate_chunk(trainer.model, samples, chunk, loss, metric))
        found = combine(results, job.metric)
        trainer.reset_buffers(warn=False)
        counts, scores = found.label_counts, found.label_scores
        assert found.sums is not None
        return EvaluateAnswer(
            client=self.client, round=asked.round, num_examples=len(self.examples),
            loss=found.loss, count=found.count, sums=found.sums.tolist(),
            label_counts=None if counts is None else counts.tolist(),
            label_scores=None if scores is None else scores.tolist(),
        ).model_dump()  # fmt: skip

    def _check(self, assignment: Assignment, asked: TrainHeader) -> None:
        """Refuse a model that partial training is wrong for: once per kind of assignment."""
        kind = [__version__, torch.__version__, self.job.layers.fingerprint]
        kind += [f"{assignment.ratio:.2f}", json.dumps(asked.training.recipe, sort_keys=True)]
        path = self.kept.folder / CHECKED
        if path.exists() and path.read_text(encoding="utf-8").splitlines() == kind:
            return
        check_job(replace(self.job, training=self._training(asked.training)), assignment)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, "\n".join(kind))

    def _refuse_other(self, client: int) -> None:
        if client != self.client:
            raise UpdateError(f"this is client {self.client}; the order is for client {client}.")

    def _local(self, names: list[str]) -> FlatIndex:
        known = {tensor.name for tensor in self.job.layers.tensors}
        if unknown := sorted(set(names) - known):
            raise UpdateError(f"there is no tensor {unknown[0]!r} in this node's model.")
        return self.job.layers.flat_index(frozenset(names))

    def _trainer(self, local: FlatIndex) -> ClientTrainer:
        return ClientTrainer(self.job.model, self.job.layers, self._global, local)

    def _receive(self, trainer: ClientTrainer, places: FlatIndex, numbers: Any) -> None:
        receive(self._global, places, numbers)
        trainer.refresh()

    def _training(self, asked: Training) -> LocalTraining:
        """Values from the server; loss and augmentation are the node's own."""
        return replace(
            self.job.training,
            local_epochs=asked.local_epochs,
            local_steps=asked.local_steps,
            batch_size=asked.batch_size,
            optimizer=asked.optimizer,
            optimizer_options=asked.optimizer_options,
            proximal=asked.proximal,
            recipe=asked.local_recipe(),
        )

    @cached_property
    def _spaces(self) -> Any:
        example, _ = first_examples(self.job.validation)
        return find_spaces(self.job.model, self.job.layers, example)


def receive(state: Tensor, places: FlatIndex, numbers: Any) -> None:
    """Put what came into a flat state; zero where nothing is held."""
    if numbers is None or len(numbers) != places.size:
        found = "no" if numbers is None else str(len(numbers))
        raise UpdateError(f"{found} numbers came; this client holds {places.size}.")
    state.zero_()
    put(state, places, torch.from_numpy(numbers.copy()).to(state.device))
