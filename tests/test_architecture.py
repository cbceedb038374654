"""The tree of the source: who may import whom. Each test lists all that breaks its rule."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from tools.unused import unused

import fedplt

SOURCE = Path(fedplt.__file__).parent
BESIDE = {name: SOURCE.with_name(name) for name in ("fedplt_compare", "fedplt_flower")}
"""Packages beside ``fedplt`` that may use all of it, and not each other."""
TESTS = Path(__file__).parent

ROOT_MODULES = [
    "errors",
    "seeds",
    "files",
    "text",
    "imports",
    "schema",
    "named_classes",
    "torch_internals",
]
PACKAGES = [
    "planning", "sampling", "fleet", "data", "models", "kernels", "cutting", "client",
    "server", "methods", "configuration", "federation", "engines", "api", "comparison", "report",
    "cli",
]  # fmt: skip
"""In the order of a run: each may use the root modules and the packages before it. ``api`` is one
module; its tests are in a folder."""
LEVEL = {None: -1} | {package: level for level, package in enumerate([*PACKAGES, *BESIDE])}
PLAIN = {None: {"pydantic"}, "planning": set(), "sampling": set(), "fleet": {"pydantic"}}
"""What needs NumPy and the standard library alone, and what each may use besides."""
INTERNALS = "fedplt.torch_internals"
"""The one root module that imports torch."""


@dataclass(frozen=True)
class Import:
    """One imported module, by its full name, and how."""

    target: str
    line: int
    in_function: bool
    for_types: bool  # under TYPE_CHECKING: it does not happen
    by_name: bool = False  # when it is needed


def module_name(path: Path) -> str:
    """``fedplt.planning.plan``; ``fedplt.planning`` for a package's ``__init__``."""
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {
    module_name(path): path
    for folder in (SOURCE, *BESIDE.values())
    for path in sorted(folder.rglob("*.py"))
}


def package_of(module: str) -> str | None:
    """The package below ``fedplt``, or beside it; None for root modules and ``fedplt``."""
    if module == "fedplt.__main__":
        return "cli"
    if (top := module.partition(".")[0]) in BESIDE:
        return top
    return next(iter(set(module.split(".")[1:2]) & set(PACKAGES)), None)


def of_command_line(module: str) -> bool:
    return package_of(module) == "cli" or module in {f"{package}.cli" for package in BESIDE}


def where(module: str, line: int) -> str:
    return f"{FILES[module].relative_to(SOURCE.parent)}:{line}"


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def imports(path: Path) -> tuple[Import, ...]:
    return tuple(_imports(parsed(path), path, False, False))


def _imports(node: ast.AST, path: Path, in_function: bool, for_types: bool) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield Import(alias.name, node.lineno, in_function, for_types)
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0 and node.module, f"{path}:{node.lineno}: a relative import"
        for alias in node.names:
            name = f"{node.module}.{alias.name}"  # a module of a package, or a name in a module
            target = name if name in FILES else node.module
            yield Import(target, node.lineno, in_function, for_types)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        # Named for an import when it is needed, as in ``"fedplt.data:load"``.
        if found := re.fullmatch(r"(fedplt(?:\.\w+)+):\w*", node.value):
            yield Import(found[1], node.lineno, False, for_types, by_name=True)
    elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
        for child in node.body:
            yield from _imports(child, path, in_function, True)
        for child in node.orelse:
            yield from _imports(child, path, in_function, for_types)
    else:
        function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            yield from _imports(child, path, in_function or function, for_types)


def all_imports() -> Iterator[tuple[str, Import]]:
    """Of the whole source, but for the types' sake."""
    for module, path in FILES.items():
        if module == "fedplt":  # the front door names all that is public
            continue
        yield from ((module, found) for found in imports(path) if not found.for_types)


def test_nothing_but_root_modules_and_packages_lies_in_the_source():
    found = {path.name for path in SOURCE.iterdir()} - {"__pycache__"}
    others = {"__init__.py", "__init__.pyi", "__main__.py", "api.py", "py.typed", "configs"}
    assert found == {*others, *(f"{m}.py" for m in ROOT_MODULES), *PACKAGES} - {"api"}
    data = {SOURCE, SOURCE / "configs", SOURCE / "configs" / "fleets"}
    flower = BESIDE["fedplt_flower"]
    data |= {*BESIDE.values(), *(flower / room / "templates" for room in ("app", "deployment"))}
    folders = [path for folder in (SOURCE, *BESIDE.values()) for path in folder.rglob("*/")]
    missing = [p for p in folders if p.name != "__pycache__" and p not in data]
    assert not [p for p in missing if not (p / "__init__.py").is_file()]


