"""Compiled code that is kept on disk: damaged, it is thrown away; where it cannot be kept, it is compiled each time."""

import os
import pickle
from types import SimpleNamespace

import pytest

numba = pytest.importorskip("numba")

from dspodfl._kernels.cpu import _cache  # noqa: E402


def doubled(x):
    """Something small to compile."""
    return 2 * x


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where compiled code is kept, with that of one function in it."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    _cache._say.cache_clear()
    assert _cache.cached(doubled)(4) == 8
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert sorted(path.suffix for path in files) == [".nbc", ".nbi"]
    return tmp_path


def hits(capsys):
    """What a new process would find: whether the code came from disk, and what is said."""
    capsys.readouterr()
    _cache._say.cache_clear()
    function = _cache.cached(doubled)
    assert function(4) == 8
    return sum(function.stats.cache_hits.values()), capsys.readouterr().err


def one(folder, suffix):
    return next(folder.rglob(f"*{suffix}"))


def flip(path, place):
    """One bit of a file."""
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


DAMAGES = {
    "empty": lambda path: path.write_bytes(b""),
    "cut short": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "one bit": lambda path: flip(path, -9),
    "one bit of the checksum": lambda path: flip(path, 0),
    "something else": lambda path: path.write_bytes(pickle.dumps({"a": 1})),
    "a pipe": lambda path: (path.unlink(), os.mkfifo(path)),
}


@pytest.mark.parametrize("suffix", [".nbi", ".nbc"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_said_thrown_away_and_written_again(damage, suffix, folder, capsys):
    assert hits(capsys) == (1, "")
    DAMAGES[damage](one(folder, suffix))
    found, said = hits(capsys)
    assert found == 0
    assert "kept compiled code is damaged" in said and len(said.splitlines()) == 1
    assert hits(capsys) == (1, "")


def test_nothing_is_unpickled_whose_checksum_is_wrong(folder, capsys, tmp_path):
    class Trap:
        def __reduce__(self):
            return open, (str(tmp_path / "trap"), "w")

    for suffix in (".nbi", ".nbc"):
        one(folder, suffix).write_bytes(pickle.dumps(Trap()))
    hits(capsys)
    assert not (tmp_path / "trap").exists()


def test_a_full_disk_is_said_and_the_code_runs(folder, capsys, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    for path in folder.rglob("*.nb?"):
        path.unlink()
    monkeypatch.setattr(_cache._Files, "_write", full)
    found, said = hits(capsys)
    assert found == 0 and "could not be kept" in said and "No space left on device" in said
    assert len(said.splitlines()) == 1


def test_a_folder_in_the_place_of_a_file_is_said_and_the_code_runs(folder, capsys):
    index = one(folder, ".nbi")
    index.unlink()
    index.mkdir()
    found, said = hits(capsys)
    assert found == 0 and "damaged" in said and "Traceback" not in said


def test_without_any_folder_that_can_be_written_to_the_code_runs(capsys, monkeypatch):
    monkeypatch.setattr(_cache._Cache._impl_class, "_locator_classes", [])
    found, said = hits(capsys)
    assert found == 0 and "compiled code cannot be kept" in said


def test_code_is_compiled_again_when_the_module_that_it_uses_has_changed(folder, tmp_path, capsys):
    used = tmp_path / "used.py"
    used.write_text("one = 1")

    def found():
        function = _cache.cached(doubled, uses=SimpleNamespace(__file__=str(used)))
        assert function(4) == 8
        return sum(function.stats.cache_hits.values())

    assert [found(), found()] == [0, 1]
    used.write_text("three = 3")
    assert [found(), found()] == [0, 1]
