"""Federated learning on unequal devices by partial layer training (FedPLT).

Run a configuration, as ``fedplt run`` does::

    history = fedplt.run("fashion-mnist", out="runs/mine")

Train your own model on your own data::

    history = fedplt.train(model, (x, y), (x_val, y_val), ratios=[1.0, 0.29, 0.06], rounds=20)

Plan which client trains what, and train a slice in your own loop::

    layers = fedplt.cut(model, example)
    plan = fedplt.make_plan(layers, ratios=[1.0, 0.29, 0.06])
    with fedplt.train_only(model, plan.assignment(2)) as part:
        optimizer = torch.optim.SGD(part.parameters(), lr=0.01)
        ...
    update = part.update(num_examples=600)
"""

from __future__ import annotations

import sys

if sys.argv[:1] == ["-m"] and not sys.flags.safe_path:
    # 'python -m fedplt': Python has put the current folder first, and a typing.py or jinja2.py
    # there would be imported instead of the installed one. (Its own runpy has been by then.)
    _module = sys.orig_argv[-len(sys.argv)].removeprefix("-m")
    if _module.partition(".")[0] == "fedplt":
        sys.path.append(sys.path.pop(0))

import ast
import importlib
from pathlib import Path
from typing import Any

__version__ = "0.2.0.dev0"

# Imported on first use: planning needs only NumPy, and torch takes seconds to import.
_STUB = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
_HOMES = {
    alias.name: node.module
    for node in _STUB.body
    if isinstance(node, ast.ImportFrom)
    for alias in node.names
}

__all__ = ["__version__", *_HOMES]  # noqa: PLE0604 (they are strings)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fedplt' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
