"""Text that every Python brings along: the help topics of its own documentation.

Characters are tokens, and the task is to predict the next one. The text differs a little between
versions of Python, and so do results.
"""

from __future__ import annotations

from pydoc_data.topics import topics

import numpy as np
import torch

from fedplt.data.samples import TensorSamples
from fedplt.data.training_data import TrainingData

CONTEXT = 64
VALIDATION_EVERY = 10
"""One window of this many is for validation."""


def python_topics() -> TrainingData:
    """Windows of 64 ASCII characters, each with the 64 that follow one place later."""
    text = "\n\n".join(topics[name] for name in sorted(topics))
    characters = np.frombuffer(text.encode("ascii", "replace"), dtype=np.uint8).astype(np.int64)
    number = (len(characters) - 1) // CONTEXT
    inputs = torch.from_numpy(characters[: number * CONTEXT].reshape(number, CONTEXT).copy())
    targets = torch.from_numpy(characters[1 : number * CONTEXT + 1].reshape(number, CONTEXT).copy())
    held_out = torch.arange(number) % VALIDATION_EVERY == 0
    return TrainingData(
        TensorSamples(inputs[~held_out], targets[~held_out]),
        TensorSamples(inputs[held_out], targets[held_out]),
    )
