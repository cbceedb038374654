"""Headers of foreign messages: bounded before they are parsed, and read up to the first error."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from fedplt.errors import UpdateError
from fedplt_flower.messages import EvaluateAnswer
from fedplt_flower.records import dump_header, load_header

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(alphabet="ab"), values, max_size=3))
def test_headers_come_back(header):
    assert load_header(dump_header(header)) == header


@pytest.mark.parametrize("before", ["", "]" * 5000, "}]" * 5000])
def test_deep_headers_are_refused(before):
    """Closing brackets in a text do not count against those that are opened after it."""
    text = f'{{"a": "{before}", "b": {"[" * 900}{"]" * 900}}}'
    with pytest.raises(UpdateError, match="recursion limit"):
        load_header(text)


@pytest.mark.parametrize("field", ["sums", "label_counts", "label_scores"])
def test_a_long_list_of_wrong_values_is_one_error(field):
    """A header of 2 MB has room for 400,000 of them; each as an error takes a kilobyte."""
    good = {"client": 0, "round": 0, "num_examples": 1, "loss": 0.0, "count": 1}
    good |= {"sums": [1.0], "label_counts": [1], "label_scores": [1.0]}
    EvaluateAnswer.model_validate(good)
    with pytest.raises(ValidationError) as caught:
        EvaluateAnswer.model_validate({**good, field: ["x"] * 1000})
    assert caught.value.error_count() == 1
