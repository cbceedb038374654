"""The documentation site: built without a network, every page in the menu, formulas as MathML."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Strict: a dead link, a lost anchor or a page outside of the menu is an error."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.slow
def test_the_site(site):
    pages = {page.name: page.read_text() for page in site.glob("*.html")}
    assert {f"{page.stem}.html" for page in (ROOT / "docs").glob("*.md")} <= pages.keys()
    loaded = r'<(?:script|img|link)\b[^>]*(?:src|href)="(?:https?:)?//[^"]*"'
    assert not {name: found for name, text in pages.items() if (found := re.findall(loaded, text))}
    assert pages["sampling.html"].count("<math") > 10
    for name, text in pages.items():
        shown = re.sub(r"<(pre|code|math|script)\b.*?</\1>", "", text, flags=re.DOTALL)
        assert "$" not in shown, f"{name} shows a formula as text"
    # Files beside docs/ come along, with the pages that link to them.
    assert "files/results/compare/comparison.png" in pages["methods.html"]
    assert (site / "files/results/compare/comparison.png").is_file()
    assert "architecture.html" in pages["contributing.html"]


@pytest.mark.browser
def test_search_works_in_pages_that_are_opened_as_files(site):
    from tests.support.browser import chromium

    with chromium() as browser:
        for page in ("index.html", "examples/tabular/index.html"):
            browser.driver.get((site / page).as_uri())
            browser.js("document.querySelector('[data-md-component=search-query]').focus()")
            browser.driver.switch_to.active_element.send_keys("contribution vectors")
            browser.wait("document.querySelectorAll('.md-search-result__link').length > 0")
            assert not browser.problems()


def test_pictures_are_what_the_plans_say():
    from tools.method_pictures import FOLDER, PICTURES

    for name, draw in PICTURES.items():
        assert (FOLDER / f"{name}.svg").read_text() == draw(), "make pictures"
