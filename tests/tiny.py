"""A model and data that configurations in the tests name by import path."""

from __future__ import annotations

from tests.conftest import small_model
from tests.federation.jobs import blob_data


def model():
    return small_model()


def fails():
    raise OSError("no such disk")


def data():
    return blob_data()
