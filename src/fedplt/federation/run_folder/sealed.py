"""Files whose damage is detected: each carries its run's id and a digest of its content.

A text (a JSON object, a TOML file) has the seal ``RUN:SHA256`` in its last key or line; the digest
is over all other characters and the kind of the file. A file of tensors has a sealed JSON object
as metadata, with the digest of the tensors.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fedplt.errors import DamagedError, FedpltError, RunError
from fedplt.files import open_ordinary, read_file, write_atomically
from fedplt.schema import first_problem

SEAL = re.compile(r'seal"?: "?([0-9a-f]{16}):([0-9a-f]{64})')
UNSEALED = "0" * 64
METADATA = "fedplt"
Kind = TypeVar("Kind")


def seal_json(values: Mapping[str, Any], run: str, kind: str, indent: int | None = None) -> str:
    """A JSON object with a seal as its last key."""
    return _seal(json.dumps({**values, "seal": f"{run}:{UNSEALED}"}, indent=indent), kind)


def seal_lines(text: str, run: str, kind: str) -> str:
    """A text (TOML) with a seal in a comment at its end."""
    return _seal(f"{text}\n# seal: {run}:{UNSEALED}\n", kind)


def _seal(text: str, kind: str) -> str:
    """Fill in the digest."""
    before, _, after = text.rpartition(UNSEALED)
    return f"{before}{_digest(before + after, kind)}{after}"


def run_of(text: str, kind: str, path: Path | str, run: str | None = None) -> str:
    """Check a text's seal; return the id of its run, which must be ``run`` if that is given."""
    *_, found = [None, *SEAL.finditer(text)]
    if found is None:
        raise DamagedError(
            f"{path} has no seal: it was damaged or edited, or another version of fedplt wrote it."
        )
    start, stop = found.span(2)
    if _digest(text[:start] + text[stop:], kind) != found[2]:
        raise DamagedError(f"{path} is not what fedplt wrote: it was damaged or edited.")
    if run not in (None, found[1]):
        raise DamagedError(f"{path} belongs to another run ({found[1]}, this is {run}).")
    return found[1]


def open_json(text: str, kind: str, path: Path | str, run: str | None = None) -> dict[str, Any]:
    """The values of a sealed JSON object."""
    run_of(text, kind, path, run)
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(values, dict):
        raise DamagedError(f"{path} holds a {type(values).__name__}, not an object.")
    values.pop("seal", None)
    return values


def checked(kind: TypeAdapter[Kind], values: Any, what: Path | str) -> Kind:
    """Validate plain values as this kind; the error names the first invalid field."""
    try:
        return kind.validate_json(json.dumps(values), strict=True)  # strict mode reads JSON alone
    except ValidationError as error:
        raise DamagedError(f"{what} is damaged: {first_problem(error)}") from None
    except (TypeError, ValueError, RecursionError) as error:
        raise DamagedError(f"{what} is damaged: {error}") from error


def read_sealed(path: Path) -> str:
    """The text of a file of a run."""
    try:
        return read_file(path).decode("utf-8")
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise DamagedError(f"{path} cannot be read: it is not text ({error.reason}).") from error


def read_json(path: Path, run: str) -> dict[str, Any]:
    """The values of a JSON file of a run; its kind is its name (``plan.json``: ``plan``)."""
    return open_json(read_sealed(path), path.stem, path, run)


def save_tensors(
    path: Path,
    tensors: Mapping[str, Tensor],
    about: Mapping[str, Any],
    run: str,
    kind: str,
    *,
    previous: Path | None = None,
    private: bool = False,
) -> str:
    """Write tensors with metadata; an existing file is moved to ``previous``.

    ``private``: only the owner may read them. Returns the digest of the tensors.
    """
    digest = tensors_digest(tensors)
    metadata = {METADATA: seal_json({**about, "tensors": digest}, run, kind)}

    def write(scratch: Path) -> None:
        try:
            save_file(dict(tensors), scratch, metadata)
        except SafetensorError as error:  # such as a full disk
            raise OSError(None, str(error), str(path)) from error

    write_atomically(path, write, previous=previous, private=private)
    return digest


def load_tensors(
    path: Path, kind: str, run: str | None = None
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and their metadata; a file that was changed is refused."""
    with _opened(path) as file:
        about = _about(file, kind, path, run)
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    if about.pop("tensors", None) != tensors_digest(tensors):
        raise DamagedError(f"{path} is not what fedplt wrote: its numbers were changed.")
    return tensors, about


def read_about(path: Path, kind: str, run: str | None = None) -> dict[str, Any]:
    """The metadata of a file of tensors, without reading the tensors."""
    with _opened(path) as file:
        about = _about(file, kind, path, run)
    about.pop("tensors", None)
    return about


def _about(file: Any, kind: str, path: Path, run: str | None) -> dict[str, Any]:
    text = (file.metadata() or {}).get(METADATA, "")
    return {**open_json(text, kind, path, run), "run": run_of(text, kind, path)}


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Open a file of tensors; a file that cannot be read raises an error of fedplt."""
    try:
        os.close(open_ordinary(path))
        with safe_open(path, "pt") as file:
            yield file
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror or error}") from error
    except (SafetensorError, ValueError, TypeError, RuntimeError, KeyError) as error:
        if isinstance(error, FedpltError):
            raise
        raise DamagedError(f"{path} cannot be read: {error}.") from error


def tensors_digest(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over names, types, shapes and numbers."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        values = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(values.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _digest(text: str, kind: str) -> str:
    return hashlib.sha256(f"{kind}\0{text}".encode()).hexdigest()
