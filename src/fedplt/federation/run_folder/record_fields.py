"""The types of a round's record, checked when records are read."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

STRICT = ConfigDict(extra="forbid", strict=True)

Count = Annotated[int, Field(ge=0, le=10**30)]
RoundNumber = Annotated[int, Field(ge=1, le=10**9)]
ClientNumber = Annotated[int, Field(ge=0, lt=10**7)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Sampling(BaseModel, extra="allow", strict=True):
    """What ``sampling_record`` writes."""

    num_chosen: Count
    chosen: list[ClientNumber] = []
    probabilities: list[Amount] | dict[str, Amount] = []
    note: str = ""


class _BudgetSampling(_Sampling):
    """The same, of a sampler with a budget."""

    budget: Amount
    expected_cost: Amount
    cost: Amount
    num_trained: Count
    variance: Amount | None = None
    uniform_variance: Amount | None = None
    variance_ratio: Amount | None = None


class _LayerMovement(BaseModel, extra="allow", strict=True):
    update_magnitude: Amount
    effective_perturbation: Amount | None = None
    mean_age: Amount | None = None
    max_age: Count | None = None
    never_trained: Count


class _Movement(BaseModel, extra="allow", strict=True):
    """What ``Diagnostics.observe`` writes."""

    update_magnitude: Amount
    effective_perturbation: Amount | None = None
    layer_divergence: Amount | None = None
    layers: dict[str, _LayerMovement]


def _sampling(values: dict[str, Any]) -> dict[str, Any]:
    kind = _BudgetSampling if "budget" in values else _Sampling
    kind.model_validate(values)
    return values


def _movement(values: dict[str, Any]) -> dict[str, Any]:
    _Movement.model_validate(values)
    return values


Sampling = Annotated[dict[str, Any], AfterValidator(_sampling)]
Movement = Annotated[dict[str, Any], AfterValidator(_movement)]
