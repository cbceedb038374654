"""Updates as bytes, and the validation of what clients send."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors.numpy import load

from fedplt import ClientUpdate, UpdateError, cut, make_plan, train_only
from fedplt.client import Origin
from fedplt.models import MODELS, ResNet8, fcn
from fedplt.planning import REPORT_BYTES, upload_bytes
from fedplt.server.validation import validate


def update(values, num_examples=5, norm=1.0):
    return ClientUpdate(np.asarray(values, dtype=np.float32), num_examples, norm, {"loss": 0.5})


def test_survives_bytes():
    sent = update([1.0, -2.0, 3.5])
    got = ClientUpdate.from_bytes(sent.to_bytes())
    assert np.array_equal(got.values, sent.values)
    assert (got.num_examples, got.norm, got.metrics) == (5, 1.0, {"loss": 0.5})
    assert len(sent.to_bytes()) == sent.num_bytes


@pytest.mark.parametrize("largest", [False, True])
def test_header_has_one_length(largest):
    number, norm = (10**12, -1.2345678901234567e-308) if largest else (1, 0.0)
    origin = Origin(2**63 - 1, 2**63 - 1, "0123456789abcdef") if largest else None
    sent = ClientUpdate(np.zeros(3, np.float32), number, norm, {"loss": norm}, origin)
    assert len(sent.to_bytes()) == sent.num_bytes == 72 + 12 + REPORT_BYTES
    assert load(sent.to_bytes())["update"].tolist() == [0, 0, 0]


@pytest.mark.parametrize("ratio", [1.0, 0.29, 0.06])
@pytest.mark.parametrize("name", ["fcn", "resnet8"])
def test_size_is_the_trained_share_of_the_model(name, ratio):
    model = {"fcn": fcn, "resnet8": ResNet8}[name]()
    plan = make_plan(cut(model, groups=MODELS[name].groups), [ratio] * 3)
    for client in range(3):
        with train_only(model, plan.assignment(client)) as part:
            pass
        size = len(part.update().to_bytes())
        assert size == upload_bytes(plan.assignment(client)) + REPORT_BYTES
        numbers = 4 * plan.achieved_ratios[client] * plan.layers.size
        assert numbers < size <= 1.02 * numbers + 420  # running statistics; what describes it


HEADER = {"format": 1, "num_examples": 5, "norm": 1.0, "metrics": {}}


def packed(header, array=None, numbers=b"\0" * 12):
    """An update with any header, as bytes."""
    array = {"dtype": "F32", "shape": [3], "data_offsets": [0, 12]} if array is None else array
    text = header if isinstance(header, str) else json.dumps(header)
    outer = json.dumps({"__metadata__": {"fedplt": text}, "update": array}).encode()
    return len(outer).to_bytes(8, "little") + outer + numbers


def raw(outer):
    return len(outer).to_bytes(8, "little") + outer


ARRAY = {"dtype": "F32", "shape": [3], "data_offsets": [0, 12]}
MALFORMED = {
    "nothing": b"",
    "nonsense": b"nonsense" * 10,
    "pickle": b"\x80\x04K\x01.",
    "no header": (2**63).to_bytes(8, "little") + b"{}",
    "cut off": packed(HEADER)[:-1],
    "more": packed(HEADER) + b"0",
    "other bytes": raw(b"\xff\xfe{}"),
    "a list": raw(b"[]"),
    "brackets": packed("[" * 100_000),
    "braces": packed('{"a":' * 100_000),
    "outer brackets": raw(b"[" * 900_000),
    "a long header": raw(b" " * 2_000_000),
    "4,000 digits": packed(json.dumps(HEADER).replace("5", "9" * 4000)),
    "100,000 digits": packed(json.dumps(HEADER).replace("5", "9" * 100_000)),
    "infinite examples": packed({**HEADER, "num_examples": float("inf")}),
    "half an example": packed({**HEADER, "num_examples": 0.5}),
    "examples in words": packed({**HEADER, "num_examples": "5"}),
    "true examples": packed({**HEADER, "num_examples": True}),
    "no examples": packed({**HEADER, "num_examples": 0}),
    "norm in words": packed({**HEADER, "norm": "1"}),
    "metrics in a list": packed({**HEADER, "metrics": [1]}),
    "metrics in words": packed({**HEADER, "metrics": {"loss": "low"}}),
    "another key": packed({**HEADER, "code": "import os"}),
    "a missing key": packed({"format": 1}),
    "another origin": packed({**HEADER, "origin": {"client": -1, "round": 0, "plan": ""}}),
    "negative shape": packed(HEADER, {**ARRAY, "shape": [-3]}),
    "two axes": packed(HEADER, {**ARRAY, "shape": [3, 1]}),
    "a huge shape": packed(HEADER, {**ARRAY, "shape": [2**62]}),
    "other offsets": packed(HEADER, {**ARRAY, "data_offsets": [4, 12]}),
    "negative offsets": packed(HEADER, {**ARRAY, "data_offsets": [12, 0]}),
    "doubles": packed(HEADER, {**ARRAY, "dtype": "F64"}),
    "strides": packed(HEADER, {**ARRAY, "strides": [-4]}),
    "no array": raw(json.dumps({"__metadata__": {"fedplt": json.dumps(HEADER)}}).encode()),
    "text": "not bytes",
    "none": None,
}


@pytest.mark.parametrize("name", MALFORMED)
def test_refuses_bytes_that_are_no_update(name):
    with pytest.raises(UpdateError) as refused:
        ClientUpdate.from_bytes(MALFORMED[name])
    assert len(str(refused.value)) < 400


def test_reads_what_safetensors_writes():
    assert ClientUpdate.from_bytes(packed(HEADER)).values.tolist() == [0, 0, 0]
    with pytest.raises(UpdateError, match="format 2; this version reads 1"):
        ClientUpdate.from_bytes(packed({**HEADER, "format": 2}))
    empty = ClientUpdate.from_bytes(update([]).to_bytes())
    assert len(empty.values) == 0
    diverged = ClientUpdate.from_bytes(update([np.nan], norm=np.inf).to_bytes())
    assert np.isinf(diverged.norm)  # refused by validate, in words about training


def test_an_update_carries_its_origin():
    linear = torch.nn.Linear(1, 4)
    plan = make_plan(cut(linear), [0.5])
    with train_only(linear, plan.assignment(0)) as part:
        pass
    expected = Origin(0, 7, plan.fingerprint)
    got = ClientUpdate.from_bytes(part.update(5, origin=expected).to_bytes())
    assert got.origin == expected
    validate(got, plan.assignment(0), origin=expected, num_examples=5)
    others = [Origin(1, 7, plan.fingerprint), Origin(0, 6, plan.fingerprint), Origin(0, 7, "x")]
    for other in others:
        with pytest.raises(UpdateError, match="it comes from"):
            validate(got, plan.assignment(0), origin=other)
    with pytest.raises(UpdateError, match="it comes from None"):
        validate(part.update(5), plan.assignment(0), origin=expected)
    with pytest.raises(UpdateError, match="claims 5 examples; the client has 4"):
        validate(got, plan.assignment(0), num_examples=4)


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
        (ClientUpdate(np.zeros(4, np.float32)[::-1], 1, 0.0), "one after another"),
        (ClientUpdate(np.zeros(4, ">f4"), 1, 0.0), ">f4"),
        (ClientUpdate([0.0] * 4, 1, 0.0), "a list"),
        (update([0] * 4, num_examples=True), "claims True"),
        (update([0] * 4, num_examples="many"), "claims str"),
        (update([0] * 4, num_examples=np.inf), "claims"),
        (update([0] * 4, num_examples=-(10**4000)), "claims int"),
        (update([0] * 4, norm="long"), "not finite"),
        (update([0] * 4, norm=10**4000), "not finite"),
    ]:
        with pytest.raises(UpdateError, match=reason):
            validate(wrong, assignment)
