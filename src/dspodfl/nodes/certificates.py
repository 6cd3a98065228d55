"""Certificates as values: read from PEM files within bounds."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from dspodfl.errors import InputError

if TYPE_CHECKING:
    from cryptography import x509

LONGEST_FILE = 1 << 20
"""Bytes of a PEM file, at most."""


@dataclass(frozen=True)
class Certificate:
    """What is known of a certificate.

    Attributes:
        der: Its bytes.
        name: The common name of its subject.
        uris: The URIs that it is for.
        begin: When it becomes valid, UTC.
        end: When it expires, UTC.
        self_signed: Whether it is signed with its own key.
        ca: Whether it may sign others.
    """

    der: bytes
    name: str
    uris: tuple[str, ...]
    begin: datetime
    end: datetime
    self_signed: bool
    ca: bool

    @property
    def digest(self) -> bytes:
        """SHA-256 of its bytes."""
        return hashlib.sha256(self.der).digest()

    @property
    def fingerprint(self) -> str:
        """The digest as configurations write it: ``sha256:`` and 64 hexadecimal digits."""
        return f"sha256:{self.digest.hex()}"


def read_bounded(path: Path, field: str) -> bytes:
    """Read a small file.

    Args:
        path: The file.
        field: What a message calls it.

    Returns:
        Its bytes.

    Raises:
        InputError: It cannot be read, or is too large.
    """
    try:
        with path.open("rb") as file:
            text = file.read(LONGEST_FILE + 1)
    except OSError as error:
        raise InputError(field, str(path), f"a file that can be read ({error.strerror})") from None
    if len(text) > LONGEST_FILE:
        raise InputError(field, str(path), f"a file of at most {LONGEST_FILE} bytes")
    return text


def read_certificates(path: Path, field: str) -> list[Certificate]:
    """Read the certificates of a PEM file.

    Args:
        path: The file.
        field: What a message calls it.

    Returns:
        The certificates, at least one.

    Raises:
        InputError: The file cannot be read, or holds something else.
    """
    from cryptography import x509

    text = read_bounded(path, field)
    try:
        return [certificate_of(found) for found in x509.load_pem_x509_certificates(text)]
    except ValueError:
        raise InputError(field, str(path), "a certificate in PEM (-----BEGIN CERTIFICATE-----)") from None


def certificate_of(found: x509.Certificate) -> Certificate:
    """Return what is known of a certificate.

    Args:
        found: The certificate of the library.

    Returns:
        The value.
    """
    from cryptography.hazmat.primitives.serialization import Encoding

    return Certificate(
        der=found.public_bytes(Encoding.DER),
        name=common_name(found.subject),
        uris=uris_of(found.extensions),
        begin=found.not_valid_before_utc,
        end=found.not_valid_after_utc,
        self_signed=found.subject == found.issuer,
        ca=_is_ca(found.extensions),
    )


def common_name(name: x509.Name) -> str:
    """Return the common name of a subject; empty if it has none.

    Args:
        name: The subject.

    Returns:
        The text.
    """
    from cryptography.x509.oid import NameOID

    return next((str(entry.value) for entry in name.get_attributes_for_oid(NameOID.COMMON_NAME)), "")


def uris_of(extensions: Iterable[x509.Extension[x509.ExtensionType]]) -> tuple[str, ...]:
    """Return the URIs of a certificate or of a request.

    Args:
        extensions: Its extensions.

    Returns:
        The URIs, in order.
    """
    from cryptography import x509

    names = [one.value for one in extensions if isinstance(one.value, x509.SubjectAlternativeName)]
    return tuple(uri for found in names for uri in found.get_values_for_type(x509.UniformResourceIdentifier))


def _is_ca(extensions: Iterable[x509.Extension[x509.ExtensionType]]) -> bool:
    from cryptography import x509

    return any(one.value.ca for one in extensions if isinstance(one.value, x509.BasicConstraints))
