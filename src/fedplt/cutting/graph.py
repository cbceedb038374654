"""A model as a ``torch.fx`` graph, for code that follows it operation by operation."""

from __future__ import annotations

from torch import fx, nn

from fedplt.errors import CutError


def traced(model: nn.Module) -> fx.GraphModule:
    """The model as a graph of operations."""
    names = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    if len(names) != len(list(model.parameters())):
        raise no_submodel("it has tied weights, and a sub-model would untie them.")
    try:
        return fx.symbolic_trace(model)
    except Exception as error:  # whatever the user's forward does with a symbolic input
        raise no_submodel(
            "its forward pass cannot be followed step by step, as is common with transformers "
            f"({str(error).splitlines()[0]})."
        ) from error


def no_submodel(reason: str) -> CutError:
    return CutError(f"a sub-model cannot be cut from this model: {reason}")
