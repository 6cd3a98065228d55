"""Files of strangers: whatever a name stands for, a bounded reader gives its content or one line that says why not."""

import io
import json
import os
import struct
import zipfile

import numpy as np
import pytest
from scripts.attack.hostile import ARCHIVES, THINGS

from dspodfl.errors import DataError, bounded, memory

LIES = {name for name in ARCHIVES if name.startswith(("a header", "half", "objects"))}
LIES -= {"a header of no samples", "a header of truths"}  # so they are
READERS = [bounded.read_bytes, bounded.read_text, bounded.read_toml, bounded.read_json, bounded.open_npz]


def refused(read, path, *words):
    with pytest.raises(DataError) as caught:
        read(path)
    text = str(caught.value)
    assert len(text.splitlines()) == 1 and len(text) < 1000
    for word in words:
        assert word in text
    return caught.value


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize(
    ("thing", "says"),
    [
        ("a pipe", "a pipe"),
        ("/dev/zero", "a device"),
        ("a directory", "a directory"),
        ("a symbolic link to itself", "symbolic links"),
        ("nothing there", "no such file"),
        ("a symbolic link to nothing", "no such file"),
    ],
)
def test_only_regular_files_are_opened(tmp_path, read, thing, says):
    path = tmp_path / "file"
    THINGS[thing](path)
    refused(read, path, str(path), says)


@pytest.mark.parametrize("read", READERS)
def test_names_that_no_file_can_have_are_refused(tmp_path, read):
    refused(read, tmp_path / ("x" * 5000), "cannot be read")
    refused(read, f"{tmp_path}/a\0b", "cannot be the name")


@pytest.mark.parametrize("read", READERS)
def test_a_file_larger_than_the_limit_is_refused_before_it_is_opened(tmp_path, read):
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(2**40)
    refused(read, path, "1,099,511,627,776 bytes", "at most")


def test_a_file_that_says_it_is_empty_and_is_not_is_read_up_to_the_limit():
    if not os.path.exists("/proc/self/status"):
        pytest.skip("no /proc")
    assert b"Name:" in bounded.read_bytes("/proc/self/status")
    with pytest.raises(DataError, match="more than 10 bytes"):
        bounded.read_bytes("/proc/self/status", 10)


def test_a_file_that_does_not_fit_into_memory_is_refused_with_both_numbers(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_bytes(bytes(2000))
    monkeypatch.setattr(memory, "available", lambda: 1000)
    refused(bounded.read_bytes, path, "takes 2,000 bytes", "1,000 bytes of memory are free")


def test_text_is_utf8_and_loses_its_byte_order_mark(tmp_path):
    path = tmp_path / "file"
    path.write_bytes("\ufeffä".encode())
    assert bounded.read_text(path) == "ä"
    path.write_bytes("ä".encode("latin-1"))
    refused(bounded.read_text, path, "utf-8", "byte 0")


@pytest.mark.parametrize(
    "text",
    [
        "a = " + "[" * 900 + "]" * 900,
        "a = " + "{b = " * 900 + "1" + "}" * 900,
        ".".join(["a"] * 20_000) + " = 1",
        ".".join(['"a"'] * 20_000) + " = 1",
        "[" + " . ".join(["a"] * 300_000) + "]",
        "a = " + "[" * 1_000_000,
        "a = 0x" + "f" * 100_000,
        "a = 1" + "0" * 100_000,
    ],
    ids=["lists", "tables", "dotted key", "quoted key", "header", "brackets alone", "hexadecimal", "decimal"],
)
def test_toml_that_nests_too_deep_or_counts_too_far_is_refused(tmp_path, text):
    path = tmp_path / "a.toml"
    path.write_text(text)
    refused(bounded.read_toml, path, "not valid TOML")


def test_brackets_and_dots_inside_strings_and_comments_do_not_nest():
    deep = "[" * 200 + "a." * 200
    text = f'a = "{deep}"\nb = \'{deep}\'\nc = """{deep}\\""" """\nd = \'\'\'{deep}\'\'\' # {deep}\n'
    assert bounded.parse_toml(text)["a"] == deep
    assert bounded.parse_toml("[a.b]\nc = [[{ d = 1 }]]") == {"a": {"b": {"c": [[{"d": 1}]]}}}


def test_json_that_nests_too_deep_is_refused(tmp_path):
    path = tmp_path / "a.json"
    for depth in (100, 100_000):
        path.write_text("[" * depth + "]" * depth)
        refused(bounded.read_json, path, "nest more than 64 deep")
    path.write_text(json.dumps({"a": [1, {"b": None}]}))
    assert bounded.read_json(path) == {"a": [1, {"b": None}]}
    path.write_text("{")
    refused(bounded.read_json, path, "not valid JSON")


def test_an_archive_gives_its_arrays_and_their_headers(tmp_path):
    path = tmp_path / "a.npz"
    np.savez_compressed(path, x=np.arange(6).reshape(2, 3), y=np.zeros(2, np.float32))
    with bounded.open_npz(path) as archive:
        assert archive.headers["x"] == ((2, 3), np.dtype(np.int64), 48)
        assert sorted(archive) == ["x", "y"]
        assert archive["x"].tolist() == [[0, 1, 2], [3, 4, 5]]
        with pytest.raises(KeyError):
            archive["z"]


@pytest.mark.parametrize("name", sorted(LIES))
def test_an_archive_whose_headers_lie_is_refused_before_anything_is_allocated(tmp_path, name):
    path = tmp_path / "a.npz"
    ARCHIVES[name](path)

    def read(file):
        with bounded.open_npz(file) as archive:
            return archive["x"]

    refused(read, path, str(path))


def test_an_array_that_unpacks_to_more_than_the_memory_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "a.npz"
    np.savez_compressed(path, x=np.zeros(10**6))
    monkeypatch.setattr(memory, "available", lambda: 10**6)
    with bounded.open_npz(path) as archive:
        refused(lambda file: archive["x"], path, "array x takes 8 MiB")
    assert bounded.unpacked_size(path) > 8 * 10**6


def test_an_archive_of_too_many_members_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("dspodfl.errors.bounded.npz._MEMBERS", 3)
    np.savez(tmp_path / "a.npz", **{f"x{n}": np.zeros(1) for n in range(4)})
    refused(bounded.open_npz, tmp_path / "a.npz", "4 members")


def test_an_encrypted_member_is_refused(tmp_path):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("x.npy", b"abc")
    content = bytearray(buffer.getvalue())
    struct.pack_into("<H", content, 6, 1)
    struct.pack_into("<H", content, content.index(b"PK\x01\x02") + 8, 1)
    (tmp_path / "a.npz").write_bytes(content)
    refused(bounded.open_npz, tmp_path / "a.npz", "a.npz")


def test_memory_that_can_still_be_taken_obeys_the_limit_of_the_process(monkeypatch):
    import resource

    free = memory.available()
    assert free > 2**20
    monkeypatch.setattr(resource, "getrlimit", lambda which: (2**20, 2**20))
    assert memory.available() == 0
    monkeypatch.setattr(memory, "_left_in_cgroup", lambda: 12345)
    monkeypatch.setattr(memory, "_left_in_address_space", lambda: None)
    assert memory.available() == 12345
