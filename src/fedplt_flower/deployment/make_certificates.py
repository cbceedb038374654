"""Make keys and certificates: a certificate authority, the server's certificate, a key per node."""

from __future__ import annotations

import ipaddress
import os
import secrets
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedplt_flower.deployment.manifest import LOCAL, Address, is_ip

CA_DAYS = 3650
SERVER_DAYS = 730
PrivateKey = ec.EllipticCurvePrivateKey


def new_key() -> PrivateKey:
    return ec.generate_private_key(ec.SECP384R1())


def write_private(path: Path, content: bytes) -> None:
    """Write a new file that only its owner can ever read."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, 0o600)  # regardless of the umask
        file.write(content)


def pem_private(key: PrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def openssh_private(key: PrivateKey) -> bytes:
    """The private key in OpenSSH format, the only one that ``flower-supernode`` reads."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())


def openssh_public(key: PrivateKey, comment: str) -> bytes:
    text = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return text + b" " + comment.encode() + b"\n"


def pem_certificate(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(Encoding.PEM)


def make_ca(key: PrivateKey, now: datetime | None = None) -> x509.Certificate:
    """The certificate authority of one deployment."""
    name = _name("fedplt deployment CA")
    builder = _builder(name, name, key, CA_DAYS, now)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(sign_certificates=True), critical=True)
    return builder.sign(key, hashes.SHA384())


def make_server_certificate(
    key: PrivateKey,
    ca: x509.Certificate,
    ca_key: PrivateKey,
    address: Address,
    now: datetime | None = None,
    days: int = SERVER_DAYS,
) -> x509.Certificate:
    """The server's certificate, for all its names and for loopback."""
    hosts = dict.fromkeys((*address.hosts, *LOCAL))
    names: list[x509.GeneralName] = [
        x509.IPAddress(ipaddress.ip_address(host)) if is_ip(host) else x509.DNSName(host)
        for host in hosts
    ]
    builder = _builder(_name("fedplt server"), ca.subject, key, days, now)
    extensions: list[tuple[x509.ExtensionType, bool]] = [
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (x509.SubjectAlternativeName(names), False),
        (_usage(sign_certificates=False), True),
        (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), False),
    ]
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical=critical)
    return builder.sign(ca_key, hashes.SHA384())


def write_server(
    folder: Path, name: str, authority: str, address: Address, days: int = SERVER_DAYS
) -> PrivateKey:
    """Write a secret, a key with its certificate, and the certificate of a new authority.

    Returns the authority's key, which is not written.
    """
    ca_key, key = new_key(), new_key()
    ca = make_ca(ca_key)
    certificate = make_server_certificate(key, ca, ca_key, address, days=days)
    write_private(folder / "superexec.secret", secrets.token_hex(32).encode())
    write_private(folder / f"{name}.key", pem_private(key))
    (folder / f"{name}.pem").write_bytes(pem_certificate(certificate))
    (folder / authority).write_bytes(pem_certificate(ca))
    return ca_key


def _builder(
    subject: x509.Name, issuer: x509.Name, key: PrivateKey, days: int, now: datetime | None
) -> x509.CertificateBuilder:
    start = (now or datetime.now(UTC)) - timedelta(hours=1)  # clocks differ
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _usage(*, sign_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not sign_certificates,
        key_cert_sign=sign_certificates,
        crl_sign=sign_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
