"""A model's state as one flat array: views, copies, and values at some places."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedplt import CutError, cut
from fedplt.kernels.flat_state import add_at, bind_state, named_tensors, parts_of, put, take
from fedplt.planning import FlatIndex
from tests.support.layers import segments

SIZE = 24


def both_forms(mask):
    """The places where a mask is set, as segments and as positions."""
    where = np.flatnonzero(mask)
    found = segments(FlatIndex(positions=where))
    return FlatIndex(found), FlatIndex(positions=where)


def test_bound_state_and_model_are_the_same_memory():
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    expected = {k: v.clone() for k, v in model.state_dict().items()}
    layers = cut(model)
    flat = bind_state(model, layers)
    got = named_tensors(layers, flat)
    assert all(torch.equal(got[name], expected[name]) for name in got)
    flat.fill_(7)
    assert (model[0].weight == 7).all()
    assert (model[1].running_var == 7).all()
    with torch.no_grad():
        model[0].bias.zero_()
    assert (named_tensors(layers, flat)["0.bias"] == 0).all()


def test_a_view_of_a_bound_tensor_is_refused():
    model = nn.Sequential(nn.Linear(2, 3))
    model[0].first_row = model[0].weight.detach()[0]
    with pytest.raises(CutError, match=r"0\.first_row is a view of 0\.weight"):
        bind_state(model, cut(model))


@given(st.lists(st.booleans(), min_size=SIZE, max_size=SIZE))
def test_both_forms_of_places_name_the_same_values(mask):
    flat, expected = torch.arange(float(SIZE)), np.arange(float(SIZE))
    chosen = np.asarray(mask)
    for places in both_forms(mask):
        assert places.size == chosen.sum()
        np.testing.assert_array_equal(take(flat, places).numpy(), expected[chosen])
        parts = [part.numpy() for part in parts_of(flat, places)]
        np.testing.assert_array_equal(np.concatenate([[], *parts]), expected[chosen])


@given(st.lists(st.booleans(), min_size=SIZE, max_size=SIZE), st.floats(-2, 2, width=32))
def test_writing_and_adding_change_these_places_alone(mask, weight):
    chosen = np.asarray(mask)
    values = torch.linspace(-1, 1, int(chosen.sum()))
    for places in both_forms(mask):
        flat, expected = torch.ones(SIZE), np.ones(SIZE, dtype=np.float32)
        put(flat, places, values)
        expected[chosen] = values.numpy()
        np.testing.assert_array_equal(flat.numpy(), expected)
        add_at(flat, places, values, weight)
        expected[chosen] += np.float32(weight) * values.numpy()
        np.testing.assert_allclose(flat.numpy(), expected, rtol=1e-6, atol=1e-6)
