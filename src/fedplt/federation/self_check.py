"""Before a run's first round: is partial training right for its model?"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fedplt.client import CheckReport, check, refuse_wrong
from fedplt.data import first_examples
from fedplt.federation.job import Job


def check_job(job: Job) -> CheckReport:
    """One step of partial training against full gradients times mask; refuses what differs."""
    inputs, targets = first_examples(job.samples)

    def loss(outputs: Any) -> Tensor:
        wanted = targets
        found = getattr(outputs, "logits", outputs)
        if isinstance(wanted, Tensor) and wanted.is_floating_point() and isinstance(found, Tensor):
            wanted = wanted.to(found.dtype)
        return job.training.loss(outputs, wanted)

    report = check(job.model, inputs, loss, plan=job.plan, recipe=job.training.recipe)
    refuse_wrong(report)
    return report
