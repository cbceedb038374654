"""What mkdocs needs to build the site from pages that are also read in the repository.

- Formulas between dollar signs become MathML: browsers draw it, and no script is loaded.
- Files outside of docs/ that a page links to are copied into the site.
- CONTRIBUTING, SECURITY and CHANGELOG are pages, too.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from markdown import Markdown
from markdown.extensions import Extension
from markdown.inlinepatterns import InlineProcessor
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PAGES = {f"{name.lower()}.md": f"{name}.md" for name in ("CONTRIBUTING", "SECURITY", "CHANGELOG")}
"""Pages of the site that lie beside docs/."""
_OUTSIDE = re.compile(r"\]\(\.\./([^)#\s]+)")
"""A link from a page to a file that is not in docs/."""


@cache
def mathml(formula: str, display: str) -> str:
    """
    >>> mathml("p_k", "inline")
    '<math ...<msub><mi>p</mi><mi>k</mi></msub>...</math>'
    """
    return str(convert(formula, display=display))


class Formula(InlineProcessor):
    """``$...$`` in a line, ``$$...$$`` on its own."""

    def __init__(self, pattern: str, markdown: Markdown, display: str) -> None:
        super().__init__(pattern, markdown)
        self.display = display

    def handleMatch(self, m: re.Match[str], data: str) -> Any:  # type: ignore[override]  # noqa: N802
        assert self.md is not None
        drawn = mathml(m.group(1).strip(), self.display)
        return self.md.htmlStash.store(drawn), m.start(0), m.end(0)


class Formulas(Extension):
    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802
        # After code between backticks (190), before escapes (180), emphasis and everything else.
        md.inlinePatterns.register(Formula(r"\$\$(.+?)\$\$", md, "block"), "formula-block", 186)
        line = r"(?<![\\$\w])\$(?!\s)([^$]+?)(?<![\s\\])\$(?![\w$])"
        md.inlinePatterns.register(Formula(line, md, "inline"), "formula", 185)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    config.markdown_extensions.append(Formulas())  # type: ignore[arg-type]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for uri, name in PAGES.items():
        files.append(File.generated(config, uri, abs_src_path=str(ROOT / name)))
    for page in files.documentation_pages():
        for target in _OUTSIDE.findall(page.content_string):
            uri = copied(target)
            if (ROOT / target).is_file() and not files.get_file_from_path(uri):
                path = str(ROOT / target)
                files.append(File.generated(config, uri, abs_src_path=path))
    return files


def copied(target: str) -> str:
    """Where the site has a file of the repository; Markdown as text, not as one more page."""
    return f"files/{target}.txt" if target.endswith(".md") else f"files/{target}"


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    if page.file.src_uri in PAGES:
        return re.sub(r"\]\(docs/", "](", markdown)
    return _OUTSIDE.sub(lambda found: f"]({copied(found[1])}", markdown)
