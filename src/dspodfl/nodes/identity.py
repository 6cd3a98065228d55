"""Who a node is and whom it trusts: certificates that are listed one by one, or those of an organisation's CA.

The trust store of a node is exactly the certificates of its neighbours. After the handshake SHA-256 of the peer's
certificate says which of them it is. With a CA the id is in the certificate: URI ``dspodfl:<run_id>/<id>``.
"""

from __future__ import annotations

import hashlib
import ssl
import stat
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote, unquote

from dspodfl.errors import InputError
from dspodfl.nodes.certificates import Certificate, read_certificates
from dspodfl.nodes.transport.base import RefusedError

SCHEME = "dspodfl"
"""The scheme of the URI that names a node in a certificate of a CA."""
_EXPIRED, _NOT_YET = 10, 9  # X509_V_ERR_CERT_HAS_EXPIRED, X509_V_ERR_CERT_NOT_YET_VALID
_NOT_TLS = {
    *("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "HTTPS_PROXY_REQUEST", "UNSUPPORTED_PROTOCOL", "UNKNOWN_PROTOCOL"),
    *("UNEXPECTED_MESSAGE", "BAD_RECORD_TYPE", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "NO_SHARED_CIPHER"),
}


def node_uri(run_id: str, id: int) -> str:
    """Return the URI that names a node in a certificate.

    Args:
        run_id: The name of the run.
        id: The node.

    Returns:
        The URI; of the run id everything but letters, digits and ``_.-~`` is percent-encoded.

    >>> node_uri("hospital study 7", 3)
    'dspodfl:hospital%20study%207/3'
    """
    return f"{SCHEME}:{quote(run_id, safe='')}/{id}"


def node_of(uri: str) -> tuple[str, int] | None:
    """Return the run id and the node that a URI names; None if it is not such a URI.

    Args:
        uri: The URI.

    Returns:
        Run id and node.

    >>> node_of("dspodfl:hospital%20study%207/3")
    ('hospital study 7', 3)
    """
    scheme, _, rest = uri.partition(":")
    run, slash, number = rest.partition("/")
    if scheme != SCHEME or not slash or not (number.isascii() and number.isdigit()) or len(number) > 15:
        return None
    found = unquote(run), int(number)
    return found if node_uri(*found) == uri else None  # one way to write it, and no other


def clock_problem(certificate: Certificate, now: datetime) -> str | None:
    """Return what is wrong with a certificate's dates; None if it is valid.

    Args:
        certificate: The certificate.
        now: The time of this machine's clock.

    Returns:
        A clause that names the dates and the clock.
    """
    clock = f"by this machine's clock ({now:%Y-%m-%d %H:%M} UTC)"
    if now < certificate.begin:
        return f"is not valid before {certificate.begin:%Y-%m-%d %H:%M} UTC {clock}: is the clock right?"
    if now > certificate.end:
        return f"expired on {certificate.end:%Y-%m-%d %H:%M} UTC {clock}: renew it, or set the clock"
    return None


def explained(error: Exception) -> str:
    """Return why a handshake or a connection failed, in words for the log.

    Args:
        error: What OpenSSL or the socket raised.

    Returns:
        A sentence without a full stop.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        clock = f"by this machine's clock ({datetime.now(UTC):%Y-%m-%d %H:%M} UTC)"
        if error.verify_code == _EXPIRED:
            return f"its certificate has expired {clock}: renew it, or set the clock"
        if error.verify_code == _NOT_YET:
            return f"its certificate is not valid yet {clock}: is the clock right?"
        return f"its certificate is not one of those that are trusted here ({error.verify_message})"
    if isinstance(error, ssl.SSLError):
        reason = error.reason or "closed during the handshake"
        if reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
            return "it shows no certificate"
        if "ALERT_CERTIFICATE_EXPIRED" in reason:
            return "it refused this node's certificate as expired: renew it, or set the clock of one of the two"
        if "ALERT" in reason and ("CERT" in reason or "UNKNOWN_CA" in reason or "ACCESS_DENIED" in reason):
            return f"it refused this node's certificate ({_words(reason)}): does it list it, and are both clocks right?"
        if reason in _NOT_TLS or "PROTOCOL_VERSION" in reason:
            return f"it does not speak TLS 1.3 ({_words(reason)})"
        return f"TLS: {_words(reason)}"
    return str(getattr(error, "strerror", None) or str(error) or type(error).__name__)


def _words(reason: str) -> str:
    return reason.lower().replace("_", " ")


class Identity:
    """This node's certificate and key, and the certificates of its neighbours.

    Args:
        id: This node.
        certificate: Its certificate, PEM.
        key: Its private key, PEM without a password; only its owner may read the file.
        peers: The certificates of every neighbour, PEM; two of them while one is being replaced. With a CA it may be
            empty; what it lists is then required besides.
        ca: The certificate of the organisation's CA; None: the certificates of ``peers`` are trusted and no other.
        run_id: With a CA: the name of the run, which is part of the URI in every certificate.

    Raises:
        InputError: A file cannot be used, or one certificate is listed for two nodes.
    """

    def __init__(
        self,
        id: int,
        certificate: Path,
        key: Path,
        peers: Mapping[int, Iterable[Path]],
        *,
        ca: Path | None = None,
        run_id: str = "",
    ) -> None:
        self.id, self._ca, self._run_id = id, ca is not None, run_id
        own = read_certificates(certificate, "nodes.tls.certificate")[0]
        self.own = own
        problem = clock_problem(own, datetime.now(UTC))
        if problem is not None:
            raise InputError("nodes.tls.certificate", str(certificate), f"valid now; it {problem}")
        if ca is not None and self._claimed(own.uris) != id:
            raise InputError("nodes.tls.certificate", str(certificate), f"a certificate for {node_uri(run_id, id)}")
        self.peers = {
            peer: [found for path in paths for found in read_certificates(path, f"nodes.peer.{peer}.certificate")]
            for peer, paths in peers.items()
        }
        self._known = self._by_fingerprint()
        trusted = (
            read_certificates(ca, "nodes.tls.ca")
            if ca is not None
            else [c for found in self.peers.values() for c in found]
        )
        self.server = _context(ssl.PROTOCOL_TLS_SERVER, certificate, key, trusted)
        self.client = _context(ssl.PROTOCOL_TLS_CLIENT, certificate, key, trusted)

    def _by_fingerprint(self) -> dict[bytes, int]:
        known = {self.own.digest: self.id}
        for peer, certificates in self.peers.items():
            for certificate in certificates:
                other = known.setdefault(certificate.digest, peer)
                if other != peer:
                    raise InputError(
                        f"nodes.peer.{peer}.certificate", certificate.fingerprint, f"another than that of node {other}"
                    )
        return known

    def notes(self) -> list[str]:
        """Return what is wrong with the dates of the neighbours' certificates, a sentence each, for the log."""
        now = datetime.now(UTC)
        found = [(peer, clock_problem(c, now)) for peer, certificates in self.peers.items() for c in certificates]
        return [f"the certificate of node {peer} {problem}" for peer, problem in found if problem is not None]

    def who(self, sock: ssl.SSLSocket) -> int:
        """Return the node at the other end of a socket.

        Args:
            sock: The socket, after the handshake.

        Returns:
            The id that its certificate stands for.

        Raises:
            RefusedError: The certificate is that of no node known here.
        """
        der = sock.getpeercert(binary_form=True)
        if not der:
            raise RefusedError("it shows no certificate")
        digest = hashlib.sha256(der).digest()
        if not self._ca:
            if digest not in self._known:
                raise RefusedError(f"its certificate sha256:{digest.hex()} is not listed here")
            return self._known[digest]
        names = (sock.getpeercert() or {}).get("subjectAltName", ())
        peer = self._claimed([str(entry[1]) for entry in names if entry[0] == "URI"])
        if peer is None:
            raise RefusedError(f"its certificate is not for {node_uri(self._run_id, 0)[:-1]}<id>")
        if peer in self.peers and self.peers[peer] and self._known.get(digest) != peer:
            raise RefusedError(f"its certificate for node {peer} is not the one that is listed here")
        return peer

    def _claimed(self, uris: Iterable[str]) -> int | None:
        """The id that a certificate of the CA is for in this run; None for none, or for several."""
        found = {node[1] for uri in uris if (node := node_of(uri)) is not None and node[0] == self._run_id}
        return found.pop() if len(found) == 1 else None


def _context(protocol: int, certificate: Path, key: Path, trusted: list[Certificate]) -> ssl.SSLContext:
    """Make a context: TLS 1.3, certificates required, no session is resumed."""
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VerifyFlags(0x80000)  # X509_V_FLAG_PARTIAL_CHAIN: what is listed is trusted by itself
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_TICKET
    if protocol == ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 0
    check_key_file(key)
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
    except (OSError, ValueError) as error:
        reason = error.reason if isinstance(error, ssl.SSLError) else None
        why = f"the key of {certificate}" if reason == "KEY_VALUES_MISMATCH" else f"a private key in PEM ({error})"
        raise InputError("nodes.tls.key", str(key), why) from None
    if trusted:
        context.load_verify_locations(cadata=b"".join(one.der for one in trusted))
    return context


def _no_password() -> str:
    raise ValueError("it has a password, which a node cannot be asked for")


def check_key_file(key: Path, field: str = "nodes.tls.key") -> None:
    """Refuse a key file that is missing, or that others than its owner can read.

    Args:
        key: The file.
        field: What a message calls it.

    Raises:
        InputError: It is.
    """
    try:
        mode = key.stat().st_mode
        key.open("rb").close()
    except OSError as error:
        raise InputError(field, str(key), f"a file that can be read ({error.strerror})") from None
    if stat.S_IMODE(mode) & 0o077:
        raise InputError(field, str(key), f"readable by its owner alone (chmod 600 {key})")
