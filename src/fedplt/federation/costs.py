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


class RoundCosts:
    """Computes the costs of rounds; caches the FLOPs of assignments of the same size."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._flops: dict[Hashable, Flops] = {}

    def of_round(
        self, assignments: Mapping[int, Assignment], bytes_up: int, bytes_down: int
    ) -> Totals:
        """The costs of a round in which these clients received the model and trained."""
        flops, paper = 0, 0.0
        for client, assignment in assignments.items():
            seen = self.job.examples_seen(client)
            flops += seen * self.flops(assignment).total
            paper += paper_flops_of(assignment, seen)
            bytes_down += download_bytes(assignment)
        return Totals(bytes_up, bytes_down, flops, paper)

    def work(
        self, client: int, assignment: Assignment, *, uploads: bool = True, uncut: bool = False
    ) -> Work:
        """One client's round (``uncut``: as if the planner had not cut its local steps)."""
        examples, each = self.job.examples_seen(client, uncut=uncut), self.flops(assignment)
        return Work(
            examples * each.forward,
            examples * (each.total - each.forward),
            download_bytes(assignment),
            upload_bytes(assignment) if uploads else 0,
        )

    def flops(self, assignment: Assignment) -> Flops:
        """FLOPs per example; they depend on how many rows of each layer are trained, not which."""
        key = assignment.cost_key
        if key not in self._flops:
            self._flops[key] = exact_flops(assignment)
        return self._flops[key]
