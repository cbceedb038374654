"""Ask for known vulnerabilities of the locked packages: ``make audit``.

pip-audit asks the package index. Mirrors often have no such list: this is reported, and never taken
for "none".
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

LOCK = Path(__file__).parents[1] / "requirements-dev.txt"
SECONDS = 600


def report(found: dict[str, list[dict[str, object]]]) -> tuple[str, int]:
    """What to print, and the exit code: 1 with vulnerabilities, 2 if some could not be asked for.

    >>> report({"dependencies": [{"name": "a", "version": "1", "vulns": []}]})
    ('1 packages have no known vulnerability.', 0)
    >>> report({"dependencies": [{"name": "a", "skip_reason": "not found"}]})[1]
    2
    """
    packages = found["dependencies"]
    bad = [p for p in packages if p.get("vulns")]
    unknown = [str(p["name"]) for p in packages if "skip_reason" in p]
    lines = [f"{p['name']} {p['version']}: {json.dumps(p['vulns'])}" for p in bad]
    if unknown:
        lines.append(
            f"The package index of this machine says nothing about {len(unknown)} of "
            f"{len(packages)} packages; run this where the official index can be reached."
        )
    if not lines:
        lines.append(f"{len(packages)} packages have no known vulnerability.")
    return "\n".join(lines), 1 if bad else 2 if unknown else 0


def main() -> int:
    command = [
        sys.executable, "-m", "pip_audit", "-r", str(LOCK), "--no-deps", "--disable-pip",
        "--format", "json", "--progress-spinner", "off", "--timeout", "15",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    try:
        text, code = report(json.loads(done.stdout))
    except ValueError:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        text, code = f"The package index could not be asked: {last}", 2
    print(text)
    return code


if __name__ == "__main__":
    sys.exit(main())
