"""The base class of methods: a rule for which client trains what, and a local recipe."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedplt.errors import ConfigError, CutError, PlanError
from fedplt.named_classes import calling_own, import_path
from fedplt.planning import Allocation, Layers, LocalRecipe, Normalizer, Plan, Spaces
from fedplt.text import brief


def _unknown_spaces() -> Spaces:
    raise PlanError(
        "methods that train sub-models need to know which layers' units are coupled: give "
        "PlanRequest find_spaces=lambda: find_spaces(model, layers, example)."
    )


@dataclass(frozen=True)
class PlanRequest:
    """The input of :meth:`Method.plan`."""

    layers: Layers
    ratios: Sequence[float | Allocation]
    """One per client: the fraction of the model that its device can afford to train."""
    seed: int = 0
    find_spaces: Callable[[], Spaces] = _unknown_spaces
    """Finds the spaces of coupled units; called by methods that train sub-models."""

    __repr__ = brief

    @property
    def ratio_array(self) -> NDArray[np.float64]:
        return np.array([r.ratio if isinstance(r, Allocation) else r for r in self.ratios])


@dataclass(frozen=True, kw_only=True)
class Method:
    """A rule for which client trains what. Its fields are its options: keys of ``[method]``."""

    name: ClassVar[str]
    holds: ClassVar[str]
    """What a client holds, in a few words, for ``fedplt methods``."""
    trains: ClassVar[str]

    normalizer: Normalizer = "contributors"
    local_norms: bool = False
    static_norm: bool = False
    masked_loss: bool = False

    def plan(self, request: PlanRequest) -> Plan:
        """The plan: which client trains what."""
        raise NotImplementedError

    @property
    def reference(self) -> str:
        """The ``method.name`` that finds it in any process: its name, or its import path."""
        built_in = type(self).__module__.startswith("fedplt.methods.")
        return self.name if built_in else import_path(type(self))

    @property
    def recipe(self) -> LocalRecipe:
        return LocalRecipe(self.normalizer, self.local_norms, self.static_norm, self.masked_loss)

    def full_plan(self, request: PlanRequest) -> Plan:
        """The plan, with the tensors that stay on the clients."""
        try:
            with calling_own(self, "method.name: the plan"):
                plan = self.plan(request)
        except CutError as error:  # the model is already cut: this error is about a sub-model
            advice = "Use fedplt or fedpmt: their clients train slices of the whole model."
            if any(layer.always for layer in request.layers):
                advice += " Or leave out model.always: no layer of a sub-model is trained whole."
            raise ConfigError(f"{error} {advice}", key="method.name") from error
        if not isinstance(plan, Plan):
            raise ConfigError(
                f"the plan of {self.reference!r} is a {type(plan).__name__}, not a "
                "Plan: make one with fedplt.make_plan or submodel_plan.",
                key="method.name",
            )
        if self.local_norms and not plan.clients_hold_everything:
            raise ConfigError(
                f"with {self.name} a client holds only a part of the model, so "
                "it cannot keep normalization layers for the rest, which is evaluated too. Use it "
                "with fedplt, fedavg or fedpmt.",
                key="method.local_norms",
            )
        return replace(plan, local=norm_tensors(plan.layers)) if self.local_norms else plan


def norm_tensors(layers: Layers) -> frozenset[str]:
    """The tensors of normalization layers, running statistics included."""
    norms = {module.name for module in layers.flow if module.weight is None}
    tensors = layers.tensors
    if not layers.flow:  # cut without an example: take modules whose tensors are all vectors
        names = {tensor.module for tensor in tensors}
        norms = names - {t.module for t in tensors if len(t.shape) > 1}
    return frozenset(t.name for t in tensors if t.module in norms)
