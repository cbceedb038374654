"""The round loop, written once for every engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from fedplt.aggregation import Aggregator
from fedplt.cost import download_bytes, exact_flops, paper_flops
from fedplt.diagnostics import Diagnostics
from fedplt.errors import ConfigError, DataError, RunError, UpdateError
from fedplt.evaluation import Evaluation, label_shares
from fedplt.federation.engine import Engine, Interrupted, LocalResult
from fedplt.federation.folder import RunFolder
from fedplt.federation.job import Job
from fedplt.federation.records import History, RoundRecord, Totals
from fedplt.federation.sampler import ClientSampler
from fedplt.state import bind_state, named_tensors
from fedplt.update import validate

OnRound = Callable[[RoundRecord], None]


class Federation:
    """A run: the global state, and what is written down about it."""

    def __init__(self, job: Job, engine: Engine, folder: RunFolder | None = None) -> None:
        self.job, self.engine, self.folder = job, engine, folder
        self.rounds_done = 0
        self.total = Totals()
        self._flops: dict[tuple[int, ...], int] = {}
        self.records: list[RoundRecord] = []
        self.state = bind_state(job.model, job.layers)
        self.sampler = ClientSampler(job)
        settings = job.config.diagnostics
        self.diagnostics = Diagnostics(job.layers, settings.window) if settings.enabled else None
        self._label_shares = self._per_client_shares()

    def start(self) -> None:
        """Note the initial state, so that a run killed in its first round resumes too."""
        self._save()

    def resume(self) -> None:
        """Continue from the folder's checkpoint."""
        assert self.folder is not None
        job = self.job
        state, self.rounds_done, self.total = self.folder.load_checkpoint(job)
        self.state.copy_(state)
        extras = self.folder.load_extras()
        self.sampler.restore(extras)
        if self.diagnostics:
            self.diagnostics.restore(extras)
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
        """One round: choose, train, collect, validate, aggregate, evaluate."""
        started = time.perf_counter()
        job, round = self.job, self.rounds_done
        selection = self.sampler.before_training(round)
        trained = list(range(job.plan.num_clients)) if selection is None else selection.clients
        results = self.engine.train(trained, round, self.state) if trained else []
        if selection is None:
            selection = self.sampler.after_training(round, results)
        aggregator = Aggregator(job.layers)
        self.sampler.expect(aggregator, selection, round)
        rejected = dict(selection.refused)
        bytes_up = selection.bytes_up
        # Client order: float addition is not associative, and the result must not depend on
        # which worker finishes first.
        for client, update in self.engine.collect(selection.clients):
            assignment = job.plan.client(client, round)
            bytes_up += update.num_bytes
            try:
                validate(update, assignment)
            except UpdateError as error:
                rejected[str(client)] = str(error)
                continue
            aggregator.add(update, assignment, self.sampler.weight(client, update, selection))
        self._stop_if_all_are_bad(len(trained), rejected)
        new_state = self.state.clone()
        touched = aggregator.apply(new_state)
        evaluation = self._evaluate(round, new_state)
        cost = self._cost(bytes_up, selection.bytes_down, trained)
        # Only now does the round count: an interrupted one must leave the last state to save.
        diagnostics = None
        if self.diagnostics:
            diagnostics = self.diagnostics.observe(self.state, new_state, touched)
        self.state.copy_(new_state)
        self.sampler.remember(results)
        self.total = self.total.plus(cost)
        self.rounds_done += 1
        record = RoundRecord(
            round=self.rounds_done,
            num_clients=len(selection.clients),
            train_loss=_mean_loss([r for r in results if str(r.client) not in rejected]),
            cost=cost,
            total=self.total,
            seconds=time.perf_counter() - started,
            accuracy=evaluation.score if evaluation else None,
            loss=evaluation.loss if evaluation else None,
            client_accuracy=self._client_accuracy(evaluation) if evaluation else None,
            rejected=rejected,
            sampling=selection.record,
            diagnostics=diagnostics,
        )
        self.records.append(record)
        return record

    def _stop_if_all_are_bad(self, num_trained: int, rejected: dict[str, str]) -> None:
        """A single client may be all that was drawn: it alone does not end a run."""
        alone = num_trained == 1 and self.job.config.sampling.by_norm
        if rejected and len(rejected) == num_trained and not alone:
            first, reason = next(iter(rejected.items()))
            raise RunError(
                f"round {self.rounds_done + 1}: every client's update was refused; "
                f"client {first}: {reason}"
            )

    def _evaluate(self, round: int, state: Tensor) -> Evaluation | None:
        config = self.job.config
        if (round + 1) % config.evaluation.every and round + 1 < config.rounds:
            return None
        return self.engine.evaluate("validation", state)

    def _client_accuracy(self, evaluation: Evaluation) -> dict[str, float] | None:
        if self._label_shares is None:
            return None
        scores = evaluation.client_scores(self._label_shares)
        known = ~np.isnan(scores)
        weights, scores = self.job.num_examples[known], scores[known]
        return {
            "mean": float(np.average(scores, weights=weights)),
            "std": float(np.std(scores)),
            "min": float(scores.min()),
            "median": float(np.median(scores)),
            "max": float(scores.max()),
        }

    def _per_client_shares(self) -> np.ndarray | None:
        if not self.job.config.evaluation.per_client:
            return None
        try:
            return label_shares(self.job.samples.labels(), self.job.offsets)
        except DataError as error:
            raise ConfigError(f"evaluation.per_client: {error}") from error

    def _cost(self, bytes_up: int, bytes_down: int, clients: Sequence[int]) -> Totals:
        """Of a round in which these clients got the model and trained."""
        job, flops, paper = self.job, 0, 0.0
        for client in clients:
            seen = job.examples_seen(client)
            flops += seen * self._flops_per_example(client)
            paper += paper_flops(job.layers.size, float(job.plan.achieved_ratios[client]), seen)
        bytes_down += len(clients) * download_bytes(job.layers)
        return Totals(bytes_up, bytes_down, flops, paper)

    def _flops_per_example(self, client: int) -> int:
        """Exact FLOPs depend on how many sub-layers are trained, not on which."""
        counts = tuple(self.job.plan.counts[client].tolist())
        if counts not in self._flops:
            self._flops[counts] = exact_flops(self.job.plan.client(client)).total
        return self._flops[counts]

    def _save(self) -> None:
        if self.folder:
            extras = self.sampler.tensors()
            if self.diagnostics:
                extras |= self.diagnostics.tensors()
            self.folder.save_checkpoint(self.state, self.rounds_done, self.total, self.job, extras)

    def _finish(self) -> History:
        result: dict[str, float | None] = {}
        if self.job.test is not None and self.job.test is not self.job.validation:
            test = self.engine.evaluate("test", self.state)
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