def test_a_package_is_used_through_its_init():
    """It lists what others may use. The command line imports what a verb needs, not more."""
    broken = [
        f"{where(module, found.line)} imports {found.target}"
        for module, found in all_imports()
        if package_of(module) is not None and not of_command_line(module)
        if found.target in FILES
        if package_of(found.target) not in (None, package_of(module))
        if FILES[found.target].name not in ("__init__.py", "api.py")
    ]
    assert not broken, "\n".join(broken)


def test_imports_go_down_only():
    """Those for types, too: a module that names another's types is not below it."""
    broken = [
        f"{where(module, found.line)} imports {found.target}"
        for module, path in FILES.items()
        if module != "fedplt"  # which has the public names of all
        for found in imports(path)
        if found.target.split(".")[0] in ("fedplt", *BESIDE)
        if LEVEL[package_of(found.target)] > LEVEL[package_of(module)]
    ]
    assert not broken, "\n".join(broken)


def test_the_front_door_is_for_users():
    """``from fedplt import make_plan`` in the source would hide where it comes from."""
    broken = []
    for module, path in FILES.items():
        for node in ast.walk(parsed(path)):
            names: set[str] = set()
            if isinstance(node, ast.ImportFrom) and node.module == "fedplt":
                names = {alias.name for alias in node.names}
            elif isinstance(node, ast.Import):
                names = {alias.name for alias in node.names} & {"fedplt"}
            if names := names - {"__version__", *ROOT_MODULES, *PACKAGES}:
                broken.append(f"{where(module, node.lineno)}: {sorted(names)} from fedplt")
    assert not broken, "\n".join(broken)


@pytest.mark.parametrize("package", LEVEL, ids=lambda package: package or "root")
def test_no_import_cycles_within(package):
    reached: dict[str, set[str]] = defaultdict(set)
    for module, found in all_imports():
        if found.in_function or found.by_name:
            continue
        if package_of(module) == package == package_of(found.target):
            reached[module] |= {found.target} & FILES.keys()
    for middle in list(reached):  # what is reached by way of others
        for start in list(reached):
            if middle in reached[start]:
                reached[start] |= reached[middle]
    cycles = {
        tuple(sorted(m for m in reached[start] if start in reached[m]))
        for start in list(reached)
        if start in reached[start]
    }
    assert not cycles, "\n".join(" <-> ".join(cycle) for cycle in sorted(cycles))


def test_only_the_command_line_imports_in_functions():
    broken = [
        f"{where(module, found.line)} imports {found.target}"
        for module, found in all_imports()
        if found.in_function and not of_command_line(module)
    ]
    assert not broken, "\n".join(broken)


def test_modules_are_imported_by_name_in_few_places():
    """A name hides from the tests above what is imported, if it is put together."""
    homes = {"fedplt", "fedplt_flower", "fedplt.imports", "fedplt.report.export", "fedplt.cli"}
    broken = [
        f"{where(module, node.lineno)}"
        for module, path in FILES.items()
        if module not in homes
        for node in ast.walk(parsed(path))
        if getattr(node, "id", getattr(node, "attr", "")) in ("import_module", "__import__")
    ]
    assert not broken, "\n".join(broken)


def test_the_plain_packages_need_numpy_alone():
    broken = [
        f"{where(module, found.line)} imports {found.target}"
        for module, found in all_imports()
        if (package := package_of(module)) in PLAIN and module != INTERNALS
        if (top := found.target.split(".")[0]) not in sys.stdlib_module_names
        if top not in {"numpy", "fedplt", *PLAIN[package]}
    ]
    assert not broken, "\n".join(broken)


def test_planning_does_not_import_torch():
    """Nor do all modules of the plain packages, in a process of their own."""
    modules = [module for module in FILES if package_of(module) in PLAIN and module != INTERNALS]
    script = f"import sys, {', '.join(modules)}; fedplt.make_plan; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0


def test_private_parts_of_torch_are_used_in_one_module():
    private = re.compile(r"\btorch\._|\btorch(?:\.\w+)*\._|from torch[\w.]* import .*\b_[A-Za-z]")
    broken = [
        f"{where(module, number)}: {line.strip()}"
        for module, path in FILES.items()
        if module != INTERNALS
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if private.search(line) and "torch.__version__" not in line
    ]
    assert not broken, "\n".join(broken)


