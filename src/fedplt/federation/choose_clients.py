"""Choose which clients train and upload in a round, and store the update norms for it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedplt.client import ClientResult
from fedplt.errors import RunError
from fedplt.federation.job import Job
from fedplt.federation.privacy_accounting import PrivateRounds
from fedplt.methods import calling_own
from fedplt.planning import RoundAssignments
from fedplt.sampling import (
    Sampler,
    SamplingRequest,
    independent_sample,
    most_drawn,
    sampling_variance,
)
from fedplt.server import Aggregator, norm_problem, over_probabilities
from fedplt.text import counted

NUMBER_BYTES = 8
"""Bytes of a norm, a sum or a probability: one double."""
ANSWER_BYTES = 1
"""Bytes of the server's yes or no to a client."""
MAX_WAIT = 32
"""Maximum number of rounds in which the norm of a client with refused updates is ignored."""


@dataclass(frozen=True, eq=False)
class Selection:
    """Which clients upload in a round."""

    asked: list[int]
    """Clients that were asked to train; some may be away."""
    clients: list[int]
    """Clients that upload: chosen and present."""
    probabilities: NDArray[np.float64]
    """Probability that each client of the fleet is chosen; 0 if it is away."""
    refused: dict[str, str] = field(default_factory=dict)
    """Clients whose update norm is not finite (their training diverged), or not a norm at all."""
    bytes_up: int = 0
    bytes_down: int = 0
    """Bytes of messages about norms and choices, without models and updates."""
    record: dict[str, Any] | None = None


