"""Answers that a hostile node may send: honest ones with any part changed, as Hypothesis draws."""

from __future__ import annotations

import copy
import io
import json

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from hypothesis import strategies as st

from tests.support import flower_identity  # noqa: F401 (messages need one)

ODD = [
    None, True, "", "abc", "1", "\x1b[2J\nround 9: forged", "\ud800", "\u202e", [], {}, [[]],
    [None], {"a": 5}, -1, -0.5, 0, 10**9, 10**18, 10**30, 10**400, 2**63, float("nan"),
    float("inf"), -float("inf"), 1e300, -1e300, 1e-320, [1e300], [10**30], [-1], [float("nan")],
    ["x"], [1] * 3000, [[1.0]], [0.0] * 50, "9" * 5000, {"num-examples": 10**30}, {"eval_acc": "a"},
    {"eval_acc": None, "num-examples": 3}, {"eval_acc": [1], "num-examples": 3},
    {"eval_acc": 1e300, "num-examples": 10**9}, {"loss": float("inf"), "num-examples": 1},
]  # fmt: skip
TEXTS = [
    "", "null", "5", "[]", "{", '{"a":' * 5000, "[" * 100_000, "[1," * 5000, "NaN", '"x"',
    '{"client":' + "9" * 5000 + "}", "{}", '{"refused": "\\u001b[31m\\n' + "x" * 10_000 + '"}',
    '{"refused": null}', '{"refused": {"a": []}}', '{"metrics": 5}', '{"metrics": [1]}',
    '{"x":"' + "x" * 3_000_000 + '"}', "[" + "1," * 1_500_000 + "1]", '{"a\\ud800": 1}',
]  # fmt: skip


def odd_values():
    numbers = st.floats() | st.integers(-(2**70), 2**70)
    return st.sampled_from(ODD) | numbers | st.text(max_size=20) | st.lists(numbers, max_size=4)


@st.composite
def odd_headers(draw, header):
    """An honest header with some fields changed, left out or added; or another text."""
    if draw(st.integers(0, 3)) == 0:
        return draw(st.sampled_from(TEXTS))
    header = json.loads(json.dumps(header))
    for _ in range(draw(st.integers(1, 3))):
        name = draw(st.sampled_from([*header, "more"]))
        value = copy.deepcopy(draw(odd_values()))
        inside = header.get(name)
        if isinstance(inside, dict) and inside and draw(st.booleans()):
            inside[draw(st.sampled_from([*inside]))] = value
        elif isinstance(inside, list) and inside and draw(st.booleans()):
            inside[draw(st.integers(0, len(inside) - 1))] = value
        elif draw(st.integers(0, 4)) == 0:
            header.pop(name, None)
            header = header or {"more": value}
        else:
            header[name] = value
    return json.dumps(header)


def npy(array, **options):
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


def npz(array):
    file = io.BytesIO()
    np.savez(file, update=array)
    return file.getvalue()


@st.composite
def odd_arrays(draw, values):
    """Arrays under the names that an answer has, and others."""
    number, good = len(values), npy(values)
    place = draw(st.integers(0, max(0, len(good) - 1)))
    changed = values.copy()
    odd = st.floats(width=32) if values.dtype == np.float32 else st.integers(0, 255)
    changed[draw(st.integers(0, number - 1))] = draw(odd)
    data = draw(
        st.sampled_from(
            [
                npz(values), npz(np.array([{"a": 1}], dtype=object)), good[:place], good + b"\0",
                good[:place] + b"\xff" + good[place + 1 :], b"", b"PK\x03\x04", b"\x80\x04N.",
                b"\x93NUMPY\x01\x00\xff\xff", b"\x93NUMPY\x02\x00\xff\xff\xff\xff",
                npy(np.array([{"a": 1}], dtype=object)), npy(values.astype(np.float64)),
                npy(values.astype(">f4")), npy(values[None]), npy(changed), npy(1e30 * values),
                npy(values.view(np.uint8)), npy(values.astype(np.int8)),
                npy(-values), npy(np.zeros(0, np.float32)),
                good.replace(str(number).encode(), b"9" * len(str(number))),
            ]
        )
        | st.binary(max_size=300)
    )  # fmt: skip
    kind = draw(
        st.sampled_from(
            [str(values.dtype)] * 6 + ["float32", "uint8", "float64", "object", "x", ""]
        )
    )
    shape = draw(st.sampled_from([(number,)] * 6 + [(), (-1,), (2**31 - 1,), (number, 1), (0,)]))
    stype = draw(st.sampled_from(["numpy.ndarray"] * 6 + ["pickle", ""]))
    name = draw(st.sampled_from(["update"] * 6 + ["", "more", "\n"]))
    arrays = {name: Array(dtype=kind, shape=shape, stype=stype, data=data)}
    if draw(st.integers(0, 5)) == 0:
        extra = draw(st.sampled_from([1, 20]))
        arrays |= {f"n{i}": Array(values) for i in range(extra)}
    return ArrayRecord(arrays)


@st.composite
def odd_messages(draw, content):
    """A message like ``content``, which an honest node sent, with something changed."""
    if draw(st.integers(0, 15)) == 0:
        return error_message(draw(st.sampled_from(["\x1b[2J\n" + "x" * 9999, ""])))
    records = dict(content.items())
    part = draw(st.sampled_from([*records, "none"]))
    if part == "fedplt":
        header = json.loads(records[part]["header"])
        text = draw(odd_headers(header))
        value = draw(st.sampled_from([text] * 20 + [5, b"x", [1, 2], True]))
        records[part] = ConfigRecord({"header": value})
    elif part == "numbers":
        records[part] = draw(odd_arrays(np.array(content[part]["update"].numpy())))
    elif part == "metrics":
        values = st.floats() | st.integers(-(2**63), 2**63 - 1) | st.lists(st.floats(), max_size=3)
        names = st.sampled_from([*content[part], "loss", "accuracy", "\n", ""])
        odd = draw(st.dictionaries(names, values, max_size=4))
        records[part] = MetricRecord({**dict(content[part]), **odd})
        if draw(st.integers(0, 2)) == 0:
            records = {"fedplt": ConfigRecord({"header": draw(odd_headers({"metrics": odd}))})}
    else:
        records.pop(draw(st.sampled_from([*records])))
    return message_of(RecordDict(records))


def message_of(content):
    return Message(content, 7, "train", ttl=60.0)


def error_message(reason):
    order = message_of(RecordDict())
    order.metadata._message_id = "one"
    return Message(Error(code=0, reason=reason), reply_to=order)
