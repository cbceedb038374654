"""The round loop, written once for every engine."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from fedplt.client import ClientUpdate
from fedplt.errors import RunError, TooFewClientsError
from fedplt.federation.availability import Availability
from fedplt.federation.choose_clients import ClientSampler, Selection
from fedplt.federation.engine import Engine, Interrupted, NodesEngine
from fedplt.federation.evaluation import Evaluator
from fedplt.federation.job import Job
from fedplt.federation.model_and_data import all_tensors
from fedplt.federation.outcome import RoundOutcome, refuse_too_few, stop_if_all_are_bad
from fedplt.federation.preflight.settings import (
    check_messages,
    check_window,
    place_of_memory,
    refuse_votes_of_absent,
)
from fedplt.federation.privacy_accounting import PrivateRounds
from fedplt.federation.replanning import ChangingFleet
from fedplt.federation.round_costs import RoundCosts
from fedplt.federation.run_folder.checkpoint import Checkpoint
from fedplt.federation.run_folder.folder import PLAN_FILE, RunFolder
from fedplt.federation.run_folder.records import History, RoundRecord, Totals
from fedplt.federation.run_folder.results import AVERAGE_MODEL, BEST_MODEL, FINAL_MODEL, LAST_MODEL
from fedplt.kernels import bind_state
from fedplt.methods import calling_own
from fedplt.planning import Assignment, RoundAssignments, upload_bytes
from fedplt.server import (
    Aggregator,
    ClippedMean,
    Diagnostics,
    Downlink,
    Memory,
    MemoryAggregator,
    ModelAverage,
    UpdateMemory,
    outliers,
    refusal,
    validate,
)

OnRound = Callable[[RoundRecord], None]


def ignore(record: RoundRecord) -> None:
    """The default ``on_round``: do nothing."""


class Federation:
    """A run: the global state, the records, and the round loop."""

    def __init__(self, job: Job, engine: Engine, folder: RunFolder | None = None) -> None:
        self.job, self.engine, self.folder = job, engine, folder
        replans = job.config.fleet is not None and job.config.fleet.replan == "on-change"
        self.fleet = ChangingFleet(job, engine) if replans else None
        self.rounds_done = 0
        self.total = Totals()
        self.records: list[RoundRecord] = []
        self._saved: int | None = None
        """Rounds done as of the last checkpoint."""
        self._pending: RoundRecord | None = None
        """The record of a round that is committed, but not evaluated and written yet."""
        self.state = bind_state(job.model, job.layers)
        self.privacy = PrivateRounds(job) if job.config.privacy else None
        self.sampler = ClientSampler(job, self.privacy)
        server, settings = job.config.server, job.config.diagnostics
        self.rule = server.rule
        refuse_votes_of_absent(job.config, job.recipe.normalizer)
        if settings.enabled:
            check_window(settings.window, job.layers.state_size)
        self.diagnostics = Diagnostics(job.layers, settings.window) if settings.enabled else None
        self.server = server.build()
        self.memory = self.server.start(job.layers)
        check_messages(job.config, job.plan, job.recipe)
        self.updates = None
        if server.memory:
            place = place_of_memory(server.memory, job.plan, folder.path if folder else None)
            self.updates = UpdateMemory(job.layers, server.memory, place)
        self.average = ModelAverage(server.average) if server.average else None
        self.downlink = Downlink(job.layers, job.plan.num_clients, job.config.messages.down)
        parts = (self.sampler, self.privacy, self.diagnostics, self.updates, self.downlink)
        self._parts = [part for part in parts if part is not None]
        """Objects whose ``tensors()`` a checkpoint saves besides the state, for ``restore()``."""
        self.local = engine.local_tensors()
        """The clients' local state, as of the last committed round."""
        self._evaluator = Evaluator(job, engine)
        self._costs = RoundCosts(job)
        self._availability = Availability(job, self._costs)

    def start(self) -> None:
        """Save the initial state, so that a run killed in its first round can be resumed."""
        self._save()

    def resume(self) -> None:
        """Continue from the folder's checkpoint."""
        assert self.folder is not None
        job = self.job
        saved = self.folder.load_checkpoint(job)
        self.rounds_done, self.total = saved.rounds_done, saved.total
        self.state.copy_(saved.state)
        try:
            for part in self._parts:
                part.restore(saved.extras)
            if self.fleet:
                self._use(self.fleet.restore(saved.extras))
            self.memory = {name: saved.extras[name] for name in self.memory}
            if self.average:
                self.average = self.average.restored(saved.extras)
            self.engine.restore_local(saved.extras)
            self.local = self.engine.local_tensors()
        except KeyError as error:
            raise RunError(f"{saved.path} lacks {error}: start a new run.") from error
        self._pending, repeated = saved.pending, 0
        if self.privacy:
            # Nodes may have seen the models of lost checkpoints: never reuse their noise.
            lost = self.folder.records_file.last_round() - self.rounds_done
            repeated = self.privacy.repeat(max(lost, 1 if saved.problem else 0))
        if saved.problem or repeated:
            self._save(replace_damaged=True)
        self.records = self.folder.go_on_from(saved)
        if self.records and self.records[-1].round == self.rounds_done:
            self._pending = None
        if isinstance(self.engine, NodesEngine):
            self.engine.resume_after(self.rounds_done)
        self._saved = self.rounds_done
        if self.rounds_done < job.config.rounds:
            self.folder.reopen()

    def run(self, on_round: OnRound = ignore) -> History:
        """Run all remaining rounds. On :class:`Interrupted`, save the last committed round."""
        try:
            if self._pending:
                self._write(self._evaluated(self._pending), on_round)
            while self.rounds_done < self.job.config.rounds and not self._is_stuck():
                self._write(self._try_round(), on_round)
        except (Interrupted, RunError):
            self._save()
            raise
        self._save()
        return self._finish()

    def _write(self, record: RoundRecord, on_round: OnRound) -> None:
        if self.folder:
            self.folder.append(record)
        self._pending = None
        if self.folder and self.job.config.evaluation.keep_best and self.history().best is record:
            self.folder.save_model(BEST_MODEL, self._tensors(self.state), record.round)
        on_round(record)

    def _is_stuck(self) -> bool:
        """Whether ``evaluation.stop_after`` rounds have brought no better score."""
        patience = self.job.config.evaluation.stop_after
        return patience is not None and self.history().rounds_since_best >= patience

    def history(self, **test: float) -> History:
        ship = self.average.settings.ship if self.average else False
        return History(self.records, **test, metric=self.job.metric.info, ship=ship)

    def _try_round(self) -> RoundRecord:
        """Run a round; if too few clients take part, it does not count and is tried again."""
        for _ in range(self.job.config.server.attempts - 1):
            try:
                return self.round()
            except TooFewClientsError as error:
                warnings.warn(f"{error} It is tried again.", stacklevel=2)
        return self.round()

    def round(self) -> RoundRecord:
        """One round: choose, train, collect, aggregate, commit, then evaluate.

        The checkpoint comes before the evaluation, which shows the nodes the new model. Otherwise
        a private round might run again afterwards with the same noise and other participants: the
        two models would then reveal the difference of the updates without noise.
        """
        started, round = time.perf_counter(), self.rounds_done
        if self.fleet:
            self._use(self.fleet.job_of_round())
        job = self.job
        everybody = job.plan.in_round(round)
        # Choose: before training, unless the sampler needs the norms of this round's updates.
        there = self._availability.attend(round)
        selection = self.sampler.before_training(round, there.present)
        asked = there if selection is None else there.of(selection.asked)
        assignments = {client: everybody[client] for client in asked.present}
        # Train.
        weights = self.sampler.block_weights(everybody, there.present)
        uploads = selection is not None
        sent = self.downlink.send(round, self.state, assignments)
        results = []
        if assignments:
            results = self.engine.train(round, sent, assignments, weights, upload=uploads)
        if selection is None:
            selection = self.sampler.after_training(round, results)
        # Collect and aggregate.
        aggregator = self._aggregator(round, everybody, selection, there.present)
        added, rejected, bytes_up = self._collect(assignments, selection, aggregator)
        state, memory = self._aggregate(aggregator)
        kept = [k for k in assignments if str(k) not in rejected]
        self.engine.keep_local(kept)
        self._evaluator.gather_statistics(round, state)
        cost = self._costs.of_round(assignments, bytes_up, selection.bytes_down, sent)
        seconds = self._availability.round_seconds(assignments, selection.clients, sent)
        outcome = RoundOutcome(
            state=state, memory=memory, results=results, selection=selection, asked=asked,
            added=added, rejected=rejected, cost=replace(cost, simulated_seconds=seconds),
            aggregator=aggregator, sent=sent, kept=kept,
        )  # fmt: skip
        self._pending = self._commit(outcome, started)
        if self.privacy or self.rounds_done % job.config.checkpoint_every == 0:
            self._save()
        return self._evaluated(self._pending)

    def _evaluated(self, record: RoundRecord) -> RoundRecord:
        """The record of the last committed round, with its scores; it joins the records."""
        started = time.perf_counter()
        evaluation, client_scores = self._evaluator.of_round(record.round - 1, self.state)
        record = replace(record, not_evaluated=self._evaluator.left_out)
        if evaluation:
            record = replace(
                record, score=evaluation.score, loss=evaluation.loss, client_scores=client_scores,
                privacy=self.privacy.record(record.round) if self.privacy else None,
            )  # fmt: skip
            average = self.average and self._evaluator.of("validation", self.average.state)[0]
            if average:
                record = replace(record, average_score=average.score, average_loss=average.loss)
        record = replace(record, seconds=record.seconds + time.perf_counter() - started)
        record = record.finite()  # as it is read again when the run is resumed
        self.records.append(record)
        return record

    def _commit(self, outcome: RoundOutcome, started: float) -> RoundRecord:
        """Make the round count; nothing before this call changes what a checkpoint saves."""
        diagnostics, touched = None, outcome.aggregator.touched
        if self.diagnostics:
            diagnostics = self.diagnostics.observe(self.state, outcome.state, touched())
        self.state.copy_(outcome.state)
        self.memory = outcome.memory
        if isinstance(outcome.aggregator, MemoryAggregator):
            outcome.aggregator.commit()
        if self.average:
            self.average = self.average.after(outcome.state)
        self.downlink.commit(self.rounds_done, outcome.sent, outcome.kept)
        self.sampler.remember(outcome.results, outcome.rejected)
        self.local = self.engine.local_tensors()
        self.total = self.total.plus(outcome.cost)
        self.rounds_done += 1
        seconds = time.perf_counter() - started
        replanned = self.fleet.commit() if self.fleet else None
        if replanned and self.folder:
            self.folder.write_json(PLAN_FILE, self.job.plan.to_json())
        record = outcome.record(
            round=self.rounds_done, total=self.total, seconds=seconds, diagnostics=diagnostics,
            replanned=replanned,
        )  # fmt: skip
        names = {str(k): self.job.device_name(k) for k in record.away if self.job.devices}
        return replace(record, devices=names)

    def _use(self, job: Job) -> None:
        """Continue with another plan for the same model, data and clients."""
        if job is not self.job:
            self.job = job
            self.sampler.use(job)
            self._costs = RoundCosts(job)
            self._availability = Availability(job, self._costs)

    def _aggregator(
        self, round: int, assignments: RoundAssignments, selection: Selection, there: Sequence[int]
    ) -> Aggregator:
        """Adds up the updates of this round, by the rule that the configuration names."""
        if self.privacy:
            return self.privacy.aggregator(round, assignments)
        if self.updates:
            clip = self.rule.clip if isinstance(self.rule, ClippedMean) else None
            return MemoryAggregator(self.updates, round, self.rule.min_contributors, clip)
        with calling_own(self.rule, "server.aggregation: start", RunError):
            aggregator = self.rule.start(self.job.layers, self.job.recipe.normalizer)
        self.sampler.expect(aggregator, selection, assignments, there)
        return aggregator

    def _collect(
        self, assignments: Mapping[int, Assignment], selection: Selection, aggregator: Aggregator
    ) -> tuple[list[int], dict[str, str], int]:
        """Aggregate the valid updates; return their clients, why others were rejected, bytes."""
        rejected, bytes_up = dict(selection.refused), selection.bytes_up
        # Client order: float addition is not associative, and the result must not depend on
        # which worker finishes first.
        added, came, weights = [], list[int](), self.sampler.weights(selection)
        max_rms, known = self.job.config.server.max_rms, self.job.num_examples

        def valid() -> Iterator[tuple[int, ClientUpdate]]:
            for client, update in self.engine.collect(selection.clients):
                came.append(client)
                try:
                    number = int(known[client])
                    validate(update, assignments[client], num_examples=number, max_rms=max_rms)
                except Exception as error:  # values come from the client
                    rejected[str(client)] = refusal(error)
                else:
                    yield client, update

        updates = valid()  # one by one: they may not fit into memory together
        if (limit := self.job.config.server.max_medians) is not None:
            waiting = dict(updates)
            rejected |= outliers(waiting, assignments, limit)
            updates = ((k, update) for k, update in waiting.items() if str(k) not in rejected)
        for client, update in updates:
            try:
                aggregator.add(update, assignments[client], float(weights[client]))
            except Exception as error:  # a failure of the server: its traceback names the client
                error.add_note(f"round {self.rounds_done + 1}, {self.job.client_name(client)}")
                raise
            added.append(client)
        up = self.job.config.messages.up
        bytes_up += sum(upload_bytes(assignments[client], up) for client in came)
        rejected |= {str(k): why for k, why in self.engine.failures.items() if k in assignments}
        self.sampler.note_refused(self.rounds_done, selection.clients, rejected)
        refuse_too_few(self.job, self.rounds_done, len(added), rejected)
        if not self.privacy:  # with noise, a round without updates must look like any other
            stop_if_all_are_bad(self.job, self.rounds_done, len(assignments), rejected)
        return added, rejected, bytes_up

    def _aggregate(self, aggregator: Aggregator) -> tuple[Tensor, Memory]:
        """The next model state and server optimizer state; the current ones do not change."""
        mean = self.state.clone()
        with calling_own(self.rule, "server.aggregation: the rule", RunError):
            aggregator.apply(mean)
        return self.server.step(
            self.job.layers, self.state, mean, aggregator.touched, self.memory,
            self.job.config.server.step_decay**self.rounds_done,
        )  # fmt: skip

    def _save(self, *, replace_damaged: bool = False) -> None:
        """Write a checkpoint, unless there is one of this round already."""
        if self.folder and self._saved != self.rounds_done:
            extras = {**self.memory, **self.local}
            for part in (*self._parts, self.average, self.fleet):
                extras |= part.tensors() if part else {}
            job = self.fleet.first if self.fleet else self.job
            saved = Checkpoint(self.state, self.rounds_done, self.total, extras, self._pending)
            self.folder.save_checkpoint(job, saved, replace_damaged=replace_damaged)
            self._saved = self.rounds_done

    def _models(self) -> dict[str, Tensor]:
        """The run's final states by file name; with ``server.average`` there are two.

        One is the last round's state, the other the average of past ones.
        """
        if self.average is None:
            return {FINAL_MODEL: self.state}
        if self.history().ends_with_average:
            return {FINAL_MODEL: self.average.state, LAST_MODEL: self.state}
        return {FINAL_MODEL: self.state, AVERAGE_MODEL: self.average.state}

    def _finish(self) -> History:
        models, result = self._models(), {}
        if self.job.test is not None and self.job.test is not self.job.validation:
            test, _ = self._evaluator.of("test", models[FINAL_MODEL])
            if test is not None:
                result = {"test_score": test.score, "test_loss": test.loss}
        history = self.history(**result)
        if self.folder:
            final = {"rounds": self.rounds_done, **history.final_numbers(), **result}
            if self.privacy:
                final["privacy"] = self.privacy.record(self.rounds_done)
            self.folder.finish({name: self._tensors(models[name]) for name in models}, final)
        return history

    def _tensors(self, state: Tensor) -> dict[str, Tensor]:
        return all_tensors(self.job.model, self.job.layers, state)