class ClientSampler:
    """Chooses clients as ``[sampling]`` asks; with ``norms = "last"``, keeps their norms."""

    def __init__(self, job: Job, privacy: PrivateRounds | None = None) -> None:
        """With ``privacy``, clients are drawn from its secret stream, not from the run's seed."""
        self.job, self.settings, self.privacy = job, job.config.sampling, privacy
        by_norm = self.settings.by_norm
        self.sampler = None if by_norm else self.settings.sampler
        self.rule = self.settings.rule if by_norm else None
        self._budget = self.settings.budget or 0.0
        self._everybody = list(range(job.plan.num_clients))
        self._last = np.full(len(self._everybody), np.nan)
        self._refusals = torch.zeros(len(self._everybody), 2, dtype=torch.int64)
        """Per client: the number of consecutive refused updates, and the round from which its norm
        is used again."""
        self._saved_refusals = self._refusals.clone()
        """The refusals as of the last committed round."""

    def use(self, job: Job) -> None:
        """Go on with another plan for the same clients."""
        self.job = job

    def before_training(self, round: int, there: Sequence[int]) -> Selection | None:
        """The selection, if it can be made before training; None if all clients must train first.

        Clients are drawn without knowing which are away.
        """
        settings, sampler, present = self.settings, self.sampler, self._mask(there)
        if sampler is None:
            return self._by_last_norms(round, present) if settings.norms == "last" else None
        request = SamplingRequest(
            round, self.job.config.seed, self.job.weights, self.job.plan.achieved_ratios,
            self._last.copy(),
        )  # fmt: skip
        with calling_own(sampler, "sampling.name: probabilities", RunError):
            found = sampler.probabilities(request)
        chances = self._checked(found)
        asked = self._asked(sampler, request, chances)
        chosen = self._chosen(round, asked, present)
        record = None
        if settings.name != "all" and self.privacy is None:
            record = chosen_record(chosen, num_away=len(asked) - len(chosen))
        return Selection(asked, chosen, np.where(present, chances, 0.0), record=record)

    def _asked(
        self, sampler: Sampler, request: SamplingRequest, chances: NDArray[np.float64]
    ) -> list[int]:
        """Clients that take part, in ascending order."""
        if self.privacy is not None and type(sampler).draw is Sampler.draw:
            draws = self.privacy.secret.uniforms("clients", request.round, len(chances))
            return [int(client) for client in np.flatnonzero(draws < chances)]
        with calling_own(sampler, "sampling.name: draw", RunError):
            drawn = np.asarray(sampler.draw(request, chances))
            clients = sorted({int(client) for client in drawn})
        if len(clients) < len(drawn) or any(not 0 <= k < len(chances) for k in clients):
            raise RunError(
                f"sampling.name: {self.settings.name!r} drew {drawn.tolist()!r:.80}; draw must "
                f"return distinct clients, numbered 0 to {len(chances) - 1}."
            )
        if clients and not chances[clients].all():
            client = next(k for k in clients if not chances[k])
            raise RunError(
                f"sampling.name: {self.settings.name!r} drew client {client}, whose probability is "
                "0; updates are divided by it. Give all clients that may be drawn a probability."
            )
        return clients

    def _checked(self, found: Any) -> NDArray[np.float64]:
        """Probabilities that a sampler or rule returned."""
        chances, number = np.asarray(found, dtype=np.float64), len(self._everybody)
        if chances.shape != (number,) or not ((chances >= 0) & (chances <= 1)).all():
            raise RunError(
                f"sampling.name: the probabilities of {self.settings.name!r} have shape "
                f"{chances.shape} and values {chances.reshape(-1)[:3].tolist()}...; give one per "
                f"client, ({number},), from 0 to 1."
            )
        return chances

    def _chosen(self, round: int, asked: list[int], present: NDArray[np.bool_]) -> list[int]:
        """The asked clients that are present. Refuses more than the engine has memory for.

        Independent draws may choose everybody; the engine's memory is :func:`most_numbers`.
        """
        if int(self.job.plan.update_sizes[asked].sum()) > most_numbers(self.job):
            raise RunError(
                f"round {round + 1}: {len(asked)} clients were drawn, far above what is expected. "
                "Set sampling.norms = 'fresh', sampling.probability higher, or let most_clients of "
                "your sampler return more."
            )
        return [client for client in asked if present[client]]

    def block_weights(self, assignments: RoundAssignments, there: Sequence[int]) -> Tensor | None:
        """The server's divisor of each value, if clients must weight their norms by it."""
        if self.settings.objective != "aggregate":
            return None
        aggregator = Aggregator(self.job.layers, self.job.recipe.normalizer)
        self._expect(aggregator, assignments, there)
        return aggregator.divisors()

    def _expect(
        self, aggregator: Aggregator, assignments: RoundAssignments, clients: Sequence[int]
    ) -> None:
        weights = self.job.weights[np.asarray(clients, dtype=np.int64)].astype(np.int64)
        aggregator.expect_all(assignments, clients, weights)

    def after_training(self, round: int, results: Sequence[ClientResult]) -> Selection:
        """Select by the norms of this round's updates; all clients send their norm first."""
        norms = np.zeros(len(self._everybody))
        present = self._mask([result.client for result in results])
        refused = {}
        for result in results:
            norms[result.client] = _norm(result)
            if problem := norm_problem(_norm(result)) or self._distrust(result.client, round):
                refused[str(result.client)] = problem
        bad = [int(client) for client in refused]
        norms[bad] = 0.0
        chances, exchanges = self._probabilities(norms)
        if not norms.any():  # no update is larger than another: choose uniformly
            chances = np.full(len(norms), self._uniform(present))
        chances[bad] = 0.0
        chances[~present] = 0.0
        chosen = independent_sample(chances, seed=self.job.config.seed, round=round).tolist()
        number = len(results)
        return Selection(
            self._everybody,
            chosen,
            chances,
            refused=refused,
            bytes_up=number * NUMBER_BYTES * (1 + 2 * exchanges),
            # If clients draw for themselves, the server sends sums instead of a yes or no.
            bytes_down=number * (NUMBER_BYTES * (1 + exchanges) if exchanges else ANSWER_BYTES),
            record=self._record(
                chosen, chances, norms, self._uniform(present),
                num_trained=number, num_away=0 if results else len(norms),
            ),
        )  # fmt: skip

    def _by_last_norms(self, round: int, present: NDArray[np.bool_]) -> Selection:
        known = ~np.isnan(self._last)
        # A client that never trained has no norm yet: use the average.
        norms = np.where(known, self._last, self._last[known].mean() if known.any() else 0.0)
        best, _ = self._probabilities(norms)
        floor, uniform = self.settings.floor, self._uniform(np.ones_like(present))
        chances = (1 - floor) * best + floor * uniform
        asked = independent_sample(chances, seed=self.job.config.seed, round=round).tolist()
        chosen = self._chosen(round, asked, present)
        # The budget covers clients that are away too; the same holds for uniform sampling.
        chances, norms = np.where(present, chances, 0.0), np.where(present, norms, 0.0)
        record = self._record(
            chosen, chances, norms, uniform,
            num_trained=len(chosen), num_away=len(asked) - len(chosen),
        )  # fmt: skip
        return Selection(asked, chosen, chances, record=record)

    def _record(
        self,
        chosen: list[int],
        probabilities: NDArray[np.float64],
        norms: NDArray[np.float64],
        uniform: float,
        *,
        num_trained: int,
        num_away: int,
    ) -> dict[str, Any]:
        """Probabilities, chosen clients, and the variance compared with uniform sampling.

        Costs and the budget are in the sampler's unit (clients, or whole models). A client that is
        away has probability and norm 0. ``uniform``: each client's probability if all had the same.
        """
        costs, weights = self._costs, self.job.weights
        variance = sampling_variance(probabilities, norms, weights)
        by_chance = sampling_variance(np.full(len(costs), uniform), norms, weights)
        record: dict[str, Any] = {
            "budget": self._budget,
            "expected_cost": float(costs @ probabilities),
            "cost": float(costs[chosen].sum()),
            "num_trained": num_trained,
            **chosen_record(chosen, num_away),
            "probabilities": _compact(probabilities),
            "variance": variance,
            "uniform_variance": by_chance,
            "variance_ratio": variance / by_chance if by_chance > 0 else math.inf,
        }
        # JSON has no infinity: such a variance is left out.
        return {k: v for k, v in record.items() if not isinstance(v, float) or math.isfinite(v)}

    def expect(
        self,
        aggregator: Aggregator,
        selection: Selection,
        assignments: RoundAssignments,
        there: Sequence[int],
    ) -> None:
        """Set the aggregator's divisors: all present clients, for the unbiased estimator."""
        if self.settings.estimator_used == "unbiased":
            refused = {int(client) for client in selection.refused}
            sound = [client for client in there if client not in refused] if refused else there
            self._expect(aggregator, assignments, sound)

    def weights(self, selection: Selection) -> NDArray[np.float64]:
        """The weight of each client's update, divided by its probability to be chosen.

        Not divided if all probabilities are equal, unless the estimator is unbiased.
        """
        weights, chances = self.job.weights, selection.probabilities
        differ = len(np.unique(chances[chances > 0])) > 1
        if self.settings.weighs or differ:
            return over_probabilities(weights, chances)
        return weights.astype(np.float64)

    def note_refused(self, round: int, chosen: Sequence[int], rejected: Mapping[str, str]) -> None:
        """Ignore the norms of chosen clients whose updates were refused, for 1, 2, 4, ... rounds.

        They are also left out of further attempts at this round. Otherwise one client that reports
        a huge norm would take the whole budget in every round.
        """
        for client in chosen if self.settings.by_norm and self.settings.norms == "fresh" else ():
            times = int(self._refusals[client, 0]) + 1 if str(client) in rejected else 0
            until = round + 1 + min(2 ** min(times - 1, 30), MAX_WAIT) if times else 0
            self._refusals[client] = torch.tensor([times, until])

    def _distrust(self, client: int, round: int) -> str | None:
        times, until = self._refusals[client].tolist()
        if round >= until:
            return None
        return (
            f"{counted(times, 'chosen update')} in a row refused; chosen again in round {until + 1}"
        )

    def remember(self, results: Sequence[ClientResult], rejected: Mapping[str, str]) -> None:
        """Keep the norms for later rounds. The round loop calls this when it commits a round.

        A client whose update was rejected keeps its last accepted norm.
        """
        self._saved_refusals = self._refusals.clone()
        for result in results:
            norm = _norm(result)
            if norm_problem(norm):
                self._last[result.client] = 0.0
            elif str(result.client) not in rejected:
                self._last[result.client] = norm

    def tensors(self) -> dict[str, Tensor]:
        """The sampler's state for a checkpoint."""
        sampler = self.sampler
        found = {"sampling.refusals": self._saved_refusals} if self._saved_refusals.any() else {}
        if self.settings.norms == "last" if sampler is None else sampler.uses_norms:
            found["sampling.last_norms"] = torch.from_numpy(self._last.copy())
        return found

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        if "sampling.last_norms" in tensors:
            self._last = tensors["sampling.last_norms"].numpy().copy()
        if "sampling.refusals" in tensors:
            self._refusals.copy_(tensors["sampling.refusals"])
            self._saved_refusals = self._refusals.clone()

    @property
    def _costs(self) -> NDArray[np.float64]:
        """The cost of each client's upload, in the unit of the budget."""
        ratios = self.job.plan.achieved_ratios
        return ratios if self.settings.in_models else np.ones_like(ratios)

    def _probabilities(self, norms: NDArray[np.float64]) -> tuple[NDArray[np.float64], int]:
        """Probabilities, and the number of message exchanges needed beyond sending the norms."""
        weights = self.job.weights.astype(np.float64)
        fleet = (norms, weights, self._costs, self._budget)
        assert self.rule is not None
        with calling_own(self.rule.probabilities, "sampling.name: the call", RunError):
            found, exchanges = self.rule.choose(fleet, match_budget=self.settings.match_budget)
        return self._checked(found), exchanges

    def _uniform(self, among: NDArray[np.bool_]) -> float:
        """The common probability that spends the budget, at most 1."""
        whole = float(self._costs[among].sum())
        return min(1.0, self._budget / whole) if whole else 0.0

    def _mask(self, clients: Sequence[int]) -> NDArray[np.bool_]:
        result = np.zeros(len(self._everybody), dtype=np.bool_)
        result[list(clients)] = True
        return result


