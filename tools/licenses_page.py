"""Write docs/licenses.md: the license of every package of the environment, as it says itself."""

from __future__ import annotations

import re
import sys
from importlib.metadata import Distribution, distributions, requires
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "licenses.md"
LOCK = ROOT / "requirements-dev.txt"
INTRO = """\
# Licenses

To see under which terms you get fedplt and what it needs: fedplt itself is under the Apache License
2.0 ([LICENSE](../LICENSE)). The packages below are installed beside it. `make licenses` writes this
page from what each installed package says about itself. Two files of others are in the repository,
both under the MIT license: plotly.js (in reports) and iframe-worker (in the documentation site).
"""


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def license_of(package: Distribution) -> str:
    """The SPDX expression if the package has one, else what its classifiers or its text name."""
    about = package.metadata
    if about.get("License-Expression"):
        return str(about["License-Expression"])
    named = [
        line.rsplit(" :: ", 1)[-1]
        for line in about.get_all("Classifier") or []
        if line.startswith("License :: ") and not line.endswith("OSI Approved")
    ]
    text = str(about.get("License") or "").strip().splitlines()
    return ", ".join(named) or (text[0][:60] if text else "not stated: see its own files")


def needed(names: list[str], installed: dict[str, Distribution]) -> set[str]:
    """These packages and all that they need here, without extras."""
    found: set[str] = set()
    while names:
        name = normal(names.pop())
        if name in found or name not in installed:
            continue
        found.add(name)
        wanted = [line for line in installed[name].requires or [] if "extra ==" not in line]
        names += [re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in wanted]
    return found


def page() -> str:
    installed = {normal(d.metadata["Name"]): d for d in distributions()}
    own = [line for line in requires("fedplt") or [] if "extra ==" not in line]
    run = needed([re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in own], installed)
    locked = set(re.findall(r"^([\w.-]+)==", LOCK.read_text(), re.MULTILINE)) | {"torch"}
    others = {normal(name) for name in locked} - run
    parts = [INTRO]
    for title, names in (
        ("Needed to run fedplt", run),
        ("Needed for reports, Flower, tests and development only", others & installed.keys()),
    ):
        rows = [f"| {name} | {license_of(installed[name])} |" for name in sorted(names)]
        parts.append(f"## {title}\n\n| package | license |\n|---|---|\n" + "\n".join(rows) + "\n")
    absent = sorted(others - installed.keys())
    if absent:
        parts.append(
            "Not installed where this page was written (other systems or Python versions): "
            + ", ".join(absent) + ".\n"
        )  # fmt: skip
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    sys.stdout.write(f"{PAGE.relative_to(ROOT)}\n")
