"""The kind of processor: results differ in their last bits between kinds."""

from __future__ import annotations

import platform
from pathlib import Path

import torch

from fedplt.files import write_text


def processor_name() -> str:
    """Model and instruction set, such as ``AMD EPYC, AVX2, torch 2.13.0``."""
    model = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        lines = []
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            model = value.strip()
            break
    version = torch.__version__.partition("+")[0]
    return f"{model}, {torch.backends.cpu.get_cpu_capability()}, torch {version}"


def note_processor(path: Path) -> None:
    """Add this processor to a file with one line per kind of processor used."""
    used = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    if processor_name() not in used:
        write_text(path, "".join(f"{name}\n" for name in [*used, processor_name()]))
