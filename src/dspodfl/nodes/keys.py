"""Keys and certificates of nodes: ECDSA on P-256, signed by themselves or by an organisation's CA.

A private key is written to a file that its owner alone can read, and never leaves it: a CA signs a request (CSR).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from dspodfl.errors import InputError
from dspodfl.nodes.certificates import Certificate, certificate_of, read_bounded, read_certificates, uris_of
from dspodfl.nodes.identity import check_key_file, node_of, node_uri

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey

DAYS = 3650
"""Days that a certificate is valid by default."""
LONGEST_DAYS = 36500
"""Days that a certificate is valid at most."""
CA_CERTIFICATE, CA_KEY = "ca.pem", "ca.key"
"""The files of a CA."""
_NAME = "dspodfl-"
_BEFORE = timedelta(days=1)


@dataclass(frozen=True)
class Written:
    """A certificate or a request that was written.

    Attributes:
        id: The node; None for a CA.
        path: The file of the certificate or request.
        key: The file of its private key; None where no key was made.
        certificate: The certificate; None for a request.
    """

    id: int | None
    path: Path
    key: Path | None
    certificate: Certificate | None


def new_keys(folder: Path, ids: Iterable[int], *, days: int = DAYS, overwrite: bool = False) -> list[Written]:
    """Make a key and a certificate that is signed with it for some nodes.

    Args:
        folder: Where to write ``<id>.crt`` and ``<id>.key``; made if it does not exist.
        ids: The nodes.
        days: Days that the certificates are valid, from a day ago.
        overwrite: Whether existing files are replaced.

    Returns:
        What was written, node by node.

    Raises:
        InputError: A file exists, or cannot be written.
    """
    chosen = [(id_, folder / f"{id_}.crt", folder / f"{id_}.key") for id_ in ids]
    _check(days, [file for _, *files in chosen for file in files], overwrite)
    return [_new_pair(id_, path, key_path, days) for id_, path, key_path in chosen]


def new_ca(folder: Path, *, days: int = DAYS, overwrite: bool = False) -> Written:
    """Make the key and the certificate of a CA.

    Args:
        folder: Where to write ``ca.pem`` and ``ca.key``; made if it does not exist.
        days: Days that the certificate is valid, from a day ago.
        overwrite: Whether existing files are replaced.

    Returns:
        What was written.

    Raises:
        InputError: A file exists, or cannot be written.
    """
    path, key_path = folder / CA_CERTIFICATE, folder / CA_KEY
    _check(days, [path, key_path], overwrite)
    key = _new_key()
    certificate = _signed(_name(f"{_NAME}ca"), key.public_key(), key, days, ca=True)
    _write_pair(path, _pem(certificate), key_path, key)
    return Written(None, path, key_path, certificate_of(certificate))


def renew(certificates: Sequence[Path], *, days: int = DAYS, overwrite: bool = False) -> list[Written]:
    """Make new keys and certificates for the nodes of old ones, which stay as they are.

    Neighbours list both until the node uses the new one.

    Args:
        certificates: The old certificates, ``NAME.crt``, signed by themselves.
        days: Days that the new ones are valid, from a day ago.
        overwrite: Whether existing files are replaced.

    Returns:
        What was written, ``NAME.next.crt`` and ``NAME.next.key`` for each.

    Raises:
        InputError: An old certificate cannot be used, or a file exists. Nothing is written then.
    """
    found = []
    for path in certificates:
        old = read_certificates(path, "certificate")[0]
        id_ = node_in(old)
        if id_ is None or not old.self_signed:
            raise InputError("certificate", str(path), "one that `keys new` made; of a CA, request another")
        found.append((id_, path.with_suffix(".next.crt"), path.with_suffix(".next.key")))
    _check(days, [file for _, *files in found for file in files], overwrite)
    return [_new_pair(id_, path, key_path, days) for id_, path, key_path in found]


def request(folder: Path, id: int, run_id: str, *, overwrite: bool = False) -> Written:
    """Make a key and the request (CSR) that an organisation's CA signs.

    Args:
        folder: Where to write ``<id>.csr`` and ``<id>.key``; made if it does not exist.
        id: The node.
        run_id: The name of the run, which becomes part of the certificate.
        overwrite: Whether existing files are replaced.

    Returns:
        What was written.

    Raises:
        InputError: A file exists, or cannot be written.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.serialization import Encoding

    if not 0 < len(run_id) <= 200:
        raise InputError("run_id", run_id, "a text of 1 to 200 characters")
    path, key_path = folder / f"{id}.csr", folder / f"{id}.key"
    _check(DAYS, [path, key_path], overwrite)
    key = _new_key()
    builder = x509.CertificateSigningRequestBuilder(subject_name=_name(f"{_NAME}{id}"))
    signed = builder.add_extension(_uri(node_uri(run_id, id)), critical=False).sign(key, hashes.SHA256())
    _write_pair(path, signed.public_bytes(Encoding.PEM), key_path, key)
    return Written(id, path, key_path, None)


def approve(
    requests: Sequence[Path], ca: Path, *, key: Path | None = None, days: int = DAYS, overwrite: bool = False
) -> list[Written]:
    """Sign requests with the key of a CA.

    Args:
        requests: The requests, ``NAME.csr``; the certificate ``NAME.crt`` is written next to each.
        ca: The certificate of the CA, or the folder with ``ca.pem`` and ``ca.key``.
        key: The key of the CA; None: ``ca.key`` next to the certificate.
        days: Days that the certificates are valid, from a day ago, but no longer than the CA.
        overwrite: Whether existing files are replaced.

    Returns:
        What was written, request by request.

    Raises:
        InputError: A file cannot be used, a request is not one of a node, or a file exists. Nothing is written then.
    """
    ca = ca / CA_CERTIFICATE if ca.is_dir() else ca
    issuer, signer = _read_ca(ca, ca.with_name(CA_KEY) if key is None else key)
    asked = [(path.with_suffix(".crt"), *_read_request(path)) for path in requests]
    _check(days, [path for path, *_ in asked], overwrite)
    found = []
    for path, id_, uri, public in asked:
        certificate = _signed(_name(f"{_NAME}{id_}"), public, signer, days, issuer=issuer, uri=uri)
        _write(path, _pem(certificate), 0o644)
        found.append(Written(id_, path, None, certificate_of(certificate)))
    return found


