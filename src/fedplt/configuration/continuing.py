"""How a run that exists is continued: one piece of advice, whoever meets its folder."""

from __future__ import annotations

from pathlib import Path

from fedplt.configuration.config_errors import read_text
from fedplt.configuration.section import FROM_PYTHON
from fedplt.errors import RunError

SAME_CALL = "call fedplt.train with the same arguments and resume=True"


def how_to_continue(path: Path) -> str:
    """What to do about a folder that exists already."""
    config = path / "config.toml"
    replace = "or replace it with --overwrite (from Python: overwrite=True)."
    if not config.is_file():
        return "It is not a run's: choose another with --out (from Python: out=)."
    if FROM_PYTHON in read_text(config, RunError):
        return f"To continue it, {SAME_CALL}; else choose another folder with out=, {replace}"
    return (
        f"Continue it with 'fedplt resume {path}', choose another folder with --out (from Python: "
        f"out=), {replace}"
    )
