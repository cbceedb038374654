r"""How an array of values is sent: as float32, float16, or integers in blocks with a scale each.

An integer encoding cuts the array into blocks of :data:`BLOCK` values. A block :math:`x` is sent as
one float32 scale :math:`s` and a code per value, and is read as :math:`s\,c_i`.

.. math:: \text{int8, int4:}\quad s = \max_i |x_i| / (2^{b-1} - 1), \quad
              c_i = \operatorname{round}(x_i / s)

.. math:: \text{int2:}\quad c_i \in \{-3, -1, 1, 3\} \text{ next to }
              2 x_i / \sqrt{\operatorname{mean}_j x_j^2}, \quad
              s = \textstyle\sum_i c_i x_i / \sum_i c_i^2

With int8 and int4 a value is off by at most :math:`s / 2`. With *error feedback* the sender adds
what a message lost to the next one, so that nothing is lost for good; int2 needs it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedplt.errors import UpdateError

Encoding = Literal["float32", "float16", "int8", "int4", "int2"]
"""``float32`` is exact."""
BITS: dict[Encoding, int] = {"float32": 32, "float16": 16, "int8": 8, "int4": 4, "int2": 2}
DIFFERENCES: tuple[Encoding, ...] = ("int4", "int2")
"""Encodings in which clients receive differences, not the model."""
BLOCK = 128
"""Values that share a scale."""
Values = NDArray[np.float32]


def encoded_size(num_values: int, encoding: Encoding) -> int:
    """Bytes of an encoded array.

    >>> [encoded_size(1000, encoding) for encoding in BITS]
    [4000, 2000, 1032, 532, 282]
    """
    size = -(-num_values * BITS[encoding] // 8)
    return size + 4 * _num_blocks(num_values) if _is_integer(encoding) else size


def encode(values: Values, encoding: Encoding) -> bytes:
    """The array as bytes. A value that is not finite is read as not finite, or its whole block is.

    >>> data = encode(np.array([0.0, 0.6, -1.0], np.float32), "int4")
    >>> decode(data, 3, "int4")
    array([ 0.        ,  0.5714286, -1.        ], dtype=float32)
    """
    if not _is_integer(encoding):
        with np.errstate(over="ignore"):  # becomes infinite, and is refused by the receiver
            return values.astype(_dtype(encoding)).tobytes()
    blocks, bits = _blocks(values), BITS[encoding]
    with np.errstate(invalid="ignore", over="ignore"):  # the scale of a bad block is not finite
        if bits == 2:
            sizes = np.minimum(BLOCK, len(values) - BLOCK * np.arange(len(blocks)))
            units = np.sqrt(np.square(blocks).sum(axis=1) / sizes.astype(np.float32)) / 2
        else:
            units = np.abs(blocks).max(axis=1, initial=0.0) / np.float32(2 ** (bits - 1) - 1)
        usable = (units > 0) & np.isfinite(units)
        scaled = blocks / np.where(usable, units, 1)[:, None]  # (blocks, BLOCK)
    scaled[~usable] = 0
    if bits == 2:
        codes = np.clip(2 * np.floor(scaled / 2) + 1, -3, 3)
        codes.reshape(-1)[len(values) :] = 0
        best = (np.where(usable[:, None], blocks, 0) * codes).sum(axis=1) / np.square(codes).sum(
            axis=1
        )
        scales = np.where(usable, best, units)
        codes = (codes + 3) / 2  # 0 to 3 stand for -3, -1, 1, 3
    else:
        scales, codes = units, np.rint(scaled)
    flat = codes.astype(np.int8).reshape(-1)[: len(values)]
    return bytes(scales.astype("<f4").tobytes() + _pack(flat, bits).tobytes())


def decode(data: Any, num_values: int, encoding: Encoding) -> Values:
    """The values of an encoded array; bytes of another length are refused."""
    _check_length(data, encoded_size(num_values, encoding), num_values, encoding)
    if not _is_integer(encoding):
        return np.frombuffer(data, _dtype(encoding)).astype(np.float32)
    number = _num_blocks(num_values)
    scales = np.frombuffer(data, "<f4", count=number).astype(np.float32)
    bits = BITS[encoding]
    codes = _unpack(np.frombuffer(data, np.uint8, offset=4 * number), bits)[:num_values]
    blocks = _blocks((2 * codes - 3 if bits == 2 else codes).astype(np.float32))
    with np.errstate(invalid="ignore", over="ignore"):
        return np.ascontiguousarray((blocks * scales[:, None]).reshape(-1)[:num_values])


@dataclass(frozen=True)
class Packing:
    """Encodes parameters, and running statistics beside them exactly.

    A variance that is off by the rounding error of its block could become negative.
    """

    num_values: int
    parameters: tuple[tuple[int, int], ...]
    """Ascending segments of the array that hold parameters; all else is sent as float32."""
    encoding: Encoding

    @property
    def num_parameters(self) -> int:
        return sum(stop - start for start, stop in self.parameters)

    @property
    def size(self) -> int:
        """Bytes of an encoded array."""
        number = self.num_parameters
        return encoded_size(number, self.encoding) + 4 * (self.num_values - number)

    def encode(self, values: Values) -> bytes:
        mask = self._mask()
        return encode(values[mask], self.encoding) + encode(values[~mask], "float32")

    def decode(self, data: Any) -> Values:
        _check_length(data, self.size, self.num_values, self.encoding)
        mask, number = self._mask(), self.num_parameters
        split = encoded_size(number, self.encoding)
        values = np.empty(self.num_values, np.float32)
        values[mask] = decode(data[:split], number, self.encoding)
        values[~mask] = decode(data[split:], self.num_values - number, "float32")
        return values

    def _mask(self) -> NDArray[np.bool_]:
        """Of the parameters."""
        mask = np.zeros(self.num_values, np.bool_)
        for start, stop in self.parameters:
            mask[start:stop] = True
        return mask


def _check_length(data: Any, size: int, num_values: int, encoding: Encoding) -> None:
    if len(data) != size:
        problem = f"{num_values} values as {encoding} take {size} bytes; {len(data)} came."
        raise UpdateError(problem)


def _is_integer(encoding: Encoding) -> bool:
    return encoding.startswith("int")


def _dtype(encoding: Encoding) -> str:
    return f"<f{BITS[encoding] // 8}"


def _num_blocks(num_values: int) -> int:
    return -(-num_values // BLOCK)


def _blocks(values: Values) -> Values:
    """(blocks, BLOCK), the last one filled up with zeros."""
    return np.pad(values, (0, -len(values) % BLOCK)).reshape(-1, BLOCK)


def _pack(codes: NDArray[np.int8], bits: int) -> NDArray[np.uint8]:
    """Codes of a few bits, the first one in the lowest bits of a byte."""
    each = 8 // bits
    parts = np.pad(codes, (0, -len(codes) % each)).view(np.uint8).reshape(-1, each)
    shifted = (parts & (2**bits - 1)) << np.arange(0, 8, bits, dtype=np.uint8)
    return np.asarray(np.bitwise_or.reduce(shifted, axis=1))


def _unpack(packed: NDArray[np.uint8], bits: int) -> NDArray[np.int8]:
    parts = packed[:, None] >> np.arange(0, 8, bits, dtype=np.uint8)
    codes: NDArray[np.int8] = (parts & (2**bits - 1)).astype(np.int8).reshape(-1)
    if bits == 4:  # two's complement
        codes[codes >= 8] -= 16
    return codes
