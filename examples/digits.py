"""A small data set that comes with scikit-learn."""

import torch
from sklearn.datasets import load_digits


def digits():
    """1,797 scanned digits, 8 x 8 pixels; every fourth is for validation."""
    images, labels = load_digits(return_X_y=True)
    inputs, targets = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
    held_out = torch.arange(len(targets)) % 4 == 0
    return (inputs[~held_out], targets[~held_out]), (inputs[held_out], targets[held_out])
