"""What this machine has, and how a process uses its memory."""

from __future__ import annotations

import ctypes
import resource
import sys

import pytest
import torch

from fedplt.machine import keep_freed_memory


@pytest.mark.skipif(sys.platform != "linux", reason="glibc")
def test_freed_memory_is_used_again_without_new_pages():
    keep_freed_memory()
    for _ in range(3):
        torch.ones(2**20)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        torch.ones(2**20)  # 4 MB, 1024 pages
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < 1024


def test_another_c_library_is_left_alone(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    keep_freed_memory()
