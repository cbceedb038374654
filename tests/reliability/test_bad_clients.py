"""A short turn of the attack by bad clients (``tools/reliability/bad_clients.py``)."""

from __future__ import annotations

import pytest
from tools.reliability.bad_clients import run, sound, taken

pytestmark = pytest.mark.slow


def test_nothing_that_a_client_sends_ends_a_run():
    assert taken(sound()).num_examples == 20
    figures = run(500, 7)
    assert figures["inputs"] == 500 and figures["tracebacks"] == 0
    assert figures["refused with an error"] > 450
    assert figures["of them refused"] == figures["updates it sent"] == 30
    assert figures["with one that claims 10^12 examples"] > 0.9
