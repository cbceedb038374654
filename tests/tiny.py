"""A model and data that configurations in the tests name by import path."""

from __future__ import annotations

from torch import nn

from tests.conftest import small_model
from tests.federation.jobs import blob_data


def model():
    return small_model()


class Loud(nn.Sequential):
    """Prints what looks like a message."""

    def forward(self, inputs):
        print('{"round": "hello"}', flush=True)
        return super().forward(inputs)


def loud_model():
    return Loud(small_model())


def fails():
    raise OSError("no such disk")


def data():
    return blob_data()
