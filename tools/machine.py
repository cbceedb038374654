"""Where and when a page of figures was measured."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess

import torch

import fedplt


def machine() -> str:
    """The day, the versions and the machine, in one line."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    day = datetime.datetime.now(datetime.UTC).date()
    return (
        f"{day}, fedplt {fedplt.__version__} (commit {commit or 'unknown'}), torch "
        f"{torch.__version__}, Python {platform.python_version()}, {platform.system()} on "
        f"{platform.machine()} with {os.cpu_count()} cores"
    )
