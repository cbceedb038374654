"""Run the self-check before the first round: is partial training correct for the model?"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fedplt.client import CheckReport, check, check_assignments, refuse_wrong
from fedplt.data import first_examples
from fedplt.errors import CutError
from fedplt.federation.job import Job
from fedplt.federation.preflight.client_order import keeps_nothing, refuse_order
from fedplt.planning import Assignment


def check_job(job: Job, assignment: Assignment | None = None) -> CheckReport:
    """Compare a step of partial training with full gradients times mask; refuse a difference.

    ``assignment``: compare only this one; a node has no plan.
    """
    inputs, targets = first_examples(job.samples)

    def loss(outputs: Any) -> Tensor:
        wanted = targets
        found = getattr(outputs, "logits", outputs)
        if isinstance(wanted, Tensor) and wanted.is_floating_point() and isinstance(found, Tensor):
            wanted = wanted.to(found.dtype)
        return job.training.loss(outputs, wanted)

    recipe = job.training.recipe
    if assignment is None:
        report = check(job.model, inputs, loss, plan=job.plan, recipe=recipe)
    else:
        report = check_assignments(job.model, inputs, loss, [assignment], recipe)
    try:
        refuse_wrong(report)
    except CutError as error:
        raise CutError(f"{error} Then switch the check off with engine.check = false.") from error
    if assignment is None and not keeps_nothing(job):
        refuse_order(job)
    return report
