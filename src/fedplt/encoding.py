r"""How an array of values is sent: as float32, float16, or integers in blocks with a scale each.

An integer encoding with :math:`b` bits cuts the array into blocks of :data:`BLOCK` values. A block
:math:`x` is sent as one float32 scale and a code per value,

.. math:: s = \max_i |x_i| / (2^{b-1} - 1), \qquad c_i = \operatorname{round}(x_i / s),

and is read as :math:`s\,c_i`, so a value is off by at most :math:`s / 2`. With *error feedback* the
sender adds that difference to the next message (:func:`encode_with_feedback`), and nothing is lost.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedplt.errors import UpdateError

Encoding = Literal["float32", "float16", "int8", "int4"]
"""``float32`` is exact."""
BITS: dict[Encoding, int] = {"float32": 32, "float16": 16, "int8": 8, "int4": 4}
BLOCK = 128
"""Values that share a scale."""
Values = NDArray[np.float32]


def encoded_size(num_values: int, encoding: Encoding) -> int:
    """Bytes of an encoded array.

    >>> [encoded_size(1000, encoding) for encoding in BITS]
    [4000, 2000, 1032, 532]
    """
    size = -(-num_values * BITS[encoding] // 8)
    return size + 4 * _num_blocks(num_values) if _is_integer(encoding) else size


def encode(values: Values, encoding: Encoding) -> bytes:
    """The array as bytes. What is not finite is not finite, or the whole block is not, when read.

    >>> data = encode(np.array([0.0, 0.6, -1.0], np.float32), "int4")
    >>> decode(data, 3, "int4")
    array([ 0.        ,  0.5714286, -1.        ], dtype=float32)
    """
    if not _is_integer(encoding):
        with np.errstate(over="ignore"):  # becomes infinite, and is refused by the receiver
            return values.astype(_dtype(encoding)).tobytes()
    blocks = _blocks(values)
    largest = 2 ** (BITS[encoding] - 1) - 1
    scales = np.abs(blocks).max(axis=1, initial=0.0) / np.float32(largest)  # (blocks,)
    usable = (scales > 0) & np.isfinite(scales)
    with np.errstate(invalid="ignore"):
        codes = np.rint(blocks / np.where(usable, scales, 1)[:, None])
    codes[~usable] = 0
    flat = np.clip(codes, -largest, largest).astype(np.int8).reshape(-1)[: len(values)]
    return scales.astype("<f4").tobytes() + (flat if encoding == "int8" else _pack(flat)).tobytes()


def decode(data: Any, num_values: int, encoding: Encoding) -> Values:
    """The values of an encoded array; bytes of another length are refused."""
    if len(data) != encoded_size(num_values, encoding):
        raise UpdateError(
            f"{num_values} values as {encoding} take {encoded_size(num_values, encoding)} bytes; "
            f"{len(data)} came."
        )
    if not _is_integer(encoding):
        return np.frombuffer(data, _dtype(encoding)).astype(np.float32)
    number = _num_blocks(num_values)
    scales = np.frombuffer(data, "<f4", count=number).astype(np.float32)
    codes = np.frombuffer(data, np.int8, offset=4 * number)
    codes = codes if encoding == "int8" else _unpack(codes)[:num_values]
    blocks = _blocks(codes.astype(np.float32))
    with np.errstate(invalid="ignore", over="ignore"):
        return np.ascontiguousarray((blocks * scales[:, None]).reshape(-1)[:num_values])


def encode_with_feedback(
    values: Values, residual: Values | None, encoding: Encoding
) -> tuple[bytes, Values, Values]:
    r"""Encode :math:`U + e`; return the bytes, what the receiver reads, and the next :math:`e`.

    :math:`e` is what earlier messages lost; None is zero.
    """
    wanted = values if residual is None else values + residual
    data = encode(wanted, encoding)
    read = decode(data, len(values), encoding)
    return data, read, wanted - read


def _is_integer(encoding: Encoding) -> bool:
    return encoding.startswith("int")


def _dtype(encoding: Encoding) -> str:
    return f"<f{BITS[encoding] // 8}"


def _num_blocks(num_values: int) -> int:
    return -(-num_values // BLOCK)


def _blocks(values: Values) -> Values:
    """(blocks, BLOCK), the last one filled up with zeros."""
    return np.pad(values, (0, -len(values) % BLOCK)).reshape(-1, BLOCK)


def _pack(codes: NDArray[np.int8]) -> NDArray[np.uint8]:
    """Two codes of 4 bits in a byte, the first one in the low bits."""
    nibbles = np.pad(codes, (0, len(codes) % 2)).view(np.uint8) & 0x0F
    return nibbles[0::2] | (nibbles[1::2] << 4)


def _unpack(packed: NDArray[np.int8]) -> NDArray[np.int8]:
    low = (packed << 4).view(np.int8) >> 4
    return np.stack([low, packed >> 4], axis=1).reshape(-1)
