"""Attack: atheris, a fuzzer guided by coverage, on what decodes bytes; one process per decoder.

``python -m tools.reliability.fuzz_decoders 100000 1``. Needs ``pip install 'fedplt[fuzz]'``.
"""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HANG_SECONDS = 10
MEMORY_MB = 2048
NAMES = ("client update", "IDX file", "TOML", "sealed text", "devices, CSV", "tensors")


def run(count: int, seed: int) -> dict[str, int]:
    """Give ``count`` inputs to all decoders together; a finding ends a decoder's process."""
    if importlib.util.find_spec("atheris") is None:
        raise RuntimeError("atheris is not installed: pip install 'fedplt[fuzz]'")
    figures = {"inputs": 0, "tracebacks, hangs, or over 2 GB": 0}
    for name in NAMES:
        tried, failed = _fuzz(name, -(-count // len(NAMES)), seed)
        figures["inputs"] += tried
        figures["tracebacks, hangs, or over 2 GB"] += failed
    return figures


def _fuzz(name: str, count: int, seed: int) -> tuple[int, int]:
    with tempfile.TemporaryDirectory() as scratch:
        done = subprocess.run(
            [sys.executable, "-m", __spec__.name if __spec__ else __name__, name,
             f"-runs={count}", f"-seed={seed}", f"-timeout={HANG_SECONDS}",
             f"-rss_limit_mb={MEMORY_MB}", "-max_len=4096", f"-artifact_prefix={scratch}/",
             f"{scratch}/corpus"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    tried = [int(number) for number in re.findall(r"^#(\d+)\t", done.stderr, re.MULTILINE)]
    if done.returncode:
        sys.stderr.write(f"{name}:\n{done.stderr[-3000:]}\n")
    return max(tried, default=0), int(done.returncode != 0)


def fuzz_one(name: str, arguments: list[str]) -> None:
    """In a separate process: atheris never returns."""
    import atheris

    with atheris.instrument_imports(include=["fedplt", "json", "tomllib", "csv"]):
        from tools.reliability.fuzz_targets import DECODERS, EXAMPLES

        from fedplt.errors import FedpltError

    def one(data: bytes) -> Any:
        try:
            DECODERS[name](data)
        except FedpltError:
            return

    corpus = Path(arguments[-1])
    corpus.mkdir()
    (corpus / "example").write_bytes(EXAMPLES[name])
    atheris.Setup([sys.argv[0], *arguments], one)
    atheris.Fuzz()


if __name__ == "__main__":
    if sys.argv[1] in NAMES:
        fuzz_one(sys.argv[1], sys.argv[2:])
    else:
        print(json.dumps(run(int(sys.argv[1]), int(sys.argv[2])), indent=1))
