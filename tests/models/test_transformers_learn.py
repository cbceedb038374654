"""The built-in transformers learn with FedPLT in the simulator."""

from __future__ import annotations

import pytest
import torch

import fedplt
from fedplt.data.samples import TensorSamples
from fedplt.data.text import CONTEXT, python_topics
from fedplt.models import TextTransformer, VisionTransformer

pytestmark = pytest.mark.slow

RATIOS = [1.0, 0.5, 0.2, 0.2]


def test_vision_transformer_learns_where_the_light_is():
    """Four classes: the bright quarter of a noisy image."""
    random = torch.Generator().manual_seed(1)
    labels = torch.randint(0, 4, (800,), generator=random)
    images = 0.5 * torch.randn(800, 1, 16, 16, generator=random)
    for index, label in enumerate(labels.tolist()):
        y, x = divmod(label, 2)
        images[index, :, 8 * y : 8 * y + 8, 8 * x : 8 * x + 8] += 0.5
    torch.manual_seed(0)
    model = VisionTransformer(
        image_size=16, patch_size=4, num_channels=1, width=16, depth=1, num_heads=2, num_classes=4
    )
    history = fedplt.train(
        model,
        train_data=(images[:600], labels[:600]),
        validation_data=(images[600:], labels[600:]),
        ratios=RATIOS,
        split="iid",
        rounds=8,
        training={"optimizer": "adamw", "learning_rate": 0.01, "batch_size": 32},
    )
    assert history.scores[-1] > 0.6  # by chance: 0.25


def test_text_transformer_learns_more_than_the_most_frequent_character():
    data = python_topics()
    inputs, targets = data.train.batch(torch.arange(800))
    validation = data.validation.batch(torch.arange(200))
    assert inputs.shape == targets.shape == (800, CONTEXT)
    assert torch.equal(inputs[0, 1:], targets[0, :-1])
    most_frequent = float(torch.bincount(validation[1].flatten()).max() / validation[1].numel())
    torch.manual_seed(0)
    history = fedplt.train(
        TextTransformer(width=32, depth=1, num_heads=2),
        train_data=TensorSamples(inputs, targets),
        validation_data=TensorSamples(*validation),
        ratios=RATIOS,
        split="iid",
        rounds=6,
        training={"optimizer": "adamw", "learning_rate": 0.01, "batch_size": 16},
    )
    assert history.scores[-1] > most_frequent + 0.04
    assert history.scores[-1] > 0.2  # by chance: 1 in 128
