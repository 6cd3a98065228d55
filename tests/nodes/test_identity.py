"""Who a node is: files that cannot be used are refused by name, and a URI names one node in one way."""

import os
import ssl
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.nodes.ends import identity

from dspodfl.errors import InputError
from dspodfl.nodes import Identity, clock_problem, new_ca, new_keys, node_of, node_uri, read_certificates, request
from dspodfl.nodes.identity import explained


@given(st.text(min_size=1, max_size=30), st.integers(0, 10**9))
def test_a_uri_names_run_and_node(run_id, id):
    assert node_of(node_uri(run_id, id)) == (run_id, id)
    assert node_uri(run_id, id).isascii()


@pytest.mark.parametrize(
    "uri",
    [
        *("", "dspodfl:run", "dspodfl:run/", "dspodfl:run/-1", "dspodfl:run/01", "dspodfl:a b/1", "dspodfl:a/b/1"),
        *("http:run/1", "dspodfl:run/1 ", "dspodfl:r%75n/1", "DSPODFL:run/1", "dspodfl:run/" + "9" * 40),
        "dspodfl:run/１",
    ],
)
def test_other_uris_name_nothing(uri):
    assert node_of(uri) is None


def test_contexts_require_tls_1_3_and_certificates(keys):
    found = identity(keys, 0, [1, 2])
    for context in (found.server, found.client):
        assert context.minimum_version == ssl.TLSVersion.TLSv1_3 and context.verify_mode == ssl.CERT_REQUIRED
        assert len(context.get_ca_certs(binary_form=True)) <= 2
        assert context.cert_store_stats()["x509"] == 2  # the neighbours, and nobody else
    assert found.server.num_tickets == 0


def test_a_node_without_neighbours_trusts_nobody(keys):
    assert identity(keys, 0, []).server.cert_store_stats()["x509"] == 0


def refused(match, *arguments, **how):
    with pytest.raises(InputError, match=match):
        Identity(*arguments, **how)


def test_files_that_cannot_be_used_are_named(keys, tmp_path):
    peers = {1: [keys / "1.crt"]}
    refused("nodes.tls.certificate = .*No such file", 0, tmp_path / "0.crt", keys / "0.key", peers)
    refused("nodes.tls.key = .*No such file", 0, keys / "0.crt", tmp_path / "0.key", peers)
    refused("nodes.tls.key = .*the key of ", 0, keys / "0.crt", keys / "2.key", peers)
    refused("nodes.tls.certificate = .*certificate in PEM", 0, keys / "0.key", keys / "0.key", peers)
    refused("nodes.peer.1.certificate = .*No such file", 0, keys / "0.crt", keys / "0.key", {1: [tmp_path / "1.crt"]})
    (tmp_path / "wrong.key").write_text("no key")
    (tmp_path / "wrong.key").chmod(0o600)
    refused("nodes.tls.key = .*private key in PEM", 0, keys / "0.crt", tmp_path / "wrong.key", peers)
    (tmp_path / "large.crt").write_bytes(bytes(2 << 20))
    refused("nodes.tls.certificate = .*at most 1048576 bytes", 0, tmp_path / "large.crt", keys / "0.key", peers)


def test_a_key_that_others_can_read_is_refused(tmp_path):
    new_keys(tmp_path, [0])
    os.chmod(tmp_path / "0.key", 0o640)
    refused("nodes.tls.key = .*owner alone .chmod 600", 0, tmp_path / "0.crt", tmp_path / "0.key", {})


def test_a_key_with_a_password_is_refused_and_nobody_is_asked_for_it(keys, tmp_path):
    from cryptography.hazmat.primitives import serialization as s

    key = s.load_pem_private_key((keys / "0.key").read_bytes(), None)
    locked = key.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.BestAvailableEncryption(b"secret"))
    (tmp_path / "0.key").write_bytes(locked)
    (tmp_path / "0.key").chmod(0o600)
    refused("nodes.tls.key = .*it has a password", 0, keys / "0.crt", tmp_path / "0.key", {})


def test_one_certificate_is_that_of_one_node(keys):
    own = (keys / "0.crt", keys / "0.key")
    refused("another than that of node 1", 0, *own, {1: [keys / "1.crt"], 2: [keys / "1.crt"]})
    refused("another than that of node 0", 0, *own, {1: [keys / "0.crt"]})


def test_with_a_ca_a_node_needs_a_certificate_for_its_id_and_run(keys, tmp_path):
    new_ca(tmp_path)
    refused(
        "must be a certificate for dspodfl:run/0",
        0,
        keys / "0.crt",
        keys / "0.key",
        {},
        ca=tmp_path / "ca.pem",
        run_id="run",
    )


def test_dates_are_compared_with_the_clock_which_is_named(keys):
    certificate = read_certificates(keys / "0.crt", "file")[0]
    now = datetime.now(UTC)
    assert clock_problem(certificate, now) is None
    assert certificate.begin < now - timedelta(hours=23)  # valid from a day ago
    early = clock_problem(certificate, datetime(1970, 1, 1, tzinfo=UTC))
    late = clock_problem(certificate, certificate.end + timedelta(1))
    assert "by this machine's clock (1970-01-01 00:00 UTC): is the clock right?" in early
    assert late.startswith("expired on ") and "set the clock" in late


def test_own_certificate_outside_its_dates_is_refused_at_the_start(keys, monkeypatch):
    class Old(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime(1970, 1, 1, tzinfo=tz)

    found = identity(keys, 0, [1])
    monkeypatch.setattr("dspodfl.nodes.identity.datetime", Old)
    refused("valid now; it is not valid before .*clock .1970-01-01", 0, keys / "0.crt", keys / "0.key", {})
    assert [note.partition(" is not valid before")[0] for note in found.notes()] == ["the certificate of node 1"]


def test_requests_are_no_certificates(tmp_path):
    request(tmp_path, 1, "run")
    with pytest.raises(InputError, match="a certificate in PEM"):
        read_certificates(tmp_path / "1.csr", "file")


def test_failures_of_sockets_are_explained_in_words():
    assert explained(ConnectionResetError(104, "Connection reset by peer")) == "Connection reset by peer"
    assert explained(OSError()) == "OSError"
