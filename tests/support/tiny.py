"""A configuration, and the models and data that it names by import path."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time

from torch import nn

from tests.support.jobs import blob_data, small_model

CONFIG = """
name = "tiny"
rounds = 6
checkpoint_every = 2

[data]
name = "tests.support.tiny:data"
alpha = 0.5

[model]
name = "tests.support.tiny:model"

[clients]
num_clients = 5
[[clients.groups]]
share = 0.4
ratio = 1.0
[[clients.groups]]
share = 0.6
ratio = 0.3

[training]
learning_rate = 0.1
batch_size = 16

[engine]
workers = 2
"""


def model():
    return small_model()


def normed_model():
    first, *rest = small_model().children()
    return nn.Sequential(first, nn.BatchNorm1d(first.out_features), *rest)


class Loud(nn.Sequential):
    """Prints what looks like a message."""

    def forward(self, inputs):
        print('{"round": "hello"}', flush=True)
        return super().forward(inputs)


def loud_model():
    return Loud(small_model())


class Crashing(nn.Sequential):
    """Fails where clients are trained, but not when it is tried."""

    def forward(self, inputs):
        if multiprocessing.parent_process() is not None:
            raise ZeroDivisionError("odd number")
        return super().forward(inputs)


def crashing_model():
    return Crashing(small_model())


class Killing(nn.Sequential):
    """Warns, and then kills the process of its run from a worker."""

    def forward(self, inputs):
        if multiprocessing.parent_process() is not None:
            sys.stderr.write("I am odd\n")
            os.kill(os.getppid(), signal.SIGKILL)
        return super().forward(inputs)


def killing_model():
    return Killing(small_model())


def fails():
    raise OSError("no such disk")


def data():
    return blob_data()


def model_of_20_megabytes():
    wide = 2200
    layers = (nn.Linear(6, wide), nn.ReLU(), nn.Linear(wide, wide), nn.ReLU(), nn.Linear(wide, 3))
    return nn.Sequential(*layers)


def slow_data():
    """Every batch takes a moment, so that something can happen in the middle of a round."""
    data = blob_data()
    return type(data)(SlowSamples(data.train), data.validation, data.test)


class SlowSamples:
    """Other samples, slowly."""

    def __init__(self, samples):
        self.samples = samples

    def __len__(self):
        return len(self.samples)

    def batch(self, indices):
        time.sleep(float(os.environ.get("FEDPLT_TEST_PAUSE", "0")))
        return self.samples.batch(indices)

    def arranged(self, order):
        return SlowSamples(self.samples.arranged(order))

    def __getattr__(self, name):
        return getattr(self.samples, name)
