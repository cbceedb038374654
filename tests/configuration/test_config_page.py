"""``docs/configuration.md`` and ``docs/fleet.md`` tell what is really there."""

from __future__ import annotations

import re
from pathlib import Path

from pydantic import BaseModel
from tools.site_hooks import with_anchors
from typer.testing import CliRunner

from fedplt.cli import app
from fedplt.configuration.config import GroupConfig, RunConfig
from fedplt.fleet import FleetTarget


def keys(section: type[BaseModel], prefix: str = "") -> list[str]:
    found = []
    for name, field in section.model_fields.items():
        options = (field.annotation, *getattr(field.annotation, "__args__", ()))
        inner = [o for o in options if isinstance(o, type) and issubclass(o, BaseModel)]
        inner = [] if GroupConfig in inner else inner
        found += keys(inner[0], f"{prefix}{name}.") if inner else [f"{prefix}{name}"]
    return found


def documented(text: str) -> set[str]:
    """``section.key`` of every row; further keys of a row leave the section out."""
    found = set()
    for cell in re.findall(r"^\| (\S.*?) \|", text, flags=re.MULTILINE):
        names = re.findall(r"`\[*([\w.]+)\]*`", cell)
        section = names[0].rpartition(".")[0] if names else ""
        found |= {name if "." in name or not section else f"{section}.{name}" for name in names}
    return found


def test_every_key_is_documented():
    told = documented(Path("docs/configuration.md").read_text())
    assert set(keys(RunConfig)) - {"method"} <= told
    assert set(GroupConfig.model_fields) <= {name.rpartition(".")[2] for name in told}


def test_no_other_keys_are_documented():
    told = documented(Path("docs/configuration.md").read_text())
    known = {*keys(RunConfig), *GroupConfig.model_fields}
    assert {name for name in told if not name.startswith("method.")} <= known


def test_every_key_has_one_anchor():
    page = with_anchors(Path("docs/configuration.md").read_text())
    anchors = re.findall(r"\{#([\w.]+)\}", page)
    assert len(anchors) == len(set(anchors))
    groups = {f"clients.groups.{name}" for name in GroupConfig.model_fields}
    assert {*keys(RunConfig), *groups} - {"method"} <= set(anchors)
    headings = re.findall(r"^## `\[(\w+)\]`$", page, flags=re.MULTILINE)
    sections = {key.partition(".")[0] for key in keys(RunConfig) if "." in key}
    assert set(headings) == sections | {"method"}
    assert len(headings) == len(set(headings))


def test_the_planning_target_is_documented():
    assert set(FleetTarget.model_fields) <= documented(Path("docs/fleet.md").read_text())


def test_the_plan_that_is_shown_is_the_one_that_is_made():
    page = Path("docs/fleet.md").read_text()
    command = re.findall(r"^fedplt (fleet .*)$", page, flags=re.MULTILINE)[0]
    made = CliRunner().invoke(app, command.split()).output.splitlines()
    shown = page[page.index("Target 12.00 s") :].partition("```")[0].splitlines()
    assert len(shown) > 8
    assert set(shown) <= set(made)
