"""What the README and the documents show is run here."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedplt.builtin import find_config, find_fleet
from fedplt.cli import app

PAGES = [Path("README.md"), *sorted(Path("docs").glob("*.md"))]


def blocks(language: str) -> list[tuple[str, str]]:
    pattern = re.compile(rf"```{language}\n(.*?)```", re.DOTALL)
    return [
        (f"{page.name}:{number}", code)
        for page in PAGES
        for number, code in enumerate(pattern.findall(page.read_text()), start=1)
    ]


def scripts():
    for name, code in blocks("python"):
        yield pytest.param(code, "fork", id=f"{name}-fork")
        if "fedplt.train(" in code:  # the others start no workers
            yield pytest.param(code, "spawn", id=f"{name}-spawn")


@pytest.mark.slow
@pytest.mark.parametrize(("code", "method"), list(scripts()))
def test_python_code_runs(code, method, tmp_path):
    """As a script of its own, with forked workers and with spawned ones as on macOS."""
    pretend = ""
    if "fedplt.train(" in code:
        pretend = f"""import fedplt.engines.simulator.engine as engine
engine.default_start_method = lambda device: {method!r}
"""
    (tmp_path / "script.py").write_text(pretend + code)
    command = [sys.executable, "-W", "error", "script.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def commands() -> list[str]:
    lines = [line for _, code in blocks("(?:sh|bash|console)") for line in code.splitlines()]
    return sorted({line.split("#")[0].strip() for line in lines if line.startswith("fedplt ")})


@pytest.mark.parametrize("command", commands())
def test_shown_commands_exist(command):
    """Every verb and option that is shown is known (long runs are not run here)."""
    verbs, words = [], shlex.split(command)[1:]
    group = app
    while words and not words[0].startswith("-"):
        names = {c.name or c.callback.__name__ for c in group.registered_commands}
        groups = {g.name: g.typer_instance for g in group.registered_groups}
        verbs.append(words.pop(0))
        if verbs[-1] in groups:
            group = groups[verbs[-1]]
            continue
        assert verbs[-1] in names, command
        break
    text = CliRunner().invoke(app, [*verbs, "--help"], env={"COLUMNS": "200"}).output
    for word in words:
        if word.startswith("--"):
            assert word.split("=")[0] in text, command


def test_the_shown_configurations_and_fleets_exist():
    for command in commands():
        known = {"fleet": find_fleet, **dict.fromkeys(("plan", "run", "compare"), find_config)}
        verb, *words = shlex.split(command)[1:]
        if verb in known and "." not in words[0]:
            assert known[verb](words[0]).is_file(), command


def test_links_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page} links to {target}"


def test_make_explains_itself():
    text = subprocess.run(["make"], capture_output=True, text=True, check=True).stdout
    for target in ("setup", "run", "test", "test-fast", "check", "fix", "bench", "docs"):
        assert re.search(rf"^\s*make {target}\b", text, re.MULTILINE), target


@pytest.mark.slow
def test_the_api_page_is_what_the_docstrings_say():
    done = subprocess.run([sys.executable, "tools/api_page.py", "--check"])
    assert done.returncode == 0, "docs/api.md is old: make api-page"