def _norm(result: ClientResult) -> float:
    """The norm to sample by: as the update will be aggregated if known, else the plain norm."""
    return result.norm if result.weighted_norm is None else result.weighted_norm


def most_clients(job: Job) -> int:
    """Upper bound of the number of clients that train in a round."""
    sampling, number = job.config.sampling, job.plan.num_clients
    return number if sampling.by_norm else sampling.sampler.most_clients(number)


def most_numbers(job: Job) -> int:
    """Upper bound of the total size of one round's updates, in values."""
    sizes, sampling = job.plan.update_sizes, job.config.sampling
    if not sampling.by_norm:
        return sampling.sampler.most_values(sizes)
    if sampling.norms == "fresh":
        return int(sizes.sum())
    costs = job.plan.achieved_ratios if sampling.in_models else np.ones(len(sizes))
    return most_drawn(sizes, (sampling.budget or 0) * float((sizes / costs).max()))


MAX_LISTED = 200
"""Up to this many clients are listed one by one; more are summarized."""


def chosen_record(chosen: list[int], num_away: int = 0) -> dict[str, Any]:
    """The number of clients that were chosen and present, and their list unless it is long.

    ``num_away`` further clients were chosen but away.
    """
    record: dict[str, Any] = {"num_chosen": len(chosen)}
    if len(chosen) <= MAX_LISTED:
        record["chosen"] = chosen
    if not chosen:
        why = "all who were to take part were away" if num_away else "nobody was chosen"
        record["note"] = f"{why}: the model stays as it was"
    return record


def _compact(probabilities: NDArray[np.float64]) -> list[float] | dict[str, float]:
    if len(probabilities) <= MAX_LISTED:
        return [float(f"{p:.4g}") for p in probabilities]
    low, middle, high = np.quantile(probabilities, [0, 0.5, 1])
    mean, certain = float(probabilities.mean()), int(np.count_nonzero(probabilities == 1))
    values = {"min": float(low), "median": float(middle), "mean": mean, "max": float(high)}
    return {**values, "num_certain": certain}
