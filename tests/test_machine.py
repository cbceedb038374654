"""What this machine has, and how a process uses its memory."""

from __future__ import annotations

import ctypes
import platform
import subprocess
import sys

import pytest

from fedplt.machine import keep_freed_memory

PAGE_FAULTS = """
import resource
import torch
from fedplt.machine import keep_freed_memory

def page_faults():
    for _ in range(3):
        torch.ones(2**20)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        torch.ones(2**20)  # 4 MB, 1024 pages
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

keep_freed_memory()
print(page_faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_freed_memory_is_used_again_without_new_pages():
    done = subprocess.run(
        [sys.executable, "-c", PAGE_FAULTS], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 1024


def test_another_c_library_is_left_alone(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    keep_freed_memory()
