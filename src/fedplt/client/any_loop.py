"""What a client holds, in a training loop that knows nothing of slices."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from fedplt.client.recipe_blocks import frozen_norms, scaled, static_norms
from fedplt.client.slices import TrainableSlices
from fedplt.client.submodels import HeldModel
from fedplt.client.train_only import train_only
from fedplt.errors import CutError
from fedplt.planning import Assignment, LocalRecipe, dotted


@contextmanager
def train_held(
    held: HeldModel, assignment: Assignment, recipe: LocalRecipe
) -> Iterator[TrainableSlices]:
    """:func:`train_only` with what the recipe changes in the model.

    Inside the block ``held.module.parameters()`` are the trained slices, so that an optimizer over
    the model's parameters is one over the slices.
    """
    module = held.module
    with (
        scaled(module, assignment, recipe),
        train_only(module, assignment.on_client) as part,
        static_norms(module, recipe.static_norm),
        frozen_norms(module, part, recipe),
        _only_slices(module, part),
    ):
        yield part
        _refuse_moved(held)


@contextmanager
def _only_slices(model: nn.Module, part: TrainableSlices) -> Iterator[None]:
    """Inside the block, the parameters of a module are its trained slices."""
    leaves = list(part.named_parameters())
    modules: list[tuple[str, Any]] = list(model.named_modules())
    try:
        for name, module in modules:
            start = dotted(name, "")
            own = [(key[len(start) :], leaf) for key, leaf in leaves if key.startswith(start)]
            module.named_parameters = _NamedSlices(module, own)
        yield
    finally:
        for _, module in modules:
            vars(module).pop("named_parameters", None)


class _NamedSlices:
    """A module's ``named_parameters`` inside the block; a copy of the module gets its own."""

    def __init__(self, module: nn.Module, leaves: list[tuple[str, nn.Parameter]]) -> None:
        self.module, self.leaves = module, leaves

    def __call__(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        for name, leaf in self.leaves:
            if recurse or "." not in name:
                yield dotted(prefix, name), leaf

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        copied: nn.Module = memo[id(self.module)]
        return functools.partial(type(copied).named_parameters, copied)


def _refuse_moved(held: HeldModel) -> None:
    devices = {
        parameter.device
        for module in held.module.modules()
        for parameter in module._parameters.values()
        if parameter is not None
    }
    if devices - {held.state.device}:
        raise CutError(
            f"the model was moved from {held.state.device} while its slices were trained; move it "
            "to its device before the block."
        )
