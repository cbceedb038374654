"""A model as a graph of operations, for what must follow them one by one."""

from __future__ import annotations

from torch import fx, nn

from fedplt.errors import CutError


def traced(model: nn.Module) -> fx.GraphModule:
    """The model as a graph of operations, as it is in training."""
    names = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    if len(names) != len(list(model.parameters())):
        raise CutError(
            "this model has tied weights, and a sub-model would untie them: methods that train "
            "sub-models (heterofl, fedrolex, feddrop) do not take it. Use fedplt or fedpmt."
        )
    try:
        return fx.symbolic_trace(model)
    except Exception as error:  # whatever the user's forward does with a symbolic input
        raise CutError(
            "methods that train sub-models (heterofl, fedrolex, feddrop) do not take transformers "
            "and other models whose forward pass cannot be followed step by step "
            f"({str(error).splitlines()[0]}). Use fedplt or fedpmt for this model."
        ) from error
