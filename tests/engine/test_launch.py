"""Ranks that are launched on one machine: nobody else gets in, and they end together."""

import os
import pickle
import signal
import socket
import subprocess
import sys
import textwrap
import time

import psutil
import pytest
from tests.engine.test_torch_distributed import ENVIRONMENT, LONG, ROOT, merged, ranks_of, start, wait_for, write_toml

from dspodfl import Result
from dspodfl.engine.transport.launch import KEY, LAUNCHER, MEETING, home_of, run_ranks
from dspodfl.engine.transport.torch_distributed import _Messages
from dspodfl.errors import LostRankError
from dspodfl.study.store.checkpoint import CheckpointStore

LOOPBACK = ("127.", "::1", "::ffff:127.")
ENDLESS = merged(LONG, {"train": {"iterations": 10**6}, "eval": {"every": 10**5}})


class Trap:
    """Whoever unpickles this makes a file."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return open, (self.path, "w")


def listening(launcher):
    """The addresses on which a process and its children listen."""
    main = psutil.Process(launcher.pid)
    return {
        one.laddr
        for process in [main, *main.children(recursive=True)]
        for one in process.net_connections("inet")
        if one.status == psutil.CONN_LISTEN
    }


def knock(address, words):
    """Send something to whoever listens, and read what comes back."""
    with socket.create_connection(address, timeout=5) as line:
        line.sendall(words)
        line.settimeout(0.1)
        try:
            return line.recv(4096)
        except OSError:
            return b""


def store_value(key, value):
    """The words with which a TCP store of torch is told a value: a magic number, then SET key value."""
    size = [len(part).to_bytes(8, sys.byteorder) for part in (key, value)]
    hello = bytes([0]) + (0x3C85F7CE).to_bytes(4, sys.byteorder)
    return hello + bytes([1]) + size[0] + key + size[1] + value


def test_local_ranks_listen_on_loopback_alone_no_stranger_is_unpickled_and_sigterm_to_one_ends_all(tmp_path):
    out, trap = tmp_path / "out", tmp_path / "trap"
    run = start(write_toml(tmp_path / "long.toml", ENDLESS), "--ranks", 2, "--out", out)
    try:
        wait_for(lambda: CheckpointStore(out).committed(), "the first checkpoint")
        found = listening(run)
        assert found, "ranks talk over gloo, which listens"
        assert all(address.ip.startswith(LOOPBACK) for address in found), found
        assert not listening_of_the_launcher(run)
        folder = psutil.Process(ranks_of(run)[0].pid).environ()[MEETING]
        assert os.stat(folder).st_mode & 0o777 == 0o700
        payload = pickle.dumps(Trap(trap))
        for address in found:
            sized = len(payload).to_bytes(8, "little") + payload
            for words in (payload, sized, store_value(b"/c10d/dspodfl", payload)):
                knock(address[:2], words)
        ranks_of(run)[1].terminate()
        _, said = run.communicate(timeout=60)
    finally:
        run.kill()
    assert not trap.exists()
    assert run.returncode == 143, said
    assert "interrupted after iteration" in said and "Traceback" not in said
    assert not os.path.exists(folder)
    about = Result.load(out).summary["study"]
    assert about["interrupted_at"] == CheckpointStore(out).newest_iteration()[0] > 0


def listening_of_the_launcher(run):
    return [one for one in psutil.Process(run.pid).net_connections("inet") if one.status == psutil.CONN_LISTEN]


def test_a_launcher_that_is_killed_takes_its_ranks_with_it_and_they_write_what_they_have(tmp_path):
    out = tmp_path / "out"
    run = start(write_toml(tmp_path / "long.toml", ENDLESS), "--ranks", 2, "--out", out)
    wait_for(lambda: CheckpointStore(out).committed(), "the first checkpoint")
    ranks = ranks_of(run)
    folder = ranks[0].environ()[MEETING]
    run.kill()
    run.communicate(timeout=30)
    _, alive = psutil.wait_procs(ranks, timeout=90)
    assert not alive
    assert not os.path.exists(folder)
    assert Result.load(out).summary["study"]["interrupted_at"] == CheckpointStore(out).newest_iteration()[0]


def test_sighup_is_obeyed_as_sigterm_is(tmp_path):
    out = tmp_path / "out"
    config = write_toml(tmp_path / "long.toml", ENDLESS)
    run = start(config, "--out", out)
    wait_for(lambda: CheckpointStore(out).committed(), "the first checkpoint")
    run.send_signal(signal.SIGHUP)
    _, said = run.communicate(timeout=60)
    assert run.returncode == 129 and "interrupted after iteration" in said, said
    assert Result.load(out).summary["study"]["interrupted_at"] == CheckpointStore(out).newest_iteration()[0]


# --- the supervisor, with processes that do little -------------------------------------------------------------


def script(text):
    """The command line of a small program."""
    return [sys.executable, "-c", "import os, sys, signal, time\n" + textwrap.dedent(text)]


def rank_is(number, act):
    return f"if os.environ['RANK'] == '{number}':\n    {act}\n"


WAIT = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))\ntime.sleep(60)\n"


def test_ranks_are_told_who_they_are(tmp_path):
    names = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT", "PYTHONSAFEPATH"]
    program = f"""
    folder = {str(tmp_path)!r}
    open(folder + '/' + os.environ['RANK'], 'w').write(' '.join(os.environ[n] for n in {names!r}))
    """
    assert run_ranks(2, script(program)) == 0
    assert [(tmp_path / name).read_text() for name in "01"] == ["0 2 0 2 0 1", "1 2 1 2 0 1"]


@pytest.mark.parametrize(
    ("first", "second", "code"),
    [
        ("sys.exit(0)", "sys.exit(0)", 0),
        ("sys.exit(1)", "sys.exit(2)", 2),
        ("sys.exit(130)", "sys.exit(143)", 143),
        ("sys.exit(1)", WAIT, 1),
        ("os.kill(os.getpid(), 15)", WAIT, 143),
        ("sys.exit(7)", "sys.exit(0)", 7),
    ],
)
def test_one_exit_code_speaks_for_all_ranks(first, second, code):
    began = time.monotonic()
    program = rank_is(0, first) + textwrap.indent(second, "")
    assert run_ranks(2, script(program), max_restarts=0) == code
    assert time.monotonic() - began < 50


def test_a_rank_that_is_killed_is_named_and_the_others_are_stopped():
    with pytest.raises(LostRankError, match=r"rank 1 was killed \(SIGKILL\), and the others were stopped"):
        run_ranks(2, script(rank_is(1, "os.kill(os.getpid(), 9)") + WAIT))


@pytest.mark.parametrize(("act", "starts"), [("sys.exit(1)", 3), ("sys.exit(2)", 1), ("sys.exit(143)", 1)])
def test_all_ranks_start_again_after_a_crash_but_not_after_wrong_input_or_an_interruption(act, starts, tmp_path):
    program = f"""
    open({str(tmp_path)!r} + '/' + os.environ['RANK'] + os.environ['TORCHELASTIC_RESTART_COUNT'], 'w')
    {act}
    """
    run_ranks(2, script(program), max_restarts=2)
    assert len(list(tmp_path.iterdir())) == 2 * starts


def test_a_signal_for_the_launcher_reaches_every_rank(tmp_path):
    program = f"""
    signal.signal(signal.SIGTERM, lambda *_: (open({str(tmp_path)!r} + '/' + os.environ['RANK'], 'w'), sys.exit(143)))
    open({str(tmp_path)!r} + '/ready' + os.environ['RANK'], 'w')
    time.sleep(60)
    """
    launcher = script(
        f"from dspodfl.engine.transport.launch import run_ranks\nsys.exit(run_ranks(2, {script(program)!r}))"
    )
    run = subprocess.Popen(launcher, env=ENVIRONMENT, cwd=ROOT)
    wait_for(lambda: len(list(tmp_path.glob("ready*"))) == 2, "both ranks")
    run.terminate()
    assert run.wait(30) == 143
    assert (tmp_path / "0").exists() and (tmp_path / "1").exists()


def test_a_package_of_the_working_directory_is_found_by_ranks_which_do_not_search_it(tmp_path, monkeypatch):
    (tmp_path / "own_package").mkdir()
    (tmp_path / "own_package" / "__main__.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    assert home_of("own_package.part") == str(tmp_path)
    assert home_of("dspodfl") is None and home_of("own_nothing") is None
    monkeypatch.delenv("PYTHONPATH", raising=False)
    assert run_ranks(2, [sys.executable, "-P", "-m", "own_package"], path=[str(tmp_path)]) == 0


def test_nothing_is_unpickled_that_no_rank_of_this_launch_has_signed(tmp_path, monkeypatch):
    (tmp_path / KEY).write_bytes(b"secret")
    monkeypatch.setenv(MEETING, str(tmp_path))
    monkeypatch.delenv(LAUNCHER, raising=False)
    one, other = _Messages.of_launch(), _Messages.of_launch()
    first = one.signed({"a": 1}, 0)
    other.signed(None, 1)
    assert other.verified(first, 0) == {"a": 1}
    trap = pickle.dumps(Trap(tmp_path / "trap"))
    stranger = _Messages(b"guess")
    for forged in (trap, bytes(32) + trap, stranger.signed(Trap(tmp_path / "trap"), 0), b""):
        with pytest.raises(LostRankError, match="was not sent by it"):
            other.verified(forged, 0)
    with pytest.raises(LostRankError):  # sent by another rank
        other.verified(first, 1)
    other.signed(None, 1)
    with pytest.raises(LostRankError):  # sent before
        other.verified(first, 0)
    assert not (tmp_path / "trap").exists()
