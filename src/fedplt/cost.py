"""What training costs: bytes as really sent, and computation by the paper's model.

The paper's model charges ``(alpha + beta * ratio) * steps * parameters`` per round: the whole
backward pass is said to scale with the ratio. A real backward pass also computes gradients of the
inputs, which do not (``docs/errata.md``, 2), so this is never called "FLOPs" without "paper's".
"""

from __future__ import annotations

import json

from fedplt.layers import Layers

FORWARD_FLOPS_PER_PARAMETER = 2
"""The paper's alpha, per example."""
BACKWARD_FLOPS_PER_PARAMETER = 4
"""The paper's beta, per example."""
BYTES_PER_NUMBER = 4


def paper_flops(num_parameters: int, ratio: float, num_examples: int) -> float:
    r"""The paper's :math:`(\alpha + \beta r)\,\tau P`, with :math:`\tau` counted in examples."""
    per_parameter = FORWARD_FLOPS_PER_PARAMETER + BACKWARD_FLOPS_PER_PARAMETER * ratio
    return per_parameter * num_parameters * num_examples


def download_bytes(layers: Layers) -> int:
    """Size of the whole model as one safetensors array."""
    return safetensors_bytes("model", layers.state_size)


def safetensors_bytes(name: str, numbers: int, metadata: dict[str, str] | None = None) -> int:
    """Size of one flat float32 array in safetensors, header and padding included."""
    size = numbers * BYTES_PER_NUMBER
    header: dict[str, object] = {"__metadata__": metadata} if metadata else {}
    header[name] = {"dtype": "F32", "shape": [numbers], "data_offsets": [0, size]}
    length = len(json.dumps(header, separators=(",", ":")).encode())
    return 8 + -(-length // 8) * 8 + size
