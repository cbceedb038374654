"""docs/correctness.md has the rows of its script, and each of its batteries works."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tools.correctness_page import CHECKS, PAGE, page

from tests.support.batteries import Result

pytestmark = pytest.mark.slow


def structure(text: str) -> list[str]:
    """Headings, what is compared with what, and what is said about it; no numbers."""
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|", text, re.MULTILINE)
    about = [line for line in text.splitlines() if line.startswith(("#", "- **"))]
    return [" | ".join(row) for row in rows] + about


def test_the_page_has_the_rows_of_its_script():
    expected = page([Result() for _ in CHECKS], 0.0)
    text = Path(PAGE).read_text(encoding="utf-8")
    assert structure(text) == structure(expected), "docs/correctness.md is old: make correctness"


def test_the_page_says_what_is_wrong():
    results = [Result(models=3, comparisons=3) for _ in CHECKS]
    assert "none was wrong" in page(results, 0.0)
    results[0].add("a model", 0.5, 1e-9)
    assert "1 comparisons were WRONG" in page(results, 0.0)


@pytest.mark.filterwarnings("ignore:not trained")
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.title)
def test_a_few_of_each(check):
    result = check.run(3)
    assert 0 < result.models <= 3 and result.comparisons
    assert not result.wrong
