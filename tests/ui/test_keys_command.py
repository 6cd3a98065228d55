"""``dspodfl keys``: what is printed can be pasted into a configuration; bad input is one line and exit code 2."""

import tomllib

import pytest
from tests.edge import CommandLine

from dspodfl.nodes import keys as keys_file
from dspodfl.nodes import read_certificates


@pytest.fixture
def dspodfl(monkeypatch, capsys, tmp_path):
    return CommandLine(monkeypatch, capsys, tmp_path)


def test_new_prints_the_entries_of_the_configuration(dspodfl, tmp_path):
    answer = dspodfl("keys", "new", "-n", "3", "--first", "4", "--days", "9", "--out", "k")
    assert answer.code == 0
    peers = tomllib.loads(answer.out)["nodes"]["peer"]
    assert [peer["id"] for peer in peers] == [4, 5, 6]
    for peer in peers:
        assert read_certificates(tmp_path / peer["certificate"], "x")[0].fingerprint == peer["key"]
    assert len(list((tmp_path / "k").iterdir())) == 6


def test_show_names_node_fingerprint_and_dates_and_fails_where_one_has_expired(dspodfl, tmp_path, monkeypatch):
    dspodfl("keys", "new", "-n", "1", "--out", "k")
    answer = dspodfl("keys", "show", "k")
    certificate = read_certificates(tmp_path / "k" / "0.crt", "x")[0]
    assert answer.code == 0 and certificate.fingerprint in answer.out and "node 0" in answer.out
    monkeypatch.setattr(keys_file, "_BEFORE", keys_file._BEFORE * 30)
    monkeypatch.setattr(keys_file, "timedelta", lambda days: -keys_file._BEFORE / 2)
    dspodfl("keys", "new", "-n", "1", "--first", "1", "--out", "k")
    answer = dspodfl("keys", "show", "k")
    assert answer.code == 2 and "1.crt: expired on" in answer.out and "clock" in answer.out


def test_an_organisation_approves_requests(dspodfl, tmp_path):
    assert dspodfl("keys", "new", "--ca", "--out", "ca").code == 0
    assert dspodfl("keys", "request", "--id", "3", "--run", "study 7", "--out", "node").code == 0
    answer = dspodfl("keys", "approve", "node/3.csr", "--ca", "ca")
    assert answer.code == 0 and "node 3 of run 'study 7'" in answer.out
    assert "a CA" in dspodfl("keys", "show", "ca").out
    assert sorted(path.name for path in (tmp_path / "node").iterdir()) == ["3.crt", "3.csr", "3.key"]


def test_renew_prints_both_certificates(dspodfl):
    dspodfl("keys", "new", "-n", "1", "--out", "k")
    answer = dspodfl("keys", "renew", "k/0.crt")
    (peer,) = tomllib.loads(answer.out)["nodes"]["peer"]
    assert peer["certificate"] == ["k/0.crt", "k/0.next.crt"]


@pytest.mark.parametrize(
    "words",
    [
        ("new", "-n", "0"),
        ("new", "-n", "10001"),
        ("new", "-n", "x"),
        ("new", "--days", "0"),
        ("new", "--days", "40000"),
        ("new", "--first", "-1"),
        ("new", "--first", "9999999999"),
        ("new", "--ca", "-n", "2"),
        ("new", "--out", "file/keys"),
        ("show", "nothing.crt"),
        ("show", "file"),
        ("show", "empty"),
        ("renew", "file"),
        ("request", "--id", "3"),
        ("request", "--id", "-3", "--run", "x"),
        ("request", "--id", "3", "--run", ""),
        ("approve", "file", "--ca", "empty"),
        ("approve", "file"),
        ("forget",),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(dspodfl, tmp_path, words):
    (tmp_path / "file").write_text("text")
    (tmp_path / "empty").mkdir()
    before = sorted(tmp_path.rglob("*"))
    answer = dspodfl("keys", *words)
    assert answer.code == 2 and answer.out == "" and answer.err.startswith("error: ") and answer.err.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_keys_are_not_replaced_without_a_flag(dspodfl, tmp_path):
    dspodfl("keys", "new", "-n", "1", "--out", "k")
    before = (tmp_path / "k" / "0.key").read_bytes()
    answer = dspodfl("keys", "new", "-n", "2", "--out", "k")
    assert answer.code == 2 and "--overwrite" in answer.err and (tmp_path / "k" / "0.key").read_bytes() == before
    assert not (tmp_path / "k" / "1.key").exists()
    assert dspodfl("keys", "new", "-n", "2", "--out", "k", "--overwrite").code == 0
    assert (tmp_path / "k" / "0.key").read_bytes() != before
