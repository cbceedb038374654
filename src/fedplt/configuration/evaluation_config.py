"""The sections ``[task]``, ``[evaluation]`` and ``[diagnostics]``."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field

from fedplt.client import METRICS, TASKS, Metric, Task
from fedplt.errors import ConfigError, did_you_mean
from fedplt.imports import import_object
from fedplt.schema import Section


class TaskConfig(Section):
    """The learning task: the loss to train with and the metric to measure with."""

    name: str = "classification"
    """``classification``, ``regression``, ``multi-label``, ``next-token``, or
    ``package.module:object``, a :class:`fedplt.Task`."""
    loss: str | None = None
    """Instead of the task's loss: ``package.module:function`` (outputs, targets) -> mean loss."""
    metric: str | None = None
    """Instead of the task's metric: ``accuracy``, ``rmse``, ``mae``, ``r2``, ``f1``, ``macro-f1``,
    ``perplexity``, ``token-accuracy``, or ``package.module:object``, a :class:`fedplt.Metric`."""

    def task(self) -> Task:
        """The task itself; imports what is named by import path."""
        task: Task = _named("name", self.name, TASKS, Task)
        if self.loss is not None:
            task = replace(task, loss=import_object(self.loss, "task.loss"))
        if self.metric is not None:
            task = replace(task, metric=_named("metric", self.metric, METRICS, Metric))
        return task


def _named(key: str, name: str, known: dict[str, Any], kind: type) -> Any:
    if name in known:
        return known[name]
    if ":" not in name:
        raise ConfigError(
            f"there is no {name!r}. {did_you_mean(name, known)} Your own "
            f"fedplt.{kind.__name__} is named by import path: 'my_package.tasks:mine'.",
            key=f"task.{key}",
        )
    return import_object(name, f"task.{key}", f"a fedplt.{kind.__name__}", kind)


class EvaluationConfig(Section):
    """When and how the global model is evaluated."""

    every: Annotated[int, Field(ge=1)] = 1
    """Rounds between evaluations (the last round is always evaluated)."""
    on: Literal["server", "nodes", "both"] = "server"
    """``flower``: evaluate on the server's data, on each node's (weighted by their examples),
    or on both. Without data on the server: always on the nodes."""
    per_client: bool = False
    """Also report a score per client, weighted by its label distribution."""
    keep_best: bool = False
    """Also keep the model of the best evaluated round, in ``best.safetensors``."""
    stop_after: Annotated[int, Field(ge=1)] | None = None
    """End the run when the score has not improved for this many rounds."""
    combine: Literal["mean", "median", "trimmed-mean"] = "mean"
    """If clients evaluate: the score over all their examples, or the median or trimmed mean of
    the clients' scores, which a few bad clients cannot move far (``docs/robust.md``)."""
    trim: Annotated[float, Field(ge=0, lt=0.5)] = 0.2
    """For ``combine = "trimmed-mean"``: fraction of the clients left out at each end."""
    client_examples: Annotated[int, Field(ge=1)] | None = None
    """With ``local_norms``: evaluate each client on about this many examples (default: all)."""

    def refuse_conflicts(self) -> None:
        if self.combine != "trimmed-mean":
            because = f"combine = {self.combine!r}"
            self.refuse_unused(["trim"], because, "or set combine = 'trimmed-mean'")


class DiagnosticsConfig(Section):
    """Whether each round records how the global model moves (``docs/diagnostics.md``)."""

    enabled: bool = False
    window: Annotated[int, Field(ge=1, le=10_000)] = 10
    """Rounds in the window of the effective perturbation; each needs a copy of the model."""

    def refuse_conflicts(self) -> None:
        if not self.enabled:
            self.refuse_unused(["window"], "enabled = false", "or set enabled = true")
