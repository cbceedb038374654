"""What this machine has, and how a process uses its memory."""

from __future__ import annotations

import ctypes
import platform

import pytest

from fedplt.fleet import keep_freed_memory


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_the_c_library_takes_the_options(monkeypatch):
    library, answers = ctypes.CDLL(None), []

    class Watched:
        def mallopt(self, option, value):
            answers.append((option, value, library.mallopt(option, value)))

    monkeypatch.setattr(ctypes, "CDLL", lambda name: Watched())
    keep_freed_memory()
    assert answers == [(-1, 2**30, 1), (-3, 2**25, 1)]  # 1: taken


def test_another_c_library_is_left_alone(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    keep_freed_memory()
