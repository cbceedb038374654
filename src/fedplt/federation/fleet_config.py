"""The ``[fleet]`` section of a run: devices, what they should train, who is there in a round."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from fedplt.federation.section import Section

Seconds = Annotated[float, Field(gt=0)]


class FleetConfig(Section):
    """Device profiles of the clients (``docs/fleet.md``)."""

    devices: str
    """A .toml or .csv file of devices; their counts add up to the clients."""
    ratios: Literal["planned", "groups"] = "planned"
    """Plan ratios from the devices, or keep those of ``clients.groups`` (one device per group)."""
    target: Literal["fastest", "deadline", "percentile"] = "fastest"
    target_seconds: Seconds | None = None
    percentile: Annotated[float, Field(ge=0, le=100)] | None = None
    min_ratio: Annotated[float, Field(gt=0, le=1)] = 0.01
    may_freeze: bool = False
    may_cut_steps: bool = False
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Chance of every client to be away in a round."""
    round_deadline: Seconds | None = None
    """Clients predicted to take longer (seconds) are left out of the round."""

    @model_validator(mode="after")
    def _goes_together(self) -> FleetConfig:
        if self.ratios == "groups":
            keys = ["target", "target_seconds", "percentile", "min_ratio"]
            keys += ["may_freeze", "may_cut_steps"]
            self.refuse_unused(keys, "ratios = 'groups'", "or set ratios = 'planned'")
        if (self.target == "deadline") != (self.target_seconds is not None):
            raise ValueError("target = 'deadline' and target_seconds go together: set both")
        if (self.target == "percentile") != (self.percentile is not None):
            raise ValueError("target = 'percentile' and percentile go together: set both")
        return self
