"""Write docs/api.md: every public name with its signature and its docstring's first paragraph."""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from pathlib import Path
from typing import Any

from pydantic import BaseModel

import fedplt

PAGE = Path(__file__).parents[1] / "docs" / "api.md"
GROUPS = {
    "Run": [
        "run", "resume", "train", "compare", "advise", "History", "RoundRecord",
        "scalars", "load_history", "load", "evaluate",
    ],
    "A loop of your own": [
        "cut", "make_plan", "check", "CheckReport", "train_only", "TrainableSlices",
        "ClientUpdate", "Origin", "validate",
        "Aggregator", "bind_state", "HeldModels",
    ],
    "Planning": [
        "balanced_allocation", "allocation_of", "Allocation", "Plan", "Assignment", "Layers",
        "Layer", "TensorSpec", "sampling_probabilities", "DeviceProfile", "plan_fleet",
    ],
    "Methods, layers and engines of your own": [
        "Method", "PlanRequest", "submodel_plan", "LocalRecipe", "add_layer_kind", "Slicing",
        "Engine", "Job", "ClientTrainer", "TrainOrder", "ClientResult", "Evaluation",
    ],
    "Data and tasks": ["TrainingData", "TensorSamples", "Task", "Metric", "MetricInfo"],
}  # fmt: skip
"""Configurations and errors follow by themselves."""

ALIASES = [
    ("ConfigLike", "a `RunConfig`, a dictionary of its sections, a TOML file, or a built-in name."),
    ("Values", "a section as a dictionary, with the keys of the TOML file."),
    ("Changes", 'values by key (`{"rounds": 300}`), or a list of `key.sub=value` texts.'),
    ("MakeEngine", "a function of a `Job` and a function that tells whether to stop; an `Engine`."),
    ("OnRound", "a function of a `RoundRecord`, called after every round."),
    ("Loss", "a function of a model's outputs and the targets: the mean loss of a batch."),
    ("Augment", "a function of a batch of inputs and a `torch.Generator`: the changed inputs."),
    ("Split", "`order` and `offsets`: client k owns `order[offsets[k]:offsets[k + 1]]`."),
    ("Watch", "an object whose methods `compare` calls while its runs go on (its docstring)."),
]


def main() -> int:
    text = page()
    if "--check" in sys.argv:
        return 0 if PAGE.read_text(encoding="utf-8") == text else 1
    PAGE.write_text(text, encoding="utf-8")
    return 0


def page() -> str:
    known = {name for names in GROUPS.values() for name in names}
    rest = [name for name in fedplt.__all__ if name not in known and name != "__version__"]
    errors = [name for name in rest if name.endswith(("Error", "Warning"))]
    sections = {
        **GROUPS,
        "Configurations": [name for name in rest if name not in errors],
        "Errors": errors,
    }
    lines = [
        "# Python API",
        "",
        "To call fedplt from Python: everything below is `fedplt.NAME`. Sections of a "
        "configuration are the same in TOML and in Python; [configuration](configuration.md) "
        "explains every key. This page is "
        "written from the docstrings by `make api-page`.",
    ]
    for title, names in sections.items():
        lines += ["", f"## {title}"]
        for name in names:
            if name in fedplt.__all__:
                lines += ["", *entry(name, getattr(fedplt, name))]
    lines += ["", "## Names in signatures", "", *(f"- `{n}`: {what}" for n, what in ALIASES)]
    return "\n".join(lines) + "\n"


def entry(name: str, thing: Any) -> list[str]:
    doc = inspect.cleandoc(thing.__doc__ or "").split("\n\n")[0].replace("\n", " ")
    doc = re.sub(r":\w+:`~?\.?([^`]+)`", r"`\1`", doc).replace("``", "`")
    if inspect.isclass(thing):
        return [f"### `{name}`", "", doc, *members(thing)]
    head = [f"### `{name}`", "", "```", signature(name, thing), "```", "", doc]
    return [*head, *arguments(inspect.cleandoc(thing.__doc__ or ""))]


def arguments(doc: str) -> list[str]:
    """The ``Args`` of a docstring as a list."""
    found = re.search(r"^Args:\n((?:    .*\n?)+)", doc, re.MULTILINE)
    if not found:
        return []
    entries: list[str] = []
    for line in found.group(1).splitlines():
        text = re.sub(r":\w+:`~?\.?([^`]+)`", r"`\1`", line[4:]).replace("``", "`")
        if text.startswith(" "):
            entries[-1] += " " + text.strip()
        else:
            names, _, meaning = text.partition(": ")
            entries.append(f"- `{names}`: {meaning}")
    return ["", *entries]


def signature(name: str, thing: Any) -> str:
    """One parameter a line where they are many."""
    parts = []
    for parameter in inspect.signature(thing).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in parts:
            parts.append("*")
        shown = ("**" if parameter.kind is parameter.VAR_KEYWORD else "") + parameter.name
        if parameter.annotation is not parameter.empty:
            shown += f": {parameter.annotation}"
        if parameter.default is not parameter.empty:
            shown += f" = {default(parameter.default)}"
        parts.append(shown)
    result = inspect.signature(thing).return_annotation
    arrow = "" if result is inspect.Signature.empty else f" -> {result}"
    line = f"{name}({', '.join(parts)}){arrow}"
    if len(line) <= 88:
        return line
    return "\n".join([f"{name}(", *(f"    {part}," for part in parts), f"){arrow}"])


def default(value: Any) -> str:
    return getattr(value, "__name__", None) or repr(value)


def members(thing: type) -> list[str]:
    """Fields of a configuration or a dataclass by name; public methods and properties."""
    if issubclass(thing, BaseModel):
        names = list(thing.model_fields)
    elif dataclasses.is_dataclass(thing):
        names = [field.name for field in dataclasses.fields(thing)]
    else:
        is_protocol = getattr(thing, "_is_protocol", False)
        names = list(inspect.get_annotations(thing)) if is_protocol else []
    own = [
        name
        for kind in thing.__mro__
        if kind.__module__.startswith("fedplt")
        for name, value in vars(kind).items()
        if not name.startswith(("_", "model_")) and name not in names
        if callable(value) or isinstance(value, (property, classmethod, staticmethod))
    ]
    lines = []
    if names:
        lines += ["", "Fields: " + ", ".join(f"`{name}`" for name in names) + "."]
    if own and not issubclass(thing, (BaseModel, Exception)):
        lines += ["", "Also: " + ", ".join(f"`{name}`" for name in dict.fromkeys(own)) + "."]
    return lines


if __name__ == "__main__":
    sys.exit(main())