def node_in(certificate: Certificate) -> int | None:
    """Return the node that a certificate names; for people, since identity is the fingerprint or the URI.

    Args:
        certificate: The certificate.

    Returns:
        The id; None if it names none.
    """
    for uri in certificate.uris:
        node = node_of(uri)
        if node is not None:
            return node[1]
    number = certificate.name.removeprefix(_NAME)
    return int(number) if number != certificate.name and number.isascii() and number.isdigit() else None


def _new_pair(id: int, path: Path, key_path: Path, days: int) -> Written:
    key = _new_key()
    certificate = _signed(_name(f"{_NAME}{id}"), key.public_key(), key, days)
    _write_pair(path, _pem(certificate), key_path, key)
    return Written(id, path, key_path, certificate_of(certificate))


def _new_key() -> EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def _name(text: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _uri(uri: str) -> x509.SubjectAlternativeName:
    from cryptography import x509

    return x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri)])


def _signed(
    subject: x509.Name,
    public: EllipticCurvePublicKey,
    signer: EllipticCurvePrivateKey,
    days: int,
    *,
    ca: bool = False,
    issuer: x509.Certificate | None = None,
    uri: str | None = None,
) -> x509.Certificate:
    """Make a certificate, valid from a day ago: small boards start with a clock that is late."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.x509.oid import ExtendedKeyUsageOID

    begin = datetime.now(UTC).replace(microsecond=0) - _BEFORE
    end = begin + _BEFORE + timedelta(days=days)
    usage = dict.fromkeys(
        (
            "content_commitment",
            "key_encipherment",
            "data_encipherment",
            "key_agreement",
            "encipher_only",
            "decipher_only",
        ),
        False,
    )
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if issuer is None else issuer.subject)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(end if issuer is None else min(end, issuer.not_valid_after_utc))
        .add_extension(x509.BasicConstraints(ca=ca, path_length=0 if ca else None), critical=True)
        .add_extension(
            x509.KeyUsage(digital_signature=not ca, key_cert_sign=ca, crl_sign=ca, **usage),
            critical=True,
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    if not ca:
        both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = builder.add_extension(x509.ExtendedKeyUsage(both), critical=False)
    if uri is not None:
        builder = builder.add_extension(_uri(uri), critical=False)
    return builder.sign(signer, hashes.SHA256())


def _read_ca(path: Path, key_path: Path) -> tuple[x509.Certificate, EllipticCurvePrivateKey]:
    """Read certificate and key of a CA, and check that they belong together."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    if not read_certificates(path, "ca")[0].ca:
        raise InputError("ca", str(path), "the certificate of a CA, as `keys new --ca` makes it")
    issuer = x509.load_pem_x509_certificate(read_bounded(path, "ca"))
    check_key_file(key_path, "key")
    try:
        key = load_pem_private_key(read_bounded(key_path, "key"), password=None)
    except (ValueError, TypeError):
        raise InputError("key", str(key_path), "a private key in PEM without a password") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != issuer.public_key():
        raise InputError("key", str(key_path), f"the key of {path}")
    return issuer, key


def _read_request(path: Path) -> tuple[int, str, EllipticCurvePublicKey]:
    """Read a request: the node, its URI and its public key. Of all that it asks for nothing else is signed."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

    try:
        found = x509.load_pem_x509_csr(read_bounded(path, "request"))
        uris, public, genuine = uris_of(found.extensions), found.public_key(), found.is_signature_valid
    except ValueError:
        raise InputError("request", str(path), "a request as `keys request` writes it") from None
    nodes = [node for uri in uris if (node := node_of(uri)) is not None]
    on_curve = isinstance(public, ec.EllipticCurvePublicKey) and isinstance(public.curve, ec.SECP256R1)
    if not genuine or len(uris) != 1 or not nodes or not on_curve:
        raise InputError("request", str(path), "a request as `keys request` writes it: P-256, signed, for one node")
    return nodes[0][1], uris[0], public  # type: ignore[return-value]


def _check(days: int, files: list[Path], overwrite: bool) -> None:
    """Refuse, before anything is written, days out of range and files that exist."""
    if not 1 <= days <= LONGEST_DAYS:
        raise InputError("days", days, f"from 1 to {LONGEST_DAYS}")
    for file in files:
        if file.is_dir() or (not overwrite and os.path.lexists(file)):
            raise InputError("file", str(file), "a file that does not exist yet (or use --overwrite)")


def _write_pair(path: Path, content: bytes, key_path: Path, key: EllipticCurvePrivateKey) -> None:
    """Write a key, and then what is public of it; neither is left alone where the other cannot be written."""
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError("folder", str(path.parent), f"a folder that can be made ({error.strerror})") from None
    _write(key_path, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), 0o600)
    try:
        _write(path, content, 0o644)
    except InputError:
        with contextlib.suppress(OSError):
            key_path.unlink()
        raise


def _pem(certificate: x509.Certificate) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM)


def _write(path: Path, content: bytes, mode: int) -> None:
    """Write a file that has its mode from the first byte on, completely or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
    except OSError as error:
        raise InputError("file", str(path), f"a file that can be written ({error.strerror})") from None
