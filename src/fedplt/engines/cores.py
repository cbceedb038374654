"""How many processes this machine can run at a time."""

from __future__ import annotations

import os
import sys


def available_cores() -> int:
    """Number of cores that this process may use."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
