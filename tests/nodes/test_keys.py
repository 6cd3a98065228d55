"""Keys and certificates: what is written, with which mode, and that nothing is replaced without a flag."""

import stat
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from dspodfl.errors import InputError
from dspodfl.nodes import approve, new_ca, new_keys, node_in, read_certificates, renew, request


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_new_keys_are_p256_signed_by_themselves_and_valid_from_a_day_ago(tmp_path):
    made = new_keys(tmp_path / "a" / "b", range(3, 5), days=30)
    assert [one.id for one in made] == [3, 4]
    for one in made:
        found = x509.load_pem_x509_certificate(one.path.read_bytes())
        assert (
            isinstance(found.public_key(), ec.EllipticCurvePublicKey) and found.public_key().curve.name == "secp256r1"
        )
        found.verify_directly_issued_by(found)
        now = datetime.now(UTC)
        assert timedelta(hours=23) < now - found.not_valid_before_utc < timedelta(hours=25)
        assert timedelta(days=29, hours=23) < found.not_valid_after_utc - now <= timedelta(days=30)
        assert not one.certificate.ca and one.certificate.self_signed and node_in(one.certificate) == one.id
        assert stat.S_IMODE(one.key.stat().st_mode) == 0o600
        assert one.path.stat().st_size < 900
    assert made[0].certificate.fingerprint != made[1].certificate.fingerprint


def test_keys_are_never_replaced_without_a_flag_and_nothing_is_written_then(tmp_path):
    new_keys(tmp_path, [1])
    before = contents(tmp_path)
    for make in (
        lambda: new_keys(tmp_path, range(3)),
        lambda: request(tmp_path, 1, "run"),
    ):
        with pytest.raises(InputError, match=r"does not exist yet .or use --overwrite"):
            make()
        assert contents(tmp_path) == before
    new_keys(tmp_path, range(2), overwrite=True)
    assert contents(tmp_path)["1.key"] != before["1.key"]


def test_a_dangling_link_is_not_written_through(tmp_path):
    (tmp_path / "0.key").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="does not exist yet"):
        new_keys(tmp_path, [0])
    new_keys(tmp_path, [0], overwrite=True)
    assert not (tmp_path / "elsewhere").exists() and not (tmp_path / "0.key").is_symlink()


def test_renewing_keeps_the_old_certificate(tmp_path):
    new_keys(tmp_path, [7])
    before = contents(tmp_path)
    (made,) = renew([tmp_path / "7.crt"], days=5)
    after = contents(tmp_path)
    assert after.keys() - before.keys() == {"7.next.crt", "7.next.key"} and before.items() <= after.items()
    assert made.id == 7 and made.certificate.fingerprint != read_certificates(tmp_path / "7.crt", "old")[0].fingerprint
    with pytest.raises(InputError, match="does not exist yet"):
        renew([tmp_path / "7.crt"])


def test_a_ca_signs_requests_and_nothing_else_that_they_ask_for(tmp_path):
    ca = new_ca(tmp_path / "ca")
    asked = request(tmp_path / "node", 3, "hospital/7")
    (made,) = approve([asked.path], tmp_path / "ca", days=100_0)
    issuer = x509.load_pem_x509_certificate(ca.path.read_bytes())
    found = x509.load_pem_x509_certificate(made.path.read_bytes())
    found.verify_directly_issued_by(issuer)
    assert made.certificate.uris == ("dspodfl:hospital%2F7/3",) and not made.certificate.ca and ca.certificate.ca
    assert made.path == tmp_path / "node" / "3.crt" and node_in(made.certificate) == 3
    assert stat.S_IMODE(ca.key.stat().st_mode) == 0o600
    with pytest.raises(InputError, match="`keys new` made"):
        renew([made.path])


def test_a_certificate_expires_with_its_ca_at_the_latest(tmp_path):
    ca = new_ca(tmp_path, days=3)
    asked = request(tmp_path, 3, "run")
    (made,) = approve([asked.path], tmp_path, days=300)
    assert made.certificate.end == ca.certificate.end


@pytest.mark.parametrize("kind", ["no file", "certificate", "two nodes", "another name", "another curve", "altered"])
def test_requests_of_another_form_are_refused_and_nothing_is_written(tmp_path, kind):
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.serialization import Encoding

    new_ca(tmp_path / "ca")
    fine = request(tmp_path / "node", 1, "run").path
    path = tmp_path / "node" / "2.csr"
    names = {"two nodes": ["dspodfl:run/2", "dspodfl:run/3"], "another name": ["dspodfl:run/x"]}.get(
        kind, ["dspodfl:run/2"]
    )
    key = ec.generate_private_key(ec.SECP384R1() if kind == "another curve" else ec.SECP256R1())
    builder = x509.CertificateSigningRequestBuilder(subject_name=x509.Name([])).add_extension(
        x509.SubjectAlternativeName([x509.UniformResourceIdentifier(name) for name in names]), critical=False
    )
    der = builder.sign(key, hashes.SHA256()).public_bytes(Encoding.DER)
    if kind == "altered":
        der = der.replace(b"dspodfl:run/2", b"dspodfl:run/9")
    if kind == "certificate":
        path.write_bytes((tmp_path / "ca" / "ca.pem").read_bytes())
    elif kind != "no file":
        path.write_bytes(x509.load_der_x509_csr(der).public_bytes(Encoding.PEM))
    before = contents(tmp_path / "node")
    with pytest.raises(InputError, match="request = "):
        approve([fine, path], tmp_path / "ca")
    assert contents(tmp_path / "node") == before


def test_a_ca_needs_its_own_key(tmp_path):
    new_ca(tmp_path / "one")
    new_ca(tmp_path / "two")
    new_keys(tmp_path / "node", [0])
    asked = [request(tmp_path, 1, "run").path]
    with pytest.raises(InputError, match="the key of "):
        approve(asked, tmp_path / "one" / "ca.pem", key=tmp_path / "two" / "ca.key")
    with pytest.raises(InputError, match="the certificate of a CA"):
        approve(asked, tmp_path / "node" / "0.crt", key=tmp_path / "node" / "0.key")
    assert not (tmp_path / "1.crt").exists()


@pytest.mark.parametrize("days", [0, -1, 36501])
def test_days_out_of_range_are_refused(tmp_path, days):
    for make in (new_keys, lambda folder, _, days: new_ca(folder, days=days)):
        with pytest.raises(InputError, match="days = "):
            make(tmp_path / "x", [1], days=days)
    assert not (tmp_path / "x").exists()


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"folder = .*file"):
        new_keys(tmp_path / "file" / "keys", [0])


@pytest.mark.parametrize("run_id", ["", "x" * 201])
def test_run_ids_out_of_range_are_refused(tmp_path, run_id):
    with pytest.raises(InputError, match="run_id"):
        request(tmp_path, 1, run_id)
    assert contents(tmp_path) == {}
