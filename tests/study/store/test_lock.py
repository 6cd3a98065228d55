"""The lock: one process at a time, until that process is gone, however it went."""

import os
import signal
import subprocess
import sys

import pytest

from dspodfl.study.store.lock import LOCK, Held, Lock, holder


def other(folder):
    """A process that holds the lock of a folder."""
    code = (
        "import sys\nfrom pathlib import Path\nfrom dspodfl.study.store.lock import Lock\n"
        "Lock(Path(sys.argv[1])).take()\nprint('held', flush=True)\nsys.stdin.read()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "held\n"
    return process


def test_a_folder_is_held_by_one_process_alone_and_says_by_which(tmp_path):
    with other(tmp_path) as process:
        assert holder(tmp_path) == str(process.pid)
        with pytest.raises(Held, match=str(process.pid)):
            Lock(tmp_path).take()
        process.stdin.close()


def test_a_process_that_is_killed_holds_it_no_longer(tmp_path):
    with other(tmp_path) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert (tmp_path / LOCK).exists()  # the file is there still, and means nothing
    assert holder(tmp_path) is None
    lock = Lock(tmp_path)
    lock.take()
    assert (tmp_path / LOCK).read_text() == str(os.getpid())
    lock.release()


def test_it_is_held_once_in_a_process_too_and_leaves_no_file(tmp_path):
    lock = Lock(tmp_path)
    lock.take()
    with pytest.raises(Held):
        Lock(tmp_path).take()
    lock.release()
    lock.release()
    assert list(tmp_path.iterdir()) == []
    again = Lock(tmp_path)
    again.take()
    again.release()


def test_a_file_that_its_holder_removes_meanwhile_is_not_taken_for_the_lock(tmp_path, monkeypatch):
    """Opened, then removed by the former holder, then locked: a lock on nothing, which is tried again."""
    real, opened = os.open, []

    def slow(*given, **how):
        handle = real(*given, **how)
        opened.append(handle)
        if len(opened) == 1:
            (tmp_path / LOCK).unlink()
        return handle

    monkeypatch.setattr("dspodfl.study.store.lock.os.open", slow)
    lock = Lock(tmp_path)
    lock.take()
    assert len(opened) == 2
    with pytest.raises(Held):
        Lock(tmp_path).take()
    lock.release()


def test_a_file_system_without_locks_is_used_without(tmp_path, monkeypatch):
    def none(*_):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr("dspodfl.study.store.lock.fcntl.flock", none)
    lock = Lock(tmp_path)
    lock.take()
    lock.release()
    assert holder(tmp_path) is None


def test_a_process_of_version_0_1_is_respected_and_a_file_of_that_name_is_left_alone(tmp_path, monkeypatch):
    with monkeypatch.context() as before:
        before.setattr("dspodfl.study.store.lock.LOCK", ".lock")
        old = Lock(tmp_path)
        old.take()
    assert holder(tmp_path) == str(os.getpid())
    with pytest.raises(Held, match=str(os.getpid())):
        Lock(tmp_path).take()
    old.release()
    (tmp_path / ".lock").write_text("somebody else's")
    lock = Lock(tmp_path)
    lock.take()
    lock.release()
    assert (tmp_path / ".lock").read_text() == "somebody else's"
