"""Updates as bytes, and the validation of what clients send."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedplt import ClientUpdate, UpdateError, cut, make_plan, train_only
from fedplt.models import MODELS, fcn, resnet8
from fedplt.server.validation import validate


def update(values, num_examples=5, norm=1.0):
    return ClientUpdate(np.asarray(values, dtype=np.float32), num_examples, norm, {"loss": 0.5})


def test_survives_bytes():
    sent = update([1.0, -2.0, 3.5])
    got = ClientUpdate.from_bytes(sent.to_bytes())
    assert np.array_equal(got.values, sent.values)
    assert (got.num_examples, got.norm, got.metrics) == (5, 1.0, {"loss": 0.5})
    assert len(sent.to_bytes()) == sent.num_bytes


@pytest.mark.parametrize("ratio", [1.0, 0.29, 0.06])
@pytest.mark.parametrize("name", ["fcn", "resnet8"])
def test_size_is_the_trained_share_of_the_model(name, ratio):
    model = {"fcn": fcn, "resnet8": resnet8}[name]()
    plan = make_plan(cut(model, groups=MODELS[name].groups), [ratio] * 3)
    for client in range(3):
        with train_only(model, plan.assignment(client)) as part:
            pass
        size = len(part.update().to_bytes())
        numbers = 4 * plan.achieved_ratios[client] * plan.layers.size
        assert numbers < size <= 1.02 * numbers + 200  # running statistics; what describes it


@pytest.mark.parametrize("data", [b"", b"nonsense" * 10, b"\x80\x04K\x01."])
def test_refuses_bytes_that_are_no_update(data):
    with pytest.raises(UpdateError, match="not a client update"):
        ClientUpdate.from_bytes(data)


def test_validation():
    assignment = make_plan(cut(torch.nn.Linear(1, 4)), [0.5]).assignment(0)  # 2 rows of 2 numbers
    validate(update([0, 1, 2, 3]), assignment)
    for wrong, reason in [
        (update([0, 1, 2]), "holds 3 numbers; its assignment has 4"),
        (update([0, 1, np.nan, 3]), "not finite"),
        (update([0, 1, np.inf, -np.inf]), "not finite"),
        (update([0, 1, 2, 3], norm=np.inf), "not finite"),
        (update([0, 1, 2, 3], num_examples=0), "at least 1"),
        (ClientUpdate(np.zeros(4), 1, 0.0), "float64"),
        (ClientUpdate(np.zeros((2, 2), np.float32), 1, 0.0), "2 dimensions"),
    ]:
        with pytest.raises(UpdateError, match=reason):
            validate(wrong, assignment)
