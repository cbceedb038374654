"""Imports go down only. A lower layer that imports a higher one fails here."""

from __future__ import annotations

import ast
from pathlib import Path

import fedplt

SOURCE = Path(fedplt.__file__).parent

LAYERS = [
    {"allocation", "assignment", "cost", "counts", "errors", "files", "fleet", "flow", "imports",
     "layers", "layers_summary", "patterns", "plan", "plan_summary", "sampling", "seeds", "spaces",
     "submodel", "theory", "units", "width_rates"},
    {"aggregation", "chain", "connections", "cutting", "data", "diagnostics", "evaluation",
     "find_spaces", "graph", "kinds", "members", "models", "part", "partial", "probing", "products",
     "recipe", "server",
     "sliced", "state", "submodules", "trace", "trained", "training", "update"},
    {"methods"},
    {"federation"},
    {"simulator"},
    {"compare", "experiments", "progress", "report"},
    {"cli"},
]  # fmt: skip
LEVEL = {module: level for level, modules in enumerate(LAYERS) for module in modules}
PLAIN = {"numpy", "fedplt"}  # what layer 0 may import besides the standard library


def imports(path: Path) -> set[str]:
    """Everything a file imports at any place, except for type checking only."""
    found: set[str] = set()
    skipped: set[int] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            skipped |= {id(child) for child in ast.walk(node)}
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module or "")
    return found


def home(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def files() -> list[Path]:
    return [path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py"]


def test_every_module_has_a_layer():
    assert {home(path) for path in files()} == set(LEVEL)


def test_imports_go_down_only():
    for path in files():
        for name in imports(path):
            parts = name.split(".")
            if parts[0] == "fedplt" and len(parts) > 1:
                assert LEVEL[parts[1]] <= LEVEL[home(path)], f"{path} imports {name}"


def test_layer_zero_needs_only_numpy():
    import sys

    for path in files():
        if LEVEL[home(path)] == 0:
            outside = {name.split(".")[0] for name in imports(path)} - PLAIN
            assert outside <= sys.stdlib_module_names, f"{path} imports {outside}"


def test_only_reports_draw_and_only_flower_speaks_flower():
    for path in files():
        tops = {name.split(".")[0] for name in imports(path)}
        assert "matplotlib" not in tops or home(path) == "report", path
        assert "flwr" not in tops or home(path) == "flower", path


def test_no_pickle_is_read():
    for path in files():
        text = path.read_text()
        for reader in ("pickle.load", "import pickle", "torch.load(", "allow_pickle"):
            assert reader not in text, f"{path}: {reader}"


def test_planning_does_not_import_torch():
    import subprocess
    import sys

    script = "import sys, fedplt; fedplt.make_plan; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0


def test_everything_public_is_there():
    for name in fedplt.__all__:
        assert getattr(fedplt, name) is not None
    assert set(fedplt.__all__) <= set(dir(fedplt))


def test_files_stay_small():
    for path in files():
        assert len(path.read_text().splitlines()) <= 300, path


def test_test_files_share_by_support_alone():
    for path in Path(__file__).parent.rglob("*.py"):
        for name in imports(path):
            shared = name == "tests.support" or name.startswith("tests.support.")
            assert shared or name.split(".")[0] != "tests", f"{path} imports {name}"
            assert name.split(".")[0] != "conftest", path
