"""Built-in models and models by import path."""

from __future__ import annotations

import pytest
import torch

from fedplt import ConfigError
from fedplt.models import MODELS, ResNet8, build_model


@pytest.mark.parametrize("name", MODELS)
def test_weights_depend_on_the_seed_alone(name):
    torch.manual_seed(123)
    before = torch.random.get_rng_state()
    one, two, other = (build_model(name, {}, seed) for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), before)
    pairs = list(zip(one.parameters(), two.parameters(), other.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b, _ in pairs)
    assert not all(torch.equal(a, c) for a, _, c in pairs)
    outputs = (2, 128, 64) if name == "text" else (2, 10)
    assert one(MODELS[name].example()).shape == outputs


@pytest.mark.parametrize("norm", ["batch", "group", "none"])
def test_resnet8_norms(norm):
    assert ResNet8(norm=norm)(torch.randn(2, 3, 32, 32)).shape == (2, 10)


def test_refusals():
    with pytest.raises(ConfigError, match="Did you mean 'fcn'"):
        build_model("fcnn", {}, 0)
    with pytest.raises(ConfigError, match="It takes: num_inputs, hidden, num_classes"):
        build_model("fcn", {"inputs": 3}, 0)
    with pytest.raises(ConfigError, match="cannot be imported"):
        build_model("no_such_package:build", {}, 0)
    with pytest.raises(ConfigError, match="part of Python itself"):
        build_model("builtins:dict", {}, 0)
    with pytest.raises(ConfigError, match="Did you mean 'batch'"):
        build_model("resnet8", {"norm": "bach"}, 0)


def test_import_paths():
    assert isinstance(build_model("torch.nn:Linear", {"in_features": 2, "out_features": 3}, 0),
                      torch.nn.Linear)  # fmt: skip
