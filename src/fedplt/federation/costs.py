"""What a round costs, client by client."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from fedplt.federation.job import Job
from fedplt.federation.records import Totals
from fedplt.planning import Assignment, Flops, download_bytes, exact_flops, paper_flops_of


class RoundCosts:
    """Adds up the costs of rounds; remembers the FLOPs of clients that are alike."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._flops: dict[Hashable, Flops] = {}

    def of_round(
        self, assignments: Mapping[int, Assignment], bytes_up: int, bytes_down: int
    ) -> Totals:
        """Of a round in which these clients got the model and trained; bytes are of messages."""
        flops, paper = 0, 0.0
        for client, assignment in assignments.items():
            seen = self.job.examples_seen(client)
            flops += seen * self.flops(assignment).total
            paper += paper_flops_of(assignment, seen)
            bytes_down += download_bytes(assignment)
        return Totals(bytes_up, bytes_down, flops, paper)

    def flops(self, assignment: Assignment) -> Flops:
        """Per example; they depend on how much of every layer is trained, not on which part."""
        key = assignment.cost_key
        if key not in self._flops:
            self._flops[key] = exact_flops(assignment)
        return self._flops[key]
