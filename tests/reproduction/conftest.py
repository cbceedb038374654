"""Fixtures of the reproduction's tests."""

from __future__ import annotations

from functools import partial

import pytest


@pytest.fixture
def reproduction(command):
    """Run ``python -m reproduction`` in this process."""
    from reproduction.command import app

    return partial(command, app, "reproduction")
