"""``fedplt cut``: a table people understand, and clear words where it cannot be made."""

from __future__ import annotations

import json

import pytest

ODD = """
import torch
from torch import nn

class Odd(nn.Module):
    def __init__(self, width=6):
        super().__init__()
        self.lstm, self.head, self.spare = nn.LSTM(4, width), nn.Linear(width, 2), nn.Linear(3, 3)
        self.scale = nn.Parameter(torch.ones(()))
    def forward(self, x):
        return self.head(self.lstm(x)[0]) * self.scale

def batch():
    return torch.randn(2, 5, 4)
"""


def test_a_newcomers_odd_model(fedplt, tmp_path, monkeypatch):
    (tmp_path / "odd.py").write_text(ODD)
    monkeypatch.chdir(tmp_path)
    done = fedplt("cut", "odd:Odd", "--example", "odd:batch", "--option", "width=8")
    assert done.returncode == 0, done.stderr
    assert "by hidden unit (gates together); its whole gradient is computed" in done.stdout
    assert "the example input does not use it" in done.stdout
    assert "spare.weight" in done.stdout.split("left out")[1]
    assert not done.stderr


def test_json_and_options(fedplt):
    done = fedplt(
        "cut", "cnn", "--never", "conv*", "--group", "all=fc*", "--max-sublayers", "2", "--json"
    )
    layers = json.loads(done.stdout)["layers"]
    assert [(layer["name"], layer["num_sublayers"]) for layer in layers] == [("all", 2)]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["fcn", "--shape", "5"], "Give one that fits with --shape or --example"),
        (["fcn", "--shape", "5,a"], "such as 3,32,32"),
        (["fcn", "--group", "a"], "joined by an equals sign"),
        (["fcn", "--fused", "fc1=3"], "not 3 equal blocks"),
        (["fcn", "--always", "fc9"], "Did you mean"),
        (["no_such:model"], "cannot be imported"),
    ],
)
def test_refusals(fedplt, arguments, words):
    done = fedplt("cut", *arguments)
    assert done.returncode == 2
    assert words in done.stderr


def test_memory_is_shown_counted_and_measured(fedplt):
    done = fedplt("cut", "cnn", "--memory", "--batch-size", "8", "--json")
    assert not done.stderr
    cases = json.loads(done.stdout)["memory"]
    assert [case["ratio"] for case in cases] == [1.0, 0.3, 0.06, 0.06]
    for case in cases:
        assert case["peak"] == pytest.approx(case["measured"], rel=0.02)
        assert sum(case["saved"].values()) == case["activations"]
    assert cases[3]["frozen_layers"] == 2
    assert set(cases[0]["saved"]) > {"conv1", "conv2"}
    assert not {"conv1", "conv2"} & set(cases[3]["saved"])


def test_memory_needs_an_input(fedplt):
    done = fedplt("cut", "fcn", "--option", "num_inputs=8", "--memory")
    assert done.returncode == 2
    assert "--memory needs an input" in done.stderr
