"""Fleets of clients for client sampling, drawn by Hypothesis."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

# Not so small that a test's own divisions lose digits.
NORMS = st.one_of(st.just(0.0), st.floats(1e-100, 1e3))


@st.composite
def fleets(draw, norms=NORMS, max_clients=30):
    """(update norms, numbers of examples, ratios, budget)"""
    number = draw(st.integers(1, max_clients))
    update_norms = draw(arrays(np.float64, number, elements=norms))
    examples = draw(arrays(np.int64, number, elements=st.integers(1, 1000)))
    ratios = draw(arrays(np.float64, number, elements=st.floats(0.01, 1)))
    budget = draw(st.floats(0.05, 1.2)) * float(ratios.sum())
    return update_norms, examples, ratios, budget
