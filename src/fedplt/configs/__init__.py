"""Configurations and files of devices that come with the package, found by name."""

from __future__ import annotations

import re
import shutil
import tomllib
from pathlib import Path

from fedplt.errors import ConfigError, FedpltError, FleetError, did_you_mean

FOLDER = Path(__file__).parent


def builtin_configs() -> dict[str, Path]:
    """
    >>> "fashion-mnist" in builtin_configs()
    True
    """
    return {path.stem: path for path in sorted(FOLDER.glob("*.toml"), key=lambda path: path.stem)}


def builtin_fleets() -> dict[str, Path]:
    """
    >>> list(builtin_fleets())
    ['kitchen', 'paper-example', 'public-devices']
    """
    return {path.stem: path for path in sorted((FOLDER / "fleets").glob("*.*"))}


def find_config(given: str | Path) -> Path:
    """The file of a configuration: given by path, or a built-in one by name."""
    return _find(Path(given), builtin_configs(), "configuration", ConfigError)


def find_fleet(given: str | Path) -> Path:
    """The file of devices: given by path, or a built-in one by name."""
    return _find(Path(given), builtin_fleets(), "fleet", FleetError)


def _find(given: Path, known: dict[str, Path], what: str, error_type: type[FedpltError]) -> Path:
    if given.is_file():
        return given
    is_name = not given.suffix and given.parent == Path()
    if is_name and given.name in known:
        return known[given.name]
    if is_name and not given.is_dir():
        raise error_type(
            f"there is no file {given.name!r} here, and no built-in {what} of that name. "
            f"{did_you_mean(given.name, known)}"
        )
    if given.stem in known and not given.exists():
        raise error_type(
            f"there is no file {given}. The built-in {what} of that name is called "
            f"{given.stem!r}, without a folder or an ending."
        )
    return given  # reading it raises the error


def describe(path: Path) -> str:
    """What a configuration is, from the start of its first comment.

    >>> describe(builtin_configs()["fleet"])
    'A run whose ratios come from devices'
    """
    lines = path.read_text(encoding="utf-8").splitlines()
    comment = " ".join(line.lstrip("# ") for line in lines[:4] if line.startswith("#"))
    return re.split(r"[.:,(]", comment)[0].strip()


def copy_config(name: str, folder: Path) -> list[Path]:
    """Copy a built-in configuration, and the files it names, into a folder; returns the copies.

    Nothing is overwritten.
    """
    known = builtin_configs()
    if name not in known:
        raise ConfigError(
            f"there is no built-in configuration {name!r}. {did_you_mean(name, known)}"
        )
    source = known[name]
    values = tomllib.loads(source.read_text(encoding="utf-8"))
    names = [source.name, *filter(None, [values.get("fleet", {}).get("devices")])]
    copies = {FOLDER / each: folder / each for each in names}
    for copy in copies.values():
        if copy.exists():
            raise ConfigError(f"{copy} exists already. Choose another folder, or delete it.")
    for original, copy in copies.items():
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(original, copy)
    return list(copies.values())
