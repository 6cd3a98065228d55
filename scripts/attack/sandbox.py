"""Command lines tried one after the other in a process of their own, with limits of time and memory.

The process stays between attempts (importing the package takes seconds), and is replaced when an attempt kills it.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import selectors
import signal
import subprocess
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

ROOT = Path(__file__).parents[2]
RUN = "@run"
"""In the place of a command: run the study of a file from Python."""
_LONGEST_LINE = 2000
_MOST_LINES = 40


@dataclass(frozen=True)
class Ending:
    """How an attempt ended: its exit code, or None where there was none; what it printed; and what was wrong."""

    code: int | None
    out: str
    err: str
    wrong: str = ""


class Sandbox:
    """A process that runs ``dspodfl`` command lines in a folder."""

    def __init__(self, folder: Path, seconds: float = 20.0, gib: float = 4.0) -> None:
        self.folder, self.seconds, self.gib = folder, seconds, gib
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for stream in (self._process.stdin, self._process.stdout):
                if stream:
                    stream.close()
            self._process = None

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            paths = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
            self._process = subprocess.Popen(
                [sys.executable, "-m", "scripts.attack.sandbox", str(self.gib)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd=self.folder,
                env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
            )
            self._read(self._process, 120.0)  # it says that it has imported everything
        return self._process

    def _read(self, process: subprocess.Popen[bytes], seconds: float) -> bytes | None:
        """One line of an answer; None where it does not come in time, an empty one where the process has ended."""
        assert process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            if not selector.select(seconds):
                return None
        return process.stdout.readline()

    def __call__(self, *words: str) -> Ending:
        """Try ``dspodfl words…`` and say how it ended."""
        process = self._started()
        assert process.stdin is not None
        process.stdin.write(json.dumps(list(words)).encode() + b"\n")
        process.stdin.flush()
        line = self._read(process, self.seconds)
        if line:
            answer = json.loads(line)
            ending = Ending(answer["code"], answer["out"], answer["err"], answer["wrong"])
            return ending if ending.wrong else Ending(ending.code, ending.out, ending.err, problem_of(ending))
        self.close()
        if line is None:
            return Ending(None, "", "", f"still running after {self.seconds:g} s")
        return Ending(None, "", "", f"killed (signal {-process.returncode})" if process.returncode else "ended")


def problem_of(ending: Ending) -> str:
    """What is wrong with an ending: nothing where it is 0, or 2 with plain lines that say why."""
    if ending.code not in (0, 2):
        return f"exit code {ending.code}"
    if "Traceback" in ending.err or "Traceback" in ending.out:
        return "a traceback"
    lines = ending.err.splitlines()
    if ending.code == 0:
        return "" if not any(".py:" in line and "Warning" in line for line in lines) else f"a warning: {lines[0]}"
    if not lines or len(lines) > _MOST_LINES:
        return f"{len(lines)} lines of errors"
    bad = [line for line in lines if not line.startswith("error: ") or len(line) > _LONGEST_LINE]
    if bad:
        return f"a line that is no error line: {bad[0][:200]!r}"
    if any(not (sign.isprintable() or sign == "\n") for sign in ending.err):
        return "control characters in the message"
    return ""


# --- the process itself -----------------------------------------------------------------------------------------


def _run(study: Path) -> None:
    """Run three iterations of a study from Python, which draws no figures; errors are said as the command line does."""
    from dspodfl.config import load
    from dspodfl.errors import ConfigError, DataError, InputError, OutOfMemoryError
    from dspodfl.study.api import run

    try:
        run(load(study, ["train.iterations=3", "eval.every=2"]))
    except (InputError, ConfigError, DataError, OutOfMemoryError) as error:
        for line in str(error).splitlines():
            print(f"error: {line}", file=sys.stderr)
        sys.exit(2)
    sys.exit(0)


def _attempt(words: Sequence[str]) -> Ending:
    from dspodfl.ui.cli import app as cli

    out, err = io.StringIO(), io.StringIO()
    sys.argv = ["dspodfl", *words]
    path, modules, here = list(sys.path), set(sys.modules), os.getcwd()
    code: int | None = None
    wrong = ""
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            _run(Path(words[1])) if words[0] == RUN else cli.main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException as error:
        wrong = f"{type(error).__name__}: {str(error)[:200]} at {traceback.extract_tb(error.__traceback__)[-1]}"
    sys.path[:] = path
    os.chdir(here)
    for name in set(sys.modules) - modules:  # modules of one attempt's folder are not those of the next
        if here in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]
    return Ending(code, out.getvalue()[-5000:], err.getvalue()[-50_000:], wrong)


def _serve(gib: float) -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what C libraries print is no answer
    from dspodfl.study import result, session  # noqa: F401
    from dspodfl.ui.cli import app  # noqa: F401

    pages = int(Path("/proc/self/statm").read_text().split()[0]) if Path("/proc/self/statm").exists() else 0
    limit = pages * resource.getpagesize() + int(gib * 2**30)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(vars(_attempt(json.loads(line)))), file=answers, flush=True)


if __name__ == "__main__":
    _serve(float(sys.argv[1]))
