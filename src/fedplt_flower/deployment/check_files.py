"""Checks of files on this machine: versions, private files, certificates and keys."""

from __future__ import annotations

import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar, get_args

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
    load_ssh_private_key,
)

from fedplt.errors import FedpltError
from fedplt_flower.deployment.manifest import Address, installed_versions

Level = Literal["ok", "note", "problem"]
LEVELS: tuple[Level, ...] = get_args(Level)
RENEW = "sign a new server certificate with ca/, or make a new deployment ('fedplt deploy init')"
SOON = timedelta(days=30)
Extension = TypeVar("Extension", bound=x509.ExtensionType)


@dataclass(frozen=True)
class Finding:
    """One result of a check: ok, a note, or a problem and what to do about it."""

    level: Level
    text: str
    do: str = ""


ok, note, problem = (partial(Finding, level) for level in LEVELS)


def guarded(findings: Iterator[Finding], do: str) -> Iterator[Finding]:
    """The findings of a check; an exception becomes a problem."""
    try:
        yield from findings
    except FedpltError as error:
        yield problem(str(error), do)


def reason_of(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return "it is damaged, or another kind of file"


def private_file(path: Path) -> Finding:
    """Check that only the owner may read a key."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError as error:
        return problem(f"{path} cannot be read: {error.strerror}", "copy the folder again")
    if mode & 0o077:
        text = f"{path} can be read by others (mode {mode:o})"
        return problem(text, f"chmod 600 {path}; if others may have read it, make new keys")
    return ok(f"{path.name} is private")


def versions(wanted: Mapping[str, str], here: Mapping[str, str] | None = None) -> Iterator[Finding]:
    """Compare installed versions with the versions that made the deployment."""
    here = here or installed_versions()
    for package, expected in wanted.items():
        found = here.get(package, "(not installed)")
        text = f"{package} {found}, but the deployment was made with {expected}"
        same_minor = found.split(".")[:2] == expected.split(".")[:2]
        text += "" if same_minor else ": results may differ in bits"
        if found == expected:
            yield ok(f"{package} {found}")
        elif package in ("fedplt", "flwr") or (package == "torch" and not same_minor):
            yield problem(text, f"pip install '{package}=={expected.partition('+')[0]}'")
        else:
            yield note(text)


def check_ca(path: Path, now: datetime | None = None) -> Iterator[Finding]:
    """Check the CA certificate, which every machine has."""
    ca = _load(path)
    if isinstance(ca, Finding):
        yield ca
        return
    yield _validity(ca, path, now)
    constraints = _extension(ca, x509.BasicConstraints)
    if constraints is None or not constraints.ca:
        yield problem(f"{path} is not the certificate of an authority", "copy ca/ca.crt there")


def check_certificate(
    folder: Path,
    address: Address,
    name: str = "server",
    authority: str = "ca.crt",
    now: datetime | None = None,
) -> Iterator[Finding]:
    """Check validity, names, key and signature of ``server.pem`` or ``runtime.pem``."""
    path = folder / f"{name}.pem"
    certificate, ca = _load(path), _load(folder / authority)
    if isinstance(certificate, Finding):
        yield certificate
        return
    yield _validity(certificate, path, now)
    yield _names(certificate, path, address)
    yield _key_matches(certificate, folder / f"{name}.key")
    if isinstance(ca, Finding):
        return  # check_ca reports it
    try:
        certificate.verify_directly_issued_by(ca)
        yield ok(f"{path.name} is signed by {authority}")
    except (ValueError, TypeError, InvalidSignature):
        do = f"use the ca.crt that belongs to it on every machine, or {RENEW}"
        yield problem(f"{path} is not signed by {folder / authority}", do)


def check_node_key(folder: Path) -> Finding:
    """Check that ``node.key`` has the format that Flower reads, and belongs to ``node.pub``."""
    path = folder / "node.key"
    do = "copy the node's folder again"
    try:
        key = load_ssh_private_key(path.read_bytes(), None)
        public = (folder / "node.pub").read_bytes().split()
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        return problem(f"{path} cannot be read: {reason_of(error)}", do)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        return problem(f"{path} is not an elliptic-curve key", do)
    text = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    if text.split()[:2] != public[:2]:
        return problem(f"{path} does not match node.pub, which was registered", do)
    return ok("node.key matches node.pub")


def _load(path: Path) -> x509.Certificate | Finding:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        do = "copy it again from where the deployment was made"
        return problem(f"{path} cannot be read: {reason_of(error)}", do)


def _extension(certificate: x509.Certificate, kind: type[Extension]) -> Extension | None:
    try:
        return certificate.extensions.get_extension_for_class(kind).value
    except x509.ExtensionNotFound:
        return None


def _validity(certificate: x509.Certificate, path: Path, now: datetime | None) -> Finding:
    now = now or datetime.now(UTC)
    start, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    clock = f"this machine's clock is at {now:%Y-%m-%d %H:%M} UTC"
    if now < start:
        text = f"{path} is not valid before {start:%Y-%m-%d %H:%M} UTC; {clock}"
        return problem(text, "set the clock")
    if now > end:
        return problem(
            f"{path} expired on {end:%Y-%m-%d}; {clock}", f"{RENEW}; is the clock right?"
        )
    if end - now < SOON:
        return note(f"{path.name} expires on {end:%Y-%m-%d}", RENEW)
    return ok(f"{path.name} is valid until {end:%Y-%m-%d}")


def _names(certificate: x509.Certificate, path: Path, address: Address) -> Finding:
    found, names = set[str](), _extension(certificate, x509.SubjectAlternativeName)
    if names is not None:
        found = {*names.get_values_for_type(x509.DNSName)}
        found |= {str(ip) for ip in names.get_values_for_type(x509.IPAddress)}
    missing = [host for host in address.hosts if host not in found]
    if missing:
        text = f"{path} is for {', '.join(sorted(found)) or 'no name'}, not for "
        return problem(text + ", ".join(missing), RENEW)
    return ok(f"{path.name} is for {', '.join(address.hosts)}")


def _key_matches(certificate: x509.Certificate, path: Path) -> Finding:
    try:
        key = load_pem_private_key(path.read_bytes(), None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        return problem(f"{path} cannot be read: {reason_of(error)}", RENEW)
    form = Encoding.DER, PublicFormat.SubjectPublicKeyInfo
    if key.public_key().public_bytes(*form) != certificate.public_key().public_bytes(*form):
        return problem(f"{path} is not the key of {path.stem}.pem", RENEW)
    return ok(f"{path.name} matches {path.stem}.pem")