def test_only_reports_draw_and_only_flower_speaks_flower():
    homes = {
        "matplotlib": "fedplt.report",
        "flwr": "fedplt_flower",
        "cryptography": "fedplt_flower",
    }
    broken = [
        f"{where(module, found.line)} imports {found.target}"
        for module, found in all_imports()
        if (home := homes.get(found.target.split(".")[0]))
        if module != home and not module.startswith(f"{home}.")
    ]
    assert not broken, "\n".join(broken)


def test_packages_beside_do_not_use_each_other():
    """Nor does fedplt import them: imports go down only."""
    broken = [
        f"{where(module, found.line)} imports {found.target}"
        for module, found in all_imports()
        if {package_of(module), package_of(found.target)} == set(BESIDE)
    ]
    assert not broken, "\n".join(broken)


def test_flower_does_not_use_the_simulator():
    broken = [
        f"{where(module, found.line)} imports {found.target}"
        for module, found in all_imports()
        if package_of(module) == "fedplt_flower" and package_of(found.target) == "engines"
    ]
    assert not broken, "\n".join(broken)


def test_no_pickle_is_read():
    """What comes from a disk or a client may be anything, and a pickle runs what it wants."""
    readers = ("pickle.load", "import pickle", "torch.load(", "allow_pickle", "Unpickler")
    others = {"cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
    broken = [
        f"{where(module, number)}: {line.strip()}"
        for module, path in FILES.items()
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if any(reader in line for reader in readers)
        or ("from pickle import" in line and not line.endswith("import PicklingError"))
    ]
    broken += [f"{module} imports {i.target}" for module, i in all_imports() if i.target in others]
    assert not broken, "\n".join(broken)


def test_everything_public_is_there():
    for name in fedplt.__all__:
        assert getattr(fedplt, name) is not None
    assert set(fedplt.__all__) <= set(dir(fedplt))


def test_editors_and_type_checkers_see_what_is_public():
    imported = [node for node in parsed(SOURCE / "__init__.pyi").body if hasattr(node, "module")]
    names = [(node.module, alias.name, alias.asname) for node in imported for alias in node.names]
    assert sorted(name for _, name, _ in names) == sorted(set(fedplt.__all__) - {"__version__"})
    for module, name, public in names:
        assert name == public
        assert getattr(fedplt, name) is getattr(sys.modules[module], name)


def test_files_stay_small():
    lengths = {path: len(path.read_text().splitlines()) for path in FILES.values()}
    broken = [f"{path}: {length} lines" for path, length in lengths.items() if length > 400]
    assert not broken, "\n".join(broken)


def test_tests_mirror_the_packages():
    folders = {path for path in TESTS.rglob("*/") if path.name != "__pycache__"} - {TESTS}
    assert not [path for path in folders if not (path / "__init__.py").is_file()]
    found = {path.relative_to(TESTS) for path in folders} - {Path("support"), Path("reliability")}
    beside = {path for path in found if path.parts[0] == "reproduction"}
    assert not [path for path in beside if not (TESTS.parent / path).is_dir()]
    for name, folder in BESIDE.items():
        own = {path for path in found if f"fedplt_{path.parts[0]}" == name}
        assert own and not [path for path in own if not folder.joinpath(*path.parts[1:]).is_dir()]
        beside |= own
    mirrored = found - beside
    assert not [path for path in mirrored if not (SOURCE / path).is_dir() and path != Path("api")]
    assert {path.parts[0] for path in mirrored} == set(PACKAGES)


def test_the_package_does_not_know_the_reproduction():
    broken = [
        f"{where(module, found.line)} imports {found.target}"
        for module, path in FILES.items()
        for found in imports(path)
        if found.target.split(".")[0] == "reproduction"
    ]
    assert not broken, "\n".join(broken)


def test_test_files_share_by_support_alone():
    broken = [
        f"{path}:{found.line} imports {found.target}"
        for path in TESTS.rglob("*.py")
        for found in imports(path)
        if found.target.split(".")[0] in ("tests", "conftest")
        if found.target.split(".")[:2] != ["tests", "support"]
    ]
    assert not broken, "\n".join(broken)


def test_nothing_is_there_for_tests_alone():
    assert not unused()
