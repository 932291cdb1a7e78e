"""Keys and certificates: a site's own, made where they are used, and those of a server."""

from __future__ import annotations

import base64
import hashlib
import ipaddress
import os
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedskew.errors import ConfigError, RunError
from fedskew.store import make_folder

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import (
        EllipticCurvePrivateKey,
        EllipticCurvePublicKey,
    )

YEARS, DAYS = 10, 800
"""How long a server's authority and its certificate are valid."""
RENEW = timedelta(days=60)
"""A certificate with less than this left is made anew when the server starts."""
LENIENT = timedelta(days=1)
"""Certificates are valid from a day ago, for clocks that are slow."""


@dataclass(frozen=True)
class KeyPair:
    """A site's keys; the private one never leaves its folder."""

    private: EllipticCurvePrivateKey

    @classmethod
    def new(cls) -> KeyPair:
        from cryptography.hazmat.primitives.asymmetric import ec

        return cls(ec.generate_private_key(ec.SECP384R1()))

    @classmethod
    def load(cls, path: Path) -> KeyPair:
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        try:
            return cls(load_pem_private_key(path.read_bytes(), None))  # type: ignore[arg-type]
        except (OSError, ValueError) as error:
            raise RunError(
                f"{path} is no private key: it is made by 'fedskew site init'."
            ) from error

    def save(self, path: Path) -> None:
        write_secret(path, private_pem(self.private))

    @property
    def public(self) -> EllipticCurvePublicKey:
        return self.private.public_key()

    @property
    def pem(self) -> bytes:
        return public_pem(self.public)


def private_pem(key: Any) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    made: bytes = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return made


def public_pem(key: Any) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    made: bytes = key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return made


def write_secret(path: Path, text: bytes) -> None:
    """Write a file that only its owner may read."""
    make_folder(path.parent)
    path.parent.chmod(0o700)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(text)


def short(key: EllipticCurvePublicKey) -> str:
    """A public key as a word of 66 letters."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    point = key.public_bytes(Encoding.X962, PublicFormat.CompressedPoint)
    return base64.urlsafe_b64encode(point).decode().rstrip("=")


def from_short(word: str) -> EllipticCurvePublicKey:
    """The public key that such a word stands for."""
    from cryptography.hazmat.primitives.asymmetric import ec

    try:
        point = base64.urlsafe_b64decode(word + "=" * (-len(word) % 4))
        return ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP384R1(), point)
    except ValueError as error:
        raise ConfigError("the key in this line is damaged: copy the whole line again.") from error


def fingerprint(text: bytes) -> str:
    """Eight groups of four digits that two people can compare on the phone.

    >>> fingerprint(b"key")
    '2C70 E12B 7A06 46F9 2279 F427 C7B3 8E73'
    """
    digest = hashlib.sha256(text).hexdigest().upper()[:32]
    return " ".join(digest[place : place + 4] for place in range(0, 32, 4))


def make_authority(folder: Path, name: str) -> None:
    """A new authority for certificates of one server: ``ca.key`` and ``ca.crt``."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    who = _named(f"fedskew {name}")
    made = (
        _certificate(who, who, key.public_key(), timedelta(days=365 * YEARS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    write_secret(folder / "ca.key", private_pem(key))
    (folder / "ca.crt").write_bytes(_pem(made))


def make_certificate(folder: Path, host: str) -> None:
    """A certificate of the authority for a server: ``server.key`` and ``server.crt``."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_pem_private_key
    from cryptography.x509.oid import ExtendedKeyUsageOID

    authority = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    signer: Any = load_pem_private_key((folder / "ca.key").read_bytes(), None)
    key = ec.generate_private_key(ec.SECP256R1())
    names = {name: _alternative(name) for name in (host, "localhost", "127.0.0.1")}
    made = (
        _certificate(_named(host), authority.subject, key.public_key(), timedelta(days=DAYS))
        .add_extension(x509.SubjectAlternativeName(names.values()), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
        )
        .sign(signer, hashes.SHA256())
    )
    write_secret(folder / "server.key", private_pem(key))
    (folder / "server.crt").write_bytes(_pem(made))


def certificate_left(path: Path) -> timedelta:
    """How long a certificate is still valid."""
    from cryptography import x509

    made = x509.load_pem_x509_certificate(path.read_bytes())
    return made.not_valid_after_utc - datetime.now(UTC)


def authority_fingerprint(pem: bytes) -> str:
    """The fingerprint of an authority's certificate."""
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding

    return fingerprint(x509.load_pem_x509_certificate(pem).public_bytes(Encoding.DER))


def _certificate(who: Any, issuer: Any, key: Any, valid: timedelta) -> Any:
    from cryptography import x509

    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(who)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - LENIENT)
        .not_valid_after(now + valid)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _named(name: str) -> Any:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])


def _usage(signs: bool) -> Any:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=True, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, key_cert_sign=signs, crl_sign=signs,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _alternative(host: str) -> Any:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(certificate: Any) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    made: bytes = certificate.public_bytes(Encoding.PEM)
    return made
