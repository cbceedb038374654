"""A model and data that configurations in the tests name by import path."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys

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
