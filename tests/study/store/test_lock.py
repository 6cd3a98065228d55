"""The lock: one process at a time, until that process is gone, however it went."""

import errno
import os
import signal
import subprocess
import sys
import threading

import pytest

from dspodfl.study.store.lock import LOCK, Lock, LockHeldError, holder, is_dead


def other(folder):
    """A process that holds the lock of a folder."""
    code = (
        "import sys\nfrom pathlib import Path\nfrom dspodfl.study.store.lock import Lock\n"
        "lock = Lock(Path(sys.argv[1]))\nlock.take()\nprint('held', flush=True)\nsys.stdin.read()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "held\n"
    return process


def test_a_folder_is_held_by_one_process_alone_and_says_by_which(tmp_path):
    with other(tmp_path) as process:
        assert holder(tmp_path) == str(process.pid)
        with pytest.raises(LockHeldError, match=str(process.pid)):
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
    with pytest.raises(LockHeldError):
        Lock(tmp_path).take()
    lock.release()
    lock.release()
    assert list(tmp_path.iterdir()) == []
    again = Lock(tmp_path)
    again.take()
    again.release()


def test_a_file_that_its_holder_removes_meanwhile_is_not_taken_for_the_lock(tmp_path, monkeypatch):
    """Opened, then removed by the former holder, then locked: a lock on nothing, which is tried again."""
    import fcntl

    real, tries = fcntl.flock, []

    def slow(handle, how):
        tries.append(how)
        if len(tries) == 1:
            (tmp_path / LOCK).unlink()
        return real(handle, how)

    monkeypatch.setattr("fcntl.flock", slow)
    lock = Lock(tmp_path)
    lock.take()
    assert len(tries) == 2
    with pytest.raises(LockHeldError, match=str(os.getpid())):
        Lock(tmp_path).take()
    lock.release()


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL])
def test_a_file_system_without_locks_is_used_without(number, tmp_path, monkeypatch):
    def none(*_):
        raise OSError(number, "no locks here")

    monkeypatch.setattr("fcntl.flock", none)
    lock = Lock(tmp_path)
    lock.take()
    assert holder(tmp_path) is None
    lock.release()
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_asks_who_holds_it_does_not_keep_another_from_taking_it(tmp_path):
    (tmp_path / LOCK).write_text("123")
    asking = Lock(tmp_path)
    asking.take()
    threading.Timer(0.03, asking._held.release, [True]).start()  # it holds it for an instant
    lock = Lock(tmp_path)
    lock.take()
    assert (tmp_path / LOCK).read_text() == str(os.getpid())
    lock.release()


def test_a_folder_that_gets_another_name_stays_locked(tmp_path):
    (tmp_path / "old").mkdir()
    lock = Lock(tmp_path / "old")
    lock.take()
    with lock.moving(tmp_path / "new"):
        (tmp_path / "old").rename(tmp_path / "new")
    with pytest.raises(LockHeldError, match=str(os.getpid())):
        Lock(tmp_path / "new").take()
    lock.release()
    assert list((tmp_path / "new").iterdir()) == []


def test_where_an_open_file_pins_its_folder_the_lock_is_released_and_taken_again(tmp_path, monkeypatch):
    monkeypatch.setattr("dspodfl.study.store.lock._WINDOWS", True)
    (tmp_path / "old").mkdir()
    lock = Lock(tmp_path / "old")
    lock.take()
    with lock.moving(tmp_path / "new"):
        assert holder(tmp_path / "old") is None
        (tmp_path / "old").rename(tmp_path / "new")
    assert holder(tmp_path / "new") == str(os.getpid())
    lock.release()


def test_asking_changes_nothing(tmp_path):
    assert holder(tmp_path) is None and list(tmp_path.iterdir()) == []
    (tmp_path / LOCK).write_text("123")
    assert holder(tmp_path) is None and is_dead(tmp_path / LOCK)
    assert (tmp_path / LOCK).read_text() == "123"


def test_a_process_of_version_0_1_is_respected_and_a_file_of_that_name_is_left_alone(tmp_path, monkeypatch):
    with monkeypatch.context() as before:
        before.setattr("dspodfl.study.store.lock.LOCK", ".lock")
        old = Lock(tmp_path)
        old.take()
    assert holder(tmp_path) == str(os.getpid()) and not is_dead(tmp_path / ".lock")
    with pytest.raises(LockHeldError, match=str(os.getpid())):
        Lock(tmp_path).take()
    old.release()
    (tmp_path / ".lock").write_text("somebody else's")
    lock = Lock(tmp_path)
    lock.take()
    lock.release()
    assert (tmp_path / ".lock").read_text() == "somebody else's" and not is_dead(tmp_path / ".lock")
