"""The round loop, written once for every engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from fedplt.aggregation import Aggregator
from fedplt.cost import download_bytes, exact_flops, paper_flops_of
from fedplt.errors import ConfigError, DataError, RunError, UpdateError
from fedplt.evaluation import Evaluation, label_shares
from fedplt.federation.engine import Engine, Interrupted, LocalResult
from fedplt.federation.folder import RunFolder
from fedplt.federation.job import Job
from fedplt.federation.measure import local_accuracy, summary_of
from fedplt.federation.records import History, RoundRecord, Totals
from fedplt.plan import Assignment
from fedplt.state import bind_state, buffer_positions, named_tensors
from fedplt.update import validate

OnRound = Callable[[RoundRecord], None]


class Federation:
    """A run: the global state, and what is written down about it."""

    def __init__(self, job: Job, engine: Engine, folder: RunFolder | None = None) -> None:
        self.job, self.engine, self.folder = job, engine, folder
        self.rounds_done = 0
        self.total = Totals()
        self._flops: dict[tuple[bool, tuple[int, ...]], int] = {}
        self.records: list[RoundRecord] = []
        self.state = bind_state(job.model, job.layers)
        self._label_shares = self._per_client_shares()
        self.server = job.config.server.build()
        self.memory = self.server.start(job.layers)
        self.local: Tensor | None = None
        """What never leaves the clients, as of the last round that counts."""
        self._start_local_state()

    def start(self) -> None:
        """Note the initial state, so that a run killed in its first round resumes too."""
        self._save()

    def resume(self) -> None:
        """Continue from the folder's checkpoint."""
        assert self.folder is not None
        job = self.job
        state, self.rounds_done, self.total = self.folder.load_checkpoint(job)
        self.state.copy_(state)
        self.memory = self.folder.load_extras()
        if self.local is not None:
            self.local = self.memory.pop("local")
            self._tell_local_state()
        self.records = self.folder.keep_rounds(self.rounds_done)
        if self.rounds_done < job.config.rounds:
            self.folder.reopen()

    def run(self, on_round: OnRound = lambda record: None) -> History:
        """All remaining rounds. On :class:`Interrupted` the last complete round is saved."""
        config = self.job.config
        try:
            while self.rounds_done < config.rounds:
                record = self.round()
                if self.folder:
                    self.folder.append(record)
                if self.rounds_done % config.checkpoint_every == 0:
                    self._save()
                on_round(record)
        except (Interrupted, RunError):
            self._save()
            raise
        self._save()
        return self._finish()

    def round(self) -> RoundRecord:
        """One round: train, collect, validate, aggregate, evaluate."""
        started = time.perf_counter()
        job, round = self.job, self.rounds_done
        clients = job.participants(round)
        results = self.engine.train(clients, round, self.state)
        aggregator = Aggregator(job.layers, job.recipe.normaliser)
        assignments = {client: job.plan.client(client, round) for client in clients}
        rejected: dict[str, str] = {}
        bytes_up = 0
        # Client order: float addition is not associative, and the result must not depend on
        # which worker finishes first.
        for client, update in self.engine.collect(clients):
            bytes_up += update.num_bytes
            try:
                validate(update, assignments[client])
            except UpdateError as error:
                rejected[str(client)] = str(error)
                continue
            aggregator.add(update, assignments[client])
        if len(rejected) == len(clients):
            first, reason = next(iter(rejected.items()))
            raise RunError(
                f"round {round + 1}: every client's update was refused; client {first}: {reason}"
            )
        new_state = self.state.clone()
        aggregator.apply(new_state)
        new_state, memory = self.server.step(
            job.layers, self.state, new_state, aggregator.touched, self.memory
        )
        if self.local is not None:
            self.engine.keep_local([k for k in clients if str(k) not in rejected])
        evaluation, client_accuracy = self._evaluate(round, new_state)
        cost = self._cost(bytes_up, assignments)
        # Only now does the round count: an interrupted one must leave the last state to save.
        self.state.copy_(new_state)
        self.memory = memory
        if self.local is not None and self.engine.local_state is not None:
            self.local = self.engine.local_state.clone()
        self.total = self.total.plus(cost)
        self.rounds_done += 1
        record = RoundRecord(
            round=self.rounds_done,
            num_clients=len(clients),
            train_loss=_mean_loss([r for r in results if str(r.client) not in rejected]),
            cost=cost,
            total=self.total,
            seconds=time.perf_counter() - started,
            accuracy=evaluation.score if evaluation else None,
            loss=evaluation.loss if evaluation else None,
            client_accuracy=client_accuracy,
            rejected=rejected,
        )
        self.records.append(record)
        return record

    def _evaluate(
        self, round: int, state: Tensor
    ) -> tuple[Evaluation | None, dict[str, float] | None]:
        """How good a state is, and how good for the clients, if this round is evaluated."""
        config = self.job.config
        if (round + 1) % config.evaluation.every and round + 1 < config.rounds:
            return None, None
        statistics = buffer_positions(self.job.layers)
        if self.job.recipe.static_norm and len(statistics):
            state[statistics] = self.engine.statistics(state)
        return self._measure("validation", state)

    def _measure(self, part: str, state: Tensor) -> tuple[Evaluation, dict[str, float] | None]:
        shares, examples = self._label_shares, self.job.num_examples
        if self.local is not None:
            assert shares is not None
            clients = range(self.job.plan.num_clients)
            evaluations = self.engine.evaluate_clients(part, state, clients)
            return local_accuracy(evaluations, shares, examples)
        evaluation = self.engine.evaluate(part, state)
        if shares is None:
            return evaluation, None
        return evaluation, summary_of(evaluation.client_scores(shares), examples)

    def _start_local_state(self) -> None:
        """Everybody starts with the model's own norms, where norms stay with the clients."""
        plan = self.job.plan
        if plan.local_segments:
            parts = [self.state[start:stop] for start, stop in plan.local_segments]
            self.local = torch.cat(parts).expand(plan.num_clients, -1).clone()
            self._tell_local_state()

    def _tell_local_state(self) -> None:
        assert self.engine.local_state is not None and self.local is not None
        self.engine.local_state.copy_(self.local)

    def _per_client_shares(self) -> np.ndarray | None:
        local = bool(self.job.plan.local_segments)
        if not (self.job.config.evaluation.per_client or local):
            return None
        try:
            return label_shares(self.job.samples.labels(), self.job.offsets)
        except DataError as error:
            key = "method.local_norms" if local else "evaluation.per_client"
            raise ConfigError(f"{key}: {error}") from error

    def _cost(self, bytes_up: int, assignments: Mapping[int, Assignment]) -> Totals:
        job, flops, paper, bytes_down = self.job, 0, 0.0, 0
        for client, assignment in assignments.items():
            seen = job.examples_seen(client)
            flops += seen * self._flops_per_example(assignment)
            paper += paper_flops_of(assignment, seen)
            bytes_down += download_bytes(assignment)
        return Totals(bytes_up, bytes_down, flops, paper)

    def _flops_per_example(self, assignment: Assignment) -> int:
        """Exact FLOPs depend on how much of every layer is trained, not on which part."""
        key = assignment.is_submodel, assignment.counts
        if key not in self._flops:
            self._flops[key] = exact_flops(assignment).total
        return self._flops[key]

    def _save(self) -> None:
        if self.folder:
            extras = dict(self.memory)
            if self.local is not None:
                extras["local"] = self.local
            self.folder.save_checkpoint(self.state, self.rounds_done, self.total, self.job, extras)

    def _finish(self) -> History:
        result: dict[str, float | None] = {}
        if self.job.test is not None and self.job.test is not self.job.validation:
            test, _ = self._measure("test", self.state)
            result = {"test_accuracy": test.score, "test_loss": test.loss}
        history = History(self.records, **result)
        if self.folder:
            accuracy = history.final_accuracy()
            final = {"rounds": self.rounds_done, "accuracy_last_10": accuracy, **result}
            self.folder.finish(_all_tensors(self.job, self.state), final)
        return history


def _all_tensors(job: Job, state: Tensor) -> dict[str, Tensor]:
    """Everything ``model.load_state_dict`` wants: the layers, and what is not trained."""
    trained = named_tensors(job.layers, state)
    rest = {
        name: tensor.detach().contiguous().clone()
        for name, tensor in job.model.state_dict().items()
        if name not in trained
    }
    return {**trained, **rest}


def _mean_loss(results: list[LocalResult]) -> float:
    """Mean training loss, by examples."""
    losses = torch.tensor([result.metrics["loss"] for result in results], dtype=torch.float64)
    weights = torch.tensor([result.num_examples for result in results], dtype=torch.float64)
    return float((losses * weights).sum() / weights.sum())
