"""What ``--help`` shows: every verb in the order of use, its whole text, and examples."""

from __future__ import annotations

import re

import click
import pytest
import typer
from typer.testing import CliRunner

from fedplt.cli import app
from fedplt.cli.app import VERBS, out
from tests.support.shown import command_lines

ROOT = typer.main.get_command(app)


def commands(command: click.Command = ROOT, path: tuple[str, ...] = ()):
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*path, name))


def shown(path, application=app) -> str:
    done = CliRunner().invoke(application, [*path, "--help"], env={"COLUMNS": "1000"})
    assert done.exit_code == 0
    return words(done.output)


def words(text: str) -> str:
    return re.sub(r"[\s│]+", " ", text)


@pytest.mark.parametrize("path", [path for path, _ in commands()], ids=" ".join)
def test_the_help_has_every_text_with_its_brackets(path):
    command = dict(commands())[path]
    output = shown(path)
    texts = [command.help, *(getattr(option, "help", "") for option in command.params)]
    for text in filter(None, texts):
        assert words(text.replace("\\[", "[")) in output


def test_sections_in_brackets_are_not_taken_for_markup():
    assert "a run with [privacy] would spend" in shown(["privacy"])
    assert "a run with [privacy] would spend" in shown([])


def test_verbs_are_listed_in_the_order_of_use():
    order = [name for verbs in VERBS.values() for name in verbs]
    assert set(order) == {" ".join(path) for path, _ in commands() if path}
    output = shown([])
    places = [output.index(f"─ {title} ─") for title in VERBS]
    places += [output.index(f" {name} ", places[0]) for name in order if " " not in name]
    assert places[: len(VERBS)] == sorted(places[: len(VERBS)])
    assert places[len(VERBS) :] == sorted(places[len(VERBS) :])


def test_every_verb_has_examples_that_the_pages_show_too():
    """tests/test_shown_commands.py runs them."""
    documented = command_lines()
    for path, command in commands():
        if not isinstance(command, click.Group):
            examples = next(
                verbs[name] for verbs in VERBS.values() if (name := " ".join(path)) in verbs
            )
            assert examples
            for example in examples:
                assert example.startswith(f"fedplt {' '.join(path)}")
                assert example in documented
                assert example in shown(path)


@pytest.mark.parametrize("typed", [["rnu"], ["deploy", "chek"], ["flower", "inti"], ["data", "gt"]])
def test_a_mistyped_verb_gets_one_suggestion(typed):
    done = CliRunner().invoke(app, typed)
    assert done.exit_code == 2 and done.output.count("Did you mean") == 1


def test_lines_in_a_pipe_are_whole(capsys):
    out.print("accuracy " * 40)
    assert len(capsys.readouterr().out.splitlines()) == 1
