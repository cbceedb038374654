"""Low layers state facts; whoever knows the methods and the configuration adds what to do."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import torch

import fedplt
from fedplt import ConfigError, CutError, cut
from fedplt.cutting.coupling import find_spaces
from fedplt.errors import ExampleError
from fedplt.methods import METHODS, PlanRequest, make_method
from fedplt.models import MODELS, build_model
from tests.support.image_jobs import TRAINS_SUBMODELS

SOURCE = Path(fedplt.__file__).parent
LOW = sorted(
    path for folder in ("planning", "cutting", "kernels") for path in (SOURCE / folder).glob("*.py")
)
NAMED = re.compile(rf"\b({'|'.join(METHODS)})\b|--[a-z]|\b(model|method|clients)\.[a-z_]+ ")


def messages(path: Path) -> list[str]:
    """All strings of a file but docstrings, and our name as a key in headers."""
    tree = ast.parse(path.read_text())
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if id(node) not in docstrings and node.value != "fedplt"
    ]


@pytest.mark.parametrize("path", LOW, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_no_message_names_a_method_a_key_or_a_flag(path):
    assert [text for text in messages(path) if NAMED.search(text)] == []


@pytest.mark.parametrize("name", ["vit", "text"])
@pytest.mark.parametrize("always", [(), ("head",)])
def test_methods_add_what_to_do_instead_of_sub_models(name, always):
    model, example = build_model(name, {}, seed=0), MODELS[name].example()
    layers = cut(model, example, always=always)
    with pytest.raises(CutError, match="a sub-model cannot be cut from this model") as fact:
        find_spaces(model, layers, example)
    assert not NAMED.search(str(fact.value))
    request = PlanRequest(layers, [0.5], 0, lambda: find_spaces(model, layers, example))
    said = set()
    for method in TRAINS_SUBMODELS:
        with pytest.raises(ConfigError, match="Use fedplt or fedpmt") as error:
            make_method(method).full_plan(request)
        said.add(str(error.value))
    (advice,) = said  # comparisons say it once for all methods
    assert str(fact.value) in advice
    assert ("leave out model.always" in advice) == bool(always)


def test_an_example_that_does_not_fit_is_a_fact():
    from fedplt.cutting.find_layers import example_model

    with pytest.raises(ExampleError, match=r"'fcn' does not take inputs of shape \[3\]: "):
        example_model("fcn", shape=(3,))
    with pytest.raises(ExampleError, match=r"the shape of an input of 'torch\.nn:Linear'"):
        example_model("torch.nn:Linear", {"in_features": 3, "out_features": 2})
    assert torch.is_tensor(example_model("fcn")[1])
