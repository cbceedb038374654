"""The round loop, written once for every engine."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace

from torch import Tensor

from fedplt.client import ClientResult
from fedplt.errors import DivergedError, RunError, TooFewClientsError, UpdateError
from fedplt.federation.availability import Availability
from fedplt.federation.costs import RoundCosts
from fedplt.federation.engine import Engine, Interrupted
from fedplt.federation.folder import RunFolder
from fedplt.federation.job import Job
from fedplt.federation.measure import Measurement
from fedplt.federation.outcome import RoundOutcome
from fedplt.federation.records import History, RoundRecord, Totals
from fedplt.federation.sampler import ClientSampler, Selection
from fedplt.kernels import bind_state, named_tensors
from fedplt.planning import Assignment
from fedplt.server import Aggregator, Diagnostics, Memory, validate

OnRound = Callable[[RoundRecord], None]


def ignore(record: RoundRecord) -> None:
    """The default ``on_round``: do nothing."""


class Federation:
    """A run: the global state, the records, and the round loop."""

    def __init__(self, job: Job, engine: Engine, folder: RunFolder | None = None) -> None:
        self.job, self.engine, self.folder = job, engine, folder
        self.rounds_done = 0
        self.total = Totals()
        self.records: list[RoundRecord] = []
        self.state = bind_state(job.model, job.layers)
        self.sampler = ClientSampler(job)
        settings = job.config.diagnostics
        self.diagnostics = Diagnostics(job.layers, settings.window) if settings.enabled else None
        self.server = job.config.server.build()
        self.memory = self.server.start(job.layers)
        self.local = engine.local_tensors()
        """The state that clients keep, as of the last committed round."""
        self._measurement = Measurement(job, engine)
        self._costs = RoundCosts(job)
        self._availability = Availability(job, self._costs)
        self._everybody = list(range(job.plan.num_clients))

    def start(self) -> None:
        """Save the initial state, so that a run killed in its first round can be resumed."""
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
        self.memory = {name: extras[name] for name in self.memory}
        self.local = {name: extras[name] for name in self.local}
        self.engine.restore_local(self.local)
        self.records = self.folder.keep_rounds(self.rounds_done)
        if self.rounds_done < job.config.rounds:
            self.folder.reopen()

    def run(self, on_round: OnRound = ignore) -> History:
        """Run all remaining rounds. On :class:`Interrupted`, save the last complete round."""
        config = self.job.config
        try:
            while self.rounds_done < config.rounds:
                record = self._try_round()
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

    def _try_round(self) -> RoundRecord:
        """A round that too few clients take part in does not count, and is tried again."""
        for _ in range(self.job.config.server.attempts - 1):
            try:
                return self.round()
            except TooFewClientsError as error:
                warnings.warn(f"{error} It is tried again.", stacklevel=2)
        return self.round()

    def round(self) -> RoundRecord:
        """One round: choose, train, collect, aggregate, evaluate, then commit."""
        started, job, round = time.perf_counter(), self.job, self.rounds_done
        everybody = job.plan.in_round(round)
        # Choose: before training, unless the sampler needs the norms of this round's updates.
        there = self._availability.attend(round, everybody)
        selection = self.sampler.before_training(round, there.present)
        asked = there.of(self._everybody if selection is None else selection.asked)
        assignments = {client: everybody[client] for client in asked.present}
        # Train.
        weights = self.sampler.block_weights(everybody, there.present)
        results = self._train(round, assignments, weights, upload=selection is not None)
        if selection is None:
            selection = self.sampler.after_training(round, results)
        # Collect and aggregate.
        aggregator = Aggregator(job.layers, job.recipe.normalizer)
        self.sampler.expect(aggregator, selection, everybody, there.present)
        rejected, bytes_up = self._collect(assignments, selection, aggregator)
        state, memory = self._aggregate(aggregator)
        # Evaluate, with the state that clients keep from this round.
        self.engine.keep_local([k for k in assignments if str(k) not in rejected])
        evaluation, client_scores = self._measurement.of_round(round, state)
        cost = self._costs.of_round(assignments, bytes_up, selection.bytes_down)
        seconds = self._availability.round_seconds(assignments, selection.clients)
        outcome = RoundOutcome(
            state, memory, results, selection, asked, rejected, aggregator.touched,
            replace(cost, simulated_seconds=seconds), evaluation, client_scores,
        )  # fmt: skip
        return self._commit(outcome, started)

    def _commit(self, outcome: RoundOutcome, started: float) -> RoundRecord:
        """Make the round count; nothing before this call changed what a checkpoint saves."""
        diagnostics = None
        if self.diagnostics:
            diagnostics = self.diagnostics.observe(self.state, outcome.state, outcome.touched())
        self.state.copy_(outcome.state)
        self.memory = outcome.memory
        self.sampler.remember(outcome.results)
        self.local = self.engine.local_tensors()
        self.total = self.total.plus(outcome.cost)
        self.rounds_done += 1
        seconds = time.perf_counter() - started
        record = outcome.record(self.rounds_done, self.total, seconds, diagnostics)
        self.records.append(record)
        return record

    def _train(
        self,
        round: int,
        assignments: Mapping[int, Assignment],
        weights: Tensor | None,
        *,
        upload: bool,
    ) -> list[ClientResult]:
        if not assignments:
            return []
        return self.engine.train(round, self.state, assignments, weights, upload=upload)

    def _collect(
        self, assignments: Mapping[int, Assignment], selection: Selection, aggregator: Aggregator
    ) -> tuple[dict[str, str], int]:
        """Aggregate the valid updates; return why others were rejected, and the bytes sent."""
        rejected, bytes_up = dict(selection.refused), selection.bytes_up
        # Client order: float addition is not associative, and the result must not depend on
        # which worker finishes first.
        num_added = 0
        for client, update in self.engine.collect(selection.clients):
            bytes_up += update.num_bytes
            try:
                validate(update, assignments[client])
            except UpdateError as error:
                rejected[str(client)] = str(error)
                continue
            weight = self.sampler.weight(client, update, selection)
            aggregator.add(update, assignments[client], weight)
            num_added += 1
        rejected |= {str(k): why for k, why in self.engine.failures.items() if k in assignments}
        self._refuse_too_few(num_added, rejected)
        self._stop_if_all_are_bad(len(assignments), rejected)
        return rejected, bytes_up

    def _aggregate(self, aggregator: Aggregator) -> tuple[Tensor, Memory]:
        """The next model state and server optimizer state; the current ones do not change."""
        mean = self.state.clone()
        aggregator.apply(mean)
        return self.server.step(self.job.layers, self.state, mean, aggregator.touched, self.memory)

    def _refuse_too_few(self, number: int, rejected: dict[str, str]) -> None:
        least = self.job.config.server.min_clients
        if number < least:
            reasons = "; ".join(f"client {client}: {why}" for client, why in rejected.items())
            raise TooFewClientsError(
                f"round {self.rounds_done + 1}: {number} of at least {least} updates came "
                f"(server.min_clients). {reasons}"
            )

    def _stop_if_all_are_bad(self, num_trained: int, rejected: dict[str, str]) -> None:
        """Stop if every update was rejected.

        A sampler by norm may draw one client alone: rejecting that one does not stop the run.
        """
        alone = num_trained == 1 and self.job.config.sampling.by_norm
        if rejected and len(rejected) == num_trained and not alone:
            first, reason = next(iter(rejected.items()))
            scaler = self.job.recipe.scaler != "none"
            hint = (
                " The scaler (method.scaler) makes steps larger; try it without." if scaler else ""
            )
            raise DivergedError(
                f"round {self.rounds_done + 1}: every client's update was refused; "
                f"client {first}: {reason}{hint}"
            )

    def _save(self) -> None:
        if self.folder:
            extras = {**self.sampler.tensors(), **self.memory, **self.local}
            if self.diagnostics:
                extras |= self.diagnostics.tensors()
            self.folder.save_checkpoint(self.state, self.rounds_done, self.total, self.job, extras)

    def _finish(self) -> History:
        result: dict[str, float | None] = {}
        if self.job.test is not None and self.job.test is not self.job.validation:
            test, _ = self._measurement.of("test", self.state)
            if test is not None:
                result = {"test_score": test.score, "test_loss": test.loss}
        history = History(self.records, **result, metric=self.job.metric.info)
        if self.folder:
            score = history.final_score()
            final = {"rounds": self.rounds_done, "score_last_10": score, **result}
            self.folder.finish(_all_tensors(self.job, self.state), final)
        return history


def _all_tensors(job: Job, state: Tensor) -> dict[str, Tensor]:
    """All tensors of ``model.state_dict()``, trained or not."""
    trained = named_tensors(job.layers, state)
    rest = {
        name: tensor.detach().contiguous().clone()
        for name, tensor in job.model.state_dict().items()
        if name not in trained
    }
    return {**trained, **rest}
