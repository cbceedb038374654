"""The section ``[diagnostics]`` of a run's configuration."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from fedplt.federation.section import Section


class DiagnosticsConfig(Section):
    """Whether each round records how the global model moves (``docs/diagnostics.md``)."""

    enabled: bool = False
    window: Annotated[int, Field(ge=1)] = 10
    """Rounds in the effective perturbation's window; one copy of the model is kept per round."""

    @model_validator(mode="after")
    def _enabled(self) -> DiagnosticsConfig:
        if not self.enabled:
            self.refuse_unused(["window"], "enabled = false", "or set enabled = true")
        return self
