"""What mkdocs needs to build the site from pages that are also read in the repository.

- Formulas between dollar signs become MathML: browsers draw it, and no script is loaded.
- Files outside of docs/ that a page links to are copied into the site.
- Every key of the configuration's page has an anchor.
- CONTRIBUTING, SECURITY, CHANGELOG and the pages of the examples are pages of the site, too.
"""

from __future__ import annotations

import posixpath
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
"""Pages of the site that lie beside docs/; those of examples keep their path."""
PAGES |= {
    name: name
    for name in sorted(str(page.relative_to(ROOT)) for page in ROOT.glob("examples/*/README.md"))
}
CONFIGURATION = "configuration.md"
_LINK = re.compile(r"\]\(([^)#\s:]+)(?=[)#])")
"""The target of a link that is neither an address nor an anchor of its own page."""


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
    examples = [name for name in PAGES if name.startswith("examples/")]
    for section in config.nav or []:
        if "Examples" in section:
            section["Examples"] += examples
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for uri, name in PAGES.items():
        files.append(File.generated(config, uri, abs_src_path=str(ROOT / name)))
    for page in list(files.documentation_pages()):
        for target in _LINK.findall(page.content_string):
            path = outside(page, target)
            if path and not files.get_file_from_path(copied(path)):
                source = str(ROOT / path)
                files.append(File.generated(config, copied(path), abs_src_path=source))
    return files


def outside(page: File, target: str) -> str | None:
    """The path in the repository of a link's target that is a file, but no page of the site."""
    folder = (ROOT / PAGES.get(page.src_uri, f"docs/{page.src_uri}")).parent
    path = (folder / target).resolve()
    if not path.is_file() or path.is_relative_to(ROOT / "docs"):
        return None
    name = str(path.relative_to(ROOT))
    return None if name in PAGES.values() else name


def copied(path: str) -> str:
    """Where the site has a file of the repository; Markdown as text, not as one more page."""
    return f"files/{path}.txt" if path.endswith(".md") else f"files/{path}"


def with_anchors(markdown: str) -> str:
    """Every key in the first column of a table as a link to itself, such as ``#data.alpha``.

    Keys without a section belong to that of the row's first key, or to the array of tables above.
    """
    group = ""

    def linked(row: re.Match[str]) -> str:
        nonlocal group
        section = group

        def link(found: re.Match[str]) -> str:
            nonlocal section, group
            key = found[2]
            if found[1]:
                group = key
            elif "." in key:
                section = group = key.rpartition(".")[0]
            elif section:
                key = f"{section}.{key}"
            return f"[{found[0]}](#{key}){{#{key}}}"

        return re.sub(r"`(\[\[)?([\w.]+)(?:\]\])?`", link, row[0])

    parts = re.split(r"^(?=## )", markdown, flags=re.MULTILINE)
    for index, part in enumerate(parts):
        group = ""
        parts[index] = re.sub(r"^\| [^|]+(?=\|)", linked, part, flags=re.MULTILINE)
    return "".join(parts)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links that hold in the repository are made to hold in the site."""
    source = PAGES.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    here = posixpath.dirname(page.file.src_uri) or "."
    uris = {name: uri for uri, name in PAGES.items()}

    def moved(found: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), found[1]))
        copy = outside(page.file, found[1])
        uri = copied(copy) if copy else uris.get(path, path.removeprefix("docs/"))
        return f"]({posixpath.relpath(uri, here)}"

    if page.file.src_uri == CONFIGURATION:
        markdown = with_anchors(markdown)
    return _LINK.sub(moved, markdown)
