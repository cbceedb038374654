"""A model with an input it takes, cut into layers: what cost and timing questions start from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fedplt.cutting import cut
from fedplt.errors import ConfigError
from fedplt.layers import Layers
from fedplt.models import MODELS, build_model

INPUT_SHAPES = {"fcn": (784,), "cnn": (1, 28, 28), "resnet8": (3, 32, 32)}


def example_model(
    name: str, options: Mapping[str, Any] | None = None, input_shape: Sequence[int] = ()
) -> tuple[nn.Module, Tensor, Layers]:
    """A model by name or import path, a batch of two zeros, and the model's layers."""
    options = options or {}
    model = build_model(name, options, seed=0)
    shape = tuple(input_shape) or INPUT_SHAPES.get(name, ())
    if name == "fcn" and not input_shape:
        shape = (int(options.get("num_inputs", 784)),)
    if not shape:
        raise ConfigError(
            f"the shape of an input of {name!r} is not known. Give it, such as --input-shape "
            "3,32,32 (one example, without the batch)."
        )
    example = torch.zeros(2, *shape)
    try:
        with torch.no_grad():
            model.eval()(example)
    except Exception as error:  # the user's model may raise anything
        raise ConfigError(
            f"{name!r} does not take inputs of shape {list(shape)}: "
            f"{(str(error).splitlines() or [repr(error)])[0]}. Set --input-shape."
        ) from error
    groups: Any = MODELS[name].groups if name in MODELS else None
    return model, example, cut(model, example, groups=groups)
