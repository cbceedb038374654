"""The examples: each is run and prints what its expected.txt says (``make test-examples``)."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted(path.parent for path in Path("examples").glob("*/train.py"))
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
CLOSE = 0.1
"""Last bits differ between kinds of processors, and after many rounds so do accuracies."""

each = pytest.mark.parametrize("folder", EXAMPLES, ids=lambda folder: folder.name)


def numbers(text: str) -> list[float]:
    return [float(number.replace(",", "")) for number in NUMBER.findall(text)]


def words(text: str) -> list[str]:
    return NUMBER.sub("0", text).split()


@each
def test_an_example_is_short_and_shows_what_it_prints(folder):
    assert len((folder / "train.py").read_text().splitlines()) < 80
    readme = (folder / "README.md").read_text()
    assert (folder / "expected.txt").read_text().rstrip() in readme
    assert f"python -m examples.{folder.name}.train" in readme
    (picture,) = re.findall(r"!\[.+\]\((\w+\.png)\)", readme)
    assert (folder / picture).stat().st_size < 100_000
    assert f"(../examples/{folder.name}/README.md)" in Path("docs/examples.md").read_text()


@each
@pytest.mark.examples
@pytest.mark.timeout(3600)
def test_an_example_prints_what_it_says(folder, tmp_path):
    command = [sys.executable, "-m", f"examples.{folder.name}.train", str(tmp_path / "runs")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3500)
    assert done.returncode == 0, done.stderr
    expected = (folder / "expected.txt").read_text()
    assert words(done.stdout) == words(expected), done.stdout
    assert numbers(done.stdout) == pytest.approx(numbers(expected), rel=CLOSE), done.stdout
    assert list((tmp_path / "runs").rglob("model.safetensors"))
