"""Encodings: sizes, literal bytes, error bounds, refused bytes, error feedback."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedplt.errors import UpdateError
from fedplt.planning.encoding import BITS, BLOCK, Packing, decode, encode, encoded_size

ENCODINGS = list(BITS)
finite = st.floats(-(2**60), 2**60, width=32)
some_values = st.integers(0, 3 * BLOCK).flatmap(lambda n: arrays(np.float32, n, elements=finite))


@given(some_values, st.sampled_from(ENCODINGS))
def test_the_size_is_known_before(values, encoding):
    assert len(encode(values, encoding)) == encoded_size(len(values), encoding)


def test_literal_bytes():
    values = np.array([7.0, -7.0, 1.4, 0.0, -3.0], np.float32)
    data = encode(values, "int4")
    assert data[:4] == np.float32(1.0).tobytes()
    assert data[4:] == bytes([0x97, 0x01, 0x0D])  # two codes a byte, the first in the low bits
    assert decode(data, 5, "int4").tolist() == [7.0, -7.0, 1.0, 0.0, -3.0]


@given(some_values)
def test_float32_is_exact(values):
    assert decode(encode(values, "float32"), len(values), "float32").tobytes() == values.tobytes()


@given(some_values, st.sampled_from(["int8", "int4"]))
def test_a_value_is_off_by_half_a_step_of_its_block(values, encoding):
    read = decode(encode(values, encoding), len(values), encoding)
    assert read.dtype == np.float32 and read.flags.c_contiguous
    largest = 2 ** (BITS[encoding] - 1) - 1
    for start in range(0, len(values), BLOCK):
        block = slice(start, start + BLOCK)
        step = np.abs(values[block]).max() / largest
        tiny = np.finfo(np.float32).tiny  # below, a scale may be 0: then all of a block is 0
        assert np.abs(read[block] - values[block]).max() <= 0.5001 * step + largest * tiny


@given(some_values, st.sampled_from(["int8", "int4"]))
def test_what_was_read_is_sent_unchanged(values, encoding):
    """A memory that is stored encoded does not wear off by being stored again."""
    read = decode(encode(values, encoding), len(values), encoding)
    again = decode(encode(read, encoding), len(values), encoding)
    np.testing.assert_allclose(again, read, rtol=3e-7)


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_does_not_become_finite(encoding, bad):
    values = np.ones(200, np.float32)
    values[3] = bad
    read = decode(encode(values, encoding), 200, encoding)
    assert not np.isfinite(read[3])
    assert np.isfinite(read[BLOCK:]).all()


def test_float16_overflow_is_not_finite():
    assert np.isinf(decode(encode(np.array([1e6], np.float32), "float16"), 1, "float16")).all()


@pytest.mark.parametrize("encoding", ENCODINGS)
@given(data=st.binary(max_size=300), number=st.integers(0, 300))
def test_any_bytes_are_read_or_refused(encoding, data, number):
    if len(data) == encoded_size(number, encoding):
        assert decode(data, number, encoding).shape == (number,)
    else:
        with pytest.raises(UpdateError, match=str(len(data))):
            decode(data, number, encoding)


@given(some_values.filter(len))
def test_two_bits_lose_a_part_of_the_energy_of_a_block(values):
    """What is left over is smaller than what was there, so error feedback converges."""
    values = values[:BLOCK].astype(np.float64)
    lost = values - decode(encode(values.astype(np.float32), "int2"), len(values), "int2")
    energy = float(values @ values)
    assert float(lost @ lost) <= (1 - 1 / (10 * BLOCK)) * energy + 1e-30


def test_two_bits_of_normal_values_lose_an_eighth():
    values = np.random.default_rng(0).normal(size=100 * BLOCK).astype(np.float32)
    lost = values - decode(encode(values, "int2"), len(values), "int2")
    assert 0.10 < float(lost @ lost) / float(values @ values) < 0.13


@pytest.mark.parametrize("encoding", ["float16", "int8", "int4", "int2"])
def test_error_feedback_loses_nothing_for_good(encoding):
    """The sum of what was read stays within one message's error of the sum of what was sent."""
    random, residual = np.random.default_rng(0), np.zeros(300, np.float32)
    sent, received = np.zeros(300), np.zeros(300)
    for _ in range(50):
        values = random.normal(size=300).astype(np.float32)
        read = decode(encode(values + residual, encoding), 300, encoding)
        residual = values + residual - read
        sent, received = sent + values, received + read
        np.testing.assert_allclose(sent, received + residual, atol=1e-4)
    assert np.abs(residual).max() < 3


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_running_statistics_are_exact(encoding):
    values = np.random.default_rng(0).normal(size=400).astype(np.float32)
    packing = Packing(400, ((0, 150), (200, 390)), encoding)
    data = packing.encode(values)
    assert len(data) == packing.size == encoded_size(340, encoding) + 4 * 60
    read = packing.decode(data)
    assert (read[150:200] == values[150:200]).all() and (read[390:] == values[390:]).all()
    together = np.concatenate([values[:150], values[200:390]])
    assert (read[:150] == decode(encode(together, encoding), 340, encoding)[:150]).all()
    with pytest.raises(UpdateError, match=str(len(data) - 1)):
        packing.decode(data[:-1])
