"""List functions, classes, methods and constants of the source that nothing but tests uses.

    python tools/unused.py

Names count as used where they are read, imported or called in the package, in ``reproduction``,
``tools``, ``benchmarks``, ``examples`` or a document; public names (``fedplt.__all__``) are for
users. A name that a framework calls (a decorator, a method of a foreign base class) is left out.
``tests/test_architecture.py`` keeps the list empty.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
DEFINED = ("src/fedplt", "src/fedplt_compare", "src/fedplt_flower", "reproduction")
USED = (*DEFINED, "tools", "benchmarks", "examples")
TEXTS = (
    "README.md", "pyproject.toml", "docs/*.md", "examples/*/README.md", "src/*/**/*.html",
    "src/*/**/*.jinja", "src/*/**/*.toml",
)  # fmt: skip


def parsed(folders: tuple[str, ...]) -> dict[Path, ast.Module]:
    paths = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    return {path: ast.parse(path.read_text()) for path in paths}


def definitions(tree: ast.AST, inherits: bool = False) -> Iterator[tuple[str, int]]:
    """Names with their lines; nothing that a decorator or a foreign base class may call."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield node.name, node.lineno
            bases = {base.id for base in node.bases if isinstance(base, ast.Name)}
            foreign = any(isinstance(base, ast.Attribute) for base in node.bases)
            yield from definitions(node, foreign or bool(bases - OWN))
        elif isinstance(node, ast.FunctionDef):
            kinds = {ast.unparse(decorator).split("(")[0] for decorator in node.decorator_list}
            if not inherits and kinds <= {"property", "cached_property", "classmethod",
                                          "staticmethod", "cache", "contextmanager",
                                          "lru_cache", "override"}:  # fmt: skip
                yield node.name, node.lineno
        elif isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(tree, ast.Module):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from ((t.id, node.lineno) for t in targets if isinstance(t, ast.Name))


def uses(tree: ast.Module) -> Iterator[str]:
    ignored: set[int] = set()  # docstrings, and the lists of a package's names
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            ignored.add(id(node.value))
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            ignored |= {id(inner) for inner in ast.walk(node.value)}
    for node in ast.walk(tree):
        if id(node) in ignored:
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif (
            # Annotations in quotes, names for getattr, "module:name", and code that is written.
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and (re.fullmatch(r"[\w.:\[\], |]+", node.value) or " import " in node.value)
        ):
            yield from re.findall(r"\w+", node.value)


TREES = parsed(DEFINED)
_NODES = (node for tree in TREES.values() for node in ast.walk(tree))
OWN = {"Protocol", "NamedTuple", "Generic", "ABC", "object"}
OWN |= {node.name for node in _NODES if isinstance(node, ast.ClassDef)}


def unused() -> list[str]:
    counts: Counter[str] = Counter()
    for tree in parsed(USED).values():
        counts.update(uses(tree))
    for pattern in TEXTS:
        for path in set(ROOT.glob(pattern)) - {ROOT / "docs" / "api.md"}:
            counts.update(re.findall(r"\w+", path.read_text()))
    public = set(re.findall(r" as (\w+)", (ROOT / "src" / "fedplt" / "__init__.pyi").read_text()))
    return [
        f"{path.relative_to(ROOT)}:{line} {name}"
        for path, tree in TREES.items()
        for name, line in definitions(tree)
        if not counts[name]
        and name not in public
        and not re.fullmatch(r"__\w+__|_repr_html_", name)
    ]


if __name__ == "__main__":
    found = unused()
    print("\n".join(found) or "everything is used")
    sys.exit(bool(found))
