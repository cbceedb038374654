"""The costs of a round: bytes sent and FLOPs."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from fedplt.federation.job import Job
from fedplt.federation.run_folder.records import Totals
from fedplt.fleet import Work
from fedplt.planning import (
    Assignment,
    Flops,
    download_bytes,
    exact_flops,
    paper_flops_of,
    upload_bytes,
)
from fedplt.server import Broadcast


class RoundCosts:
    """Computes the costs of rounds; caches the FLOPs of assignments of the same size."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._flops: dict[Hashable, Flops] = {}

    def of_round(
        self,
        assignments: Mapping[int, Assignment],
        bytes_up: int,
        bytes_down: int,
        sent: Broadcast | None = None,
    ) -> Totals:
        """The costs of a round in which these clients received the model and trained.

        ``sent``: what the clients of this round receive; None: as in most rounds.
        """
        flops, paper = 0, 0.0
        for client, assignment in assignments.items():
            seen = self.job.examples_seen(client)
            flops += seen * self.flops(assignment).total
            paper += paper_flops_of(assignment, seen)
            bytes_down += self._download(client, assignment, sent)
        return Totals(bytes_up, bytes_down, flops, paper)

    def work(
        self,
        client: int,
        assignment: Assignment,
        *,
        uploads: bool = True,
        uncut: bool = False,
        sent: Broadcast | None = None,
    ) -> Work:
        """One client's round (``uncut``: as if the planner had not cut its local steps)."""
        examples, each = self.job.examples_seen(client, uncut=uncut), self.flops(assignment)
        return Work(
            examples * each.forward,
            examples * (each.total - each.forward),
            self._download(client, assignment, sent),
            upload_bytes(assignment, self.job.config.messages.up) if uploads else 0,
        )

    def _download(self, client: int, assignment: Assignment, sent: Broadcast | None) -> int:
        down = self.job.config.messages.down if sent is None else sent.encoding_of(client)
        return download_bytes(assignment, down)

    def flops(self, assignment: Assignment) -> Flops:
        """FLOPs per example; they depend on how many rows of each layer are trained, not which."""
        key = assignment.cost_key
        if key not in self._flops:
            self._flops[key] = exact_flops(assignment)
        return self._flops[key]
