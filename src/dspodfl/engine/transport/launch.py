"""Ranks on one machine: start them as processes, watch them, end them together.

Nothing here listens on a network. Ranks find each other through a file in a directory that only this user can open;
what they send each other afterwards stays on the loopback interface.
"""

from __future__ import annotations

import importlib.util
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import psutil

from dspodfl.errors import SIGNALS, Handler, LostRankError, available_signals

MEETING = "DSPODFL_MEETING"
"""Environment: the private directory where the ranks of a local launch meet."""
LAUNCHER = "DSPODFL_LAUNCHER"
"""Environment: the process that started this rank."""
KEY = "key"
"""The file of `MEETING` that holds the secret of a launch."""

_POLL = 0.05
_GRACE, _LONG_GRACE, _STOP = 1.0, 10.0, 20.0
"""Seconds: to end after another rank crashed, after it was interrupted or refused its input, and after SIGTERM."""
_ORPHAN = 60.0
"""Seconds that a rank has to end after its launcher has ended."""
_ENDED_BY_USER = {128 + number for number in SIGNALS}


def run_ranks(
    ranks: int,
    command: Sequence[str],
    *,
    max_restarts: int = 0,
    path: Sequence[str] = (),
    files: Mapping[str, bytes] | None = None,
) -> int:
    """Run a command on several ranks of this machine until all have ended.

    A signal for this process is passed on to every rank. When a rank fails, the others are ended too; all are started
    again, at most ``max_restarts`` times, unless the input was refused or a user ended them.

    Args:
        ranks: The number of processes.
        command: The command line of each.
        max_restarts: How often to start all of them again.
        path: Folders that they search for modules besides those of this process's environment.
        files: Name -> content of files in the private directory where they meet (`shared_file`).

    Returns:
        0, or the exit code of the rank that failed first; 128 + n after signal n.

    Raises:
        LostRankError: A rank was killed.
    """
    folder = Path(tempfile.mkdtemp(prefix="dspodfl-"))  # mode 0700
    try:
        (folder / KEY).write_bytes(secrets.token_bytes(32))
        for name, content in (files or {}).items():
            (folder / name).write_bytes(content)
        with _Signals() as signals:
            codes: dict[int, int] = {}
            for start in range(max_restarts + 1):
                codes = _one_start(ranks, command, _environment(ranks, folder, start, path), signals)
                if signals.first is not None:
                    return 128 + signals.first if any(codes.values()) else 0
                if not _is_worth_a_restart(codes.values()):
                    break
        return _exit_code(codes)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def shared_file(name: str) -> bytes:
    """Read a file that the launcher has stored in the private directory where the ranks meet.

    Args:
        name: As in ``files`` of `run_ranks`.

    Returns:
        Its content.
    """
    return (Path(os.environ[MEETING]) / name).read_bytes()


def _environment(ranks: int, folder: Path, start: int, path: Sequence[str]) -> dict[str, str]:
    """Return the environment of all ranks of one start."""
    names = loopback()
    own = {
        "WORLD_SIZE": ranks,
        "LOCAL_WORLD_SIZE": ranks,
        "TORCHELASTIC_RESTART_COUNT": start,
        "DSPODFL_LAUNCHED": 1,
        "PYTHONSAFEPATH": 1,  # a file of the working directory is not imported in place of an installed module
        "GLOO_SOCKET_IFNAME": names,
        "NCCL_SOCKET_IFNAME": names,
        MEETING: folder,
        LAUNCHER: os.getpid(),
    }
    kept = {key: value for key, value in os.environ.items() if key not in ("MASTER_ADDR", "MASTER_PORT")}
    kept["PYTHONPATH"] = os.pathsep.join([*path, *filter(None, [kept.get("PYTHONPATH")])])
    kept.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // ranks)))
    return kept | {key: str(value) for key, value in own.items()}


def home_of(module: str) -> str | None:
    """Return the folder of a module that ranks would not find, since it is only in the working directory.

    Args:
        module: The name of a module.

    Returns:
        The folder, to be added to PYTHONPATH; None where ranks find the module.
    """
    spec = importlib.util.find_spec(module.partition(".")[0])
    if spec is None or spec.submodule_search_locations is None:
        return None
    home = os.path.dirname(os.path.realpath(next(iter(spec.submodule_search_locations))))
    here = os.path.realpath(os.curdir)
    found = {os.path.realpath(entry or os.curdir) for entry in sys.path[sys.path[:1] in ([""], [here]) :]}
    return None if home in found else home


