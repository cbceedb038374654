"""Write requirements-dev.txt: every package of the development environment, with all its digests.

Run it (``make lock``) after a change of pyproject.toml or constraints.txt. Versions that are
already in the file stay where they can; ``make lock UPGRADE=--upgrade`` takes the newest ones.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements-dev.txt"
HEADER = """\
# Written by `make lock` from pyproject.toml (all extras) and constraints.txt; do not edit.
# All packages for Python 3.11 and newer, on every system, with the digests of all their files.
# torch is not here: its builds differ by machine. `make setup` installs it by version.
"""


def compile_command(uv: Path, upgrade: bool) -> list[str]:
    return [
        str(uv), "pip", "compile", "pyproject.toml", "--all-extras",
        "--constraint", "constraints.txt", "--universal", "--python-version", "3.11",
        "--generate-hashes", "--no-emit-package", "torch", "--config-file", "tools/lock.toml",
        "--no-annotate", "--no-header", "--no-emit-index-url", "--quiet",
        "--output-file", LOCK.name, *(["--upgrade"] if upgrade else []),
    ]  # fmt: skip


def locked(text: str) -> dict[str, set[str]]:
    """Names and versions (several where they depend on the Python version).

    >>> locked("A_b==1.0 ; python_version < '3.12' \\\\\\n    --hash=sha256:00")
    {'a-b': {'1.0'}}
    """
    found: dict[str, set[str]] = {}
    for name, version in re.findall(r"^([\w.-]+)==([^\s;\\]+)", text, re.MULTILINE):
        found.setdefault(re.sub(r"[-_.]+", "-", name).lower(), set()).add(version)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--upgrade", action="store_true")
    upgrade = parser.parse_args().upgrade
    uv = Path(sys.executable).with_name("uv")
    code = subprocess.run(compile_command(uv, upgrade), cwd=ROOT, check=False).returncode
    if code:
        return code
    text = "".join(
        line
        for line in LOCK.read_text().splitlines(keepends=True)
        if not line.startswith(("#", "    #"))  # no header of ours, no notes of uv's
    )
    LOCK.write_text(HEADER + text)
    print(f"{LOCK.name}: {len(locked(text))} packages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
