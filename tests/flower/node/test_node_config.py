"""``node.toml``: what a node's owner says about it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedplt.configuration import parse_config
from fedplt.errors import ConfigError
from fedplt.federation import job_from_config
from fedplt_flower.node.node_config import load_node, node_data, node_model

pytestmark = pytest.mark.slow

NODE = """
name = "n2"
client = 1
num_clients = 3

[data]
name = "tests.support.tiny:data"
alpha = 0.5
seed = 7

[model]
name = "tests.support.tiny:model"
"""


def write(tmp_path, text: str):
    path = tmp_path / "node.toml"
    path.write_text(text)
    return path


def test_paths_are_relative_to_the_file(tmp_path, monkeypatch):
    path = write(tmp_path, 'state = "kept"\nlimits = "/etc/limits.toml"\n' + NODE)
    node = load_node(path)
    assert node.state == str(tmp_path / "kept")
    assert node.limits == "/etc/limits.toml"
    assert node.code == str(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert load_node("node.toml") == node


def test_a_node_takes_the_part_that_the_simulator_gives_its_client(tmp_path):
    config = parse_config(
        {
            "seed": 7,
            "data": {"name": "tests.support.tiny:data", "alpha": 0.5},
            "model": {"name": "tests.support.tiny:model"},
            "clients": {"num_clients": 3},
        }
    )
    job = job_from_config(config)
    parts = []
    for client in range(3):
        text = NODE.replace("client = 1", f"client = {client}", 1)
        mine = node_data(load_node(write(tmp_path, text))).train
        parts.append(len(mine))
        inputs, targets = mine.batch(torch.arange(len(mine)))
        expected = job.samples.batch(torch.tensor(list(job.examples(client))))
        assert torch.equal(inputs, expected[0])
        assert torch.equal(targets, expected[1])
    assert parts == job.num_examples.tolist()
    assert len(np.unique(parts)) > 1


def test_data_of_the_nodes_own_is_not_split(tmp_path):
    (tmp_path / "own_data_of_a_node.py").write_text(
        "from tests.support.jobs import blob_data as load\nfrom torch.nn.functional import mse_loss"
    )
    text = NODE.replace("tests.support.tiny:data", "own_data_of_a_node:load")
    text = text.replace("alpha = 0.5\nseed = 7", "whole = true")
    node = load_node(write(tmp_path, text + '[task]\nloss = "own_data_of_a_node:mse_loss"'))
    whole = node_data(node).train
    split = node_data(load_node(write(tmp_path, text.replace("whole = true", "")))).train
    assert len(whole) > len(split)
    assert node.task.task().loss is torch.nn.functional.mse_loss
    assert isinstance(node_model(node), torch.nn.Module)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("client = 1", "client = 3"), ["client is 3", "0 to 2"]),
        (("client = 1", ""), ["client: this key is missing"]),
        (("client = 1", "client = -1"), ["greater than or equal to 0", "line 3"]),
        (("client = 1", 'client = "1"'), ["client", "line 3"]),
        (("alpha = 0.5", "whole = true\nalpha = 0.5"), ["whole = true does not use alpha, seed"]),
        (("alpha =", "alhpa ="), ["data.alhpa: there is no such key", "'alpha'", "line 8"]),
        (("[model]", "[modle]"), ["modle: there is no such key", "'model'"]),
        (("[model]", '[task]\nlos = "cross"\n[model]'), ["task.los", "'loss'"]),
        (("[model]", "[model"), ["not valid TOML"]),
        (
            ('"tests.support.tiny:data"\nalpha = 0.5\nseed = 7', '"cifar10"\nwhole = true'),
            ["all of 'cifar10'"],
        ),
    ],
)
def test_mistakes(tmp_path, change, expected):
    path = write(tmp_path, NODE.replace(*change, 1))
    with pytest.raises(ConfigError) as caught:
        load_node(path)
    assert all(part in str(caught.value) for part in [*expected, str(path)])


def test_a_missing_file(tmp_path):
    with pytest.raises(ConfigError, match=r"node.toml cannot be read: No such file"):
        load_node(tmp_path / "node.toml")


def test_data_that_cannot_be_loaded(tmp_path):
    text = NODE.replace("tests.support.tiny:data", "tests.support.tiny:fails")
    with pytest.raises(ConfigError, match="no such disk"):
        node_data(load_node(write(tmp_path, text)))
    text = NODE.replace("tests.support.tiny:data", "no.such.module:data")
    with pytest.raises(ConfigError, match="cannot be imported"):
        node_data(load_node(write(tmp_path, text)))