def loopback() -> str:
    """Return the name of the network interface that leads to this machine alone."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(one.address == "127.0.0.1" for one in addresses):
            return name
    return "lo"


class _Signals(Handler):
    """Collects the signals, to pass them on."""

    def __init__(self) -> None:
        super().__init__()
        self.first: int | None = None
        self._waiting: list[int] = []

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.first = number if self.first is None else self.first
        self._waiting.append(number)

    def pass_on(self, processes: Sequence[subprocess.Popen[bytes]]) -> None:
        """Send the signals received so far to all processes that still run."""
        while self._waiting:
            number = self._waiting.pop(0)
            for process in processes:
                process.send_signal(number)


def _one_start(ranks: int, command: Sequence[str], environment: Mapping[str, str], signals: _Signals) -> dict[int, int]:
    """Start all ranks and wait for their end; return the exit codes of those that were not ended from here."""
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(ranks):
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            # A session of its own: Ctrl-C reaches the launcher alone, which passes it on once.
            processes.append(
                subprocess.Popen(  # noqa: S603 (the command is this program's own)
                    command, env={**environment, **own}, start_new_session=True, stdin=subprocess.DEVNULL
                )
            )
        return _watch(processes, signals)
    finally:
        _stop(processes, signals)


def _watch(processes: Sequence[subprocess.Popen[bytes]], signals: _Signals) -> dict[int, int]:
    """Wait until all have ended, or until the time after the first failure is over; return the exit codes so far."""
    deadline: float | None = None
    while True:
        signals.pass_on(processes)
        codes = {rank: one.returncode for rank, one in enumerate(processes) if one.poll() is not None}
        if len(codes) == len(processes):
            return codes
        failed = [code for code in codes.values() if code]
        if failed and deadline is None and signals.first is None:
            # Ranks that stop together still print and write; a rank that crashed leaves the others nothing to wait for.
            in_order = min(failed) > 1
            deadline = time.monotonic() + (_LONG_GRACE if in_order else _GRACE)
        if deadline is not None and time.monotonic() > deadline:
            return codes
        time.sleep(_POLL)


def _stop(processes: Sequence[subprocess.Popen[bytes]], signals: _Signals) -> None:
    """End what still runs: SIGTERM, then SIGKILL."""
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + _STOP
    while any(process.poll() is None for process in processes) and time.monotonic() < deadline:
        signals.pass_on(processes)
        time.sleep(_POLL)
    for process in processes:
        process.kill()
        process.wait()


def _is_worth_a_restart(codes: Any) -> bool:
    """Return whether a restart may succeed: the input was not refused, and no user ended the ranks."""
    failed = [code for code in codes if code]
    intended = _ENDED_BY_USER | {2} | {-int(number) for number in available_signals()}
    return bool(failed) and not any(code in intended for code in failed)


def _exit_code(codes: Mapping[int, int]) -> int:
    """Return one exit code for all ranks."""
    for code in codes.values():
        number = -code if code < 0 else code - 128
        if 128 + number in _ENDED_BY_USER and number != signal.SIGINT:
            return 128 + number  # the rank that received the signal has its number; the others return 130
    for rank, code in codes.items():
        if code < 0 and -code != signal.SIGINT:
            name = signal.Signals(-code).name
            raise LostRankError(f"rank {rank} was killed ({name}), and the others were stopped")
    failed = [128 - code if code < 0 else code for code in codes.values() if code]
    return next(
        (code for code in failed if code > 1), 1 if failed else 0
    )  # 1 is also the code of a rank that has lost the others


_following = False


def follow_launcher() -> None:
    """End this process when the launcher that started it has ended; without a launcher, do nothing."""
    global _following  # noqa: PLW0603 (once a process)
    if LAUNCHER not in os.environ or _following:
        return
    _following = True
    threading.Thread(target=_follow, args=(int(os.environ[LAUNCHER]),), daemon=True).start()


def _follow(launcher: int) -> None:
    """Poll whether the parent is still the launcher; if not, end in order, then by force.

    Linux could send a signal instead (PR_SET_PDEATHSIG), but sends one for each thread of the launcher that dies, and a
    second SIGTERM stops a run without a checkpoint.
    """
    while os.getppid() == launcher:
        time.sleep(0.2)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_ORPHAN)
    clean_up()
    os.kill(os.getpid(), signal.SIGKILL)


def clean_up() -> None:
    """Remove the meeting directory where the launcher is no longer there to do it; a rank calls it at its end."""
    folder = os.environ.get(MEETING)
    if folder and LAUNCHER in os.environ and os.getppid() != int(os.environ[LAUNCHER]):
        shutil.rmtree(folder, ignore_errors=True)
