"""A model by name, with an example input and its layers, to compute or measure its cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fedplt.cutting.find_layers import cut
from fedplt.errors import ExampleError
from fedplt.models import MODELS, build_model
from fedplt.planning import Layers


def example_model(
    name: str, options: Mapping[str, Any] | None = None, shape: Sequence[int] = ()
) -> tuple[nn.Module, Tensor, Layers]:
    """A model by name or import path, a batch of two examples, and the model's layers.

    ``shape`` is that of one example, without the batch; built-in models know theirs.
    """
    options = options or {}
    model = build_model(name, options, seed=0)
    example = _example(name, options, shape)
    try:
        with torch.no_grad():
            model.eval()(example)
    except Exception as error:  # the user's model may raise anything
        raise ExampleError(
            f"{name!r} does not take inputs of shape {list(example.shape[1:])}: "
            f"{(str(error).splitlines() or [repr(error)])[0]}."
        ) from error
    groups: Any = MODELS[name].groups if name in MODELS else None
    return model, example, cut(model, example, groups=groups)


def _example(name: str, options: Mapping[str, Any], shape: Sequence[int]) -> Tensor:
    if shape:
        return torch.zeros(2, *shape)
    if name == "fcn" and "num_inputs" in options:
        return torch.zeros(2, int(options["num_inputs"]))
    known = MODELS[name].example if name in MODELS else None
    if known is None:
        raise ExampleError(f"the shape of an input of {name!r} is not known.")
    return known()
