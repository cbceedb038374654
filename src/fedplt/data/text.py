"""Text for next-character prediction: the help topics of Python's documentation.

The text, and so the results, differ a little between versions of Python.
"""

from __future__ import annotations

from pydoc_data.topics import topics

import numpy as np
import torch

from fedplt.data.samples import TensorSamples
from fedplt.data.training_data import TrainingData

CONTEXT = 64


def python_topics() -> TrainingData:
    """Windows of 64 ASCII characters; the target of each character is the next one."""
    text = "\n\n".join(topics[name] for name in sorted(topics))
    characters = np.frombuffer(text.encode("ascii", "replace"), dtype=np.uint8).astype(np.int64)
    number = (len(characters) - 1) // CONTEXT
    inputs = torch.from_numpy(characters[: number * CONTEXT].reshape(number, CONTEXT).copy())
    targets = torch.from_numpy(characters[1 : number * CONTEXT + 1].reshape(number, CONTEXT).copy())
    held_out = torch.arange(number) % 10 == 0  # for validation
    return TrainingData(
        TensorSamples(inputs[~held_out], targets[~held_out]),
        TensorSamples(inputs[held_out], targets[held_out]),
    )
