"""A stand-in for the modules ``wandb`` and ``mlflow``: keeps what they are called with."""

from __future__ import annotations

from types import ModuleType


class StandIn(ModuleType):
    def __init__(self, name):
        super().__init__(name)
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.finished = False

    def init(self, *, project: str, name: str) -> StandIn:
        assert project and name
        return self

    def log(self, values: dict[str, float], step: int) -> None:
        self.logged.append((step, values))

    log_metrics = log

    def finish(self) -> None:
        self.finished = True
