"""Kill the process before and after every file operation, and in the middle of every write.

The command line runs in a forked child in which the functions that change files count their calls; at call n it sends
SIGKILL to itself. Then: what is there is shown or plainly explained, nothing is damaged, files of others are as they
were, and the run is resumed to the bytes of the run in one go.
"""

from __future__ import annotations

import builtins
import io
import os
import shutil
import signal
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scripts.attack import STUDY, Tally, thinned

KEPT = f"{STUDY}[eval]\nevery = 2\n[checkpoint]\nevery_iterations = 3\n"
"""The same, with checkpoints."""
OPERATIONS = ("replace", "rename", "unlink", "remove", "mkdir", "rmdir", "link", "truncate", "ftruncate", "fsync")
RUN = ("run", "study.toml", "--out", "out", "--save-models", "--record-events", "--quiet")
RESUME = ("run", "--resume", "out", "--quiet")
SWEEP = ("sweep", "study.toml", "--over", "train.batch_size=1,2", "--out", "swept", "--quiet")
FOREIGN = {"notes.txt": "mine", "models/own.bin": "mine", "checkpoints/best.pt": "mine", "checkpoints/1000/w.bin": "x"}


@dataclass
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str
    operations: str
    """A letter for each operation on files: t where it can be torn."""

    @property
    def killed(self) -> bool:
        return self.code == -signal.SIGKILL

    @property
    def plain(self) -> bool:
        """Whether it succeeded, or said in one line why not."""
        return self.code == 0 or (self.code == 2 and self.err.count("\n") == 1 and "Traceback" not in self.err)


@dataclass(eq=False)
class _Spy:
    """Counts the operations on files below a folder; kills its process at one of them."""

    folder: str
    at: int | None
    how: str
    count: int = 0
    busy: bool = False
    kinds: str = ""
    """A letter for each operation: t where it can be torn."""

    def install(self) -> None:
        for name in OPERATIONS:
            setattr(os, name, self._wrapped(getattr(os, name), name))
        os.open = self._opening(os.open)  # type: ignore[assignment]
        io.open = builtins.open = self._opening(io.open)  # type: ignore[assignment]

    def _below(self, path: Any) -> bool:
        try:
            name = os.readlink(f"/proc/self/fd/{path}") if isinstance(path, int) else os.path.abspath(os.fspath(path))
        except (OSError, TypeError):
            return False
        return os.fsdecode(name).startswith(self.folder)

    def step(self, do: Callable[[], Any], tear: Callable[[], Any] | None = None) -> Any:
        """One operation, unless the process is killed at it."""
        here = self.count == self.at and not self.busy
        self.count += not self.busy
        self.kinds += "" if self.busy else "t" if tear else "-"
        if here and self.how == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        if here and self.how == "torn":
            (tear or do)()
            os.kill(os.getpid(), signal.SIGKILL)
        outer, self.busy = self.busy, True
        try:
            done = do()
        finally:
            self.busy = outer
            if here and self.how == "after":
                os.kill(os.getpid(), signal.SIGKILL)
        return done

    def _wrapped(self, real: Callable[..., Any], name: str) -> Callable[..., Any]:
        truncate = os.ftruncate

        def spied(*given: Any, **named: Any) -> Any:
            if not (given and self._below(given[0])) and not named.get("dir_fd"):
                return real(*given, **named)
            tear = None
            # What was forced onto the device before cannot be torn: a log grows by writes, which are torn below.
            if name == "fsync" and os.path.basename(os.readlink(f"/proc/self/fd/{given[0]}")).startswith(".dspodfl-"):
                size = os.fstat(given[0]).st_size // 2
                tear = (lambda: truncate(given[0], size)) if os.path.isfile(f"/proc/self/fd/{given[0]}") else None
            return self.step(lambda: real(*given, **named), tear)

        return spied

    def _opening(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def spied(path: Any, *given: Any, **named: Any) -> Any:
            mode = named.get("mode", given[0] if given else "r")
            writes = mode & (os.O_WRONLY | os.O_RDWR) if isinstance(mode, int) else set(mode) & set("wax+")
            if isinstance(path, int) or not writes or not self._below(path):
                return real(path, *given, **named)
            opened = self.step(lambda: real(path, *given, **named))
            return _Raw(opened, self) if isinstance(opened, io.FileIO) else opened

        return spied


class _Raw:
    """An unbuffered file, whose writes are operations too."""

    def __init__(self, file: io.FileIO, spy: _Spy) -> None:
        self._file, self._spy = file, spy

    def write(self, content: Any) -> int:
        half = lambda: self._file.write(bytes(content)[: len(content) // 2])  # noqa: E731
        return int(self._spy.step(lambda: self._file.write(content), half))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def command(folder: Path, words: tuple[str, ...], at: int | None = None, how: str = "before") -> Ended:
    """Run the command line in a forked child, in a folder; kill it at an operation."""
    prepare()
    with tempfile.TemporaryDirectory() as place:
        texts = [Path(place) / name for name in ("out", "err", "count")]
        child = os.fork()
        if child == 0:
            _child(folder, words, texts, at, how)
        _, status = os.waitpid(child, 0)
        out, err, count = (path.read_text(errors="replace") if path.exists() else "" for path in texts)
    return Ended(os.waitstatus_to_exitcode(status), out, err, count)


def _child(folder: Path, words: tuple[str, ...], texts: list[Path], at: int | None, how: str) -> None:
    code = 99
    try:
        for number, path in enumerate(texts[:2], 1):
            handle = os.open(path, os.O_WRONLY | os.O_CREAT)
            os.dup2(handle, number)
        sys.stdout, sys.stderr = (open(n, "w", buffering=1, closefd=False) for n in (1, 2))  # noqa: SIM115
        os.chdir(folder)
        sys.argv = ["dspodfl", *words]
        for key in [key for key in os.environ if key in ("RANK", "WORLD_SIZE")]:
            del os.environ[key]
        spy = _Spy(str(folder), at, how)
        from dspodfl.ui.cli import app as cli
        from dspodfl.ui.console import results as display

        display.OUT.file, display.ERR.file = sys.stdout, sys.stderr
        spy.install()
        try:
            cli.main()
        except SystemExit as end:
            code = int(end.code or 0)
        texts[2].write_text(spy.kinds)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


_ready: list[bool] = []


def prepare() -> None:
    """Import everything once, and let pictures be small: what is tried is the files."""
    if _ready:
        return
    import torch

    from dspodfl.analysis import figures as plots
    from dspodfl.experiments import result, sweep  # noqa: F401
    from dspodfl.study import api, provenance
    from dspodfl.ui.cli import app, verify  # noqa: F401

    torch.set_num_threads(1)
    torch.cuda.is_available = lambda: False  # type: ignore[assignment]
    magic = {"png": b"\x89PNG\r\n\x1a\n", "svg": b"<?xml"}
    plots.picture = lambda figure, form: magic[form] + b" matplotlib"  # type: ignore[assignment]
    plots.accuracy_vs_delay = plots.network = plots.sweep = lambda *_: None  # type: ignore[assignment]
    provenance._commit = lambda: None
    api.run(api.Config(**tomllib.loads(KEPT)))
    _ready.append(True)


# --- what is tried --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scenario:
    """A command that is killed, in a folder that is made ready for it."""

    name: str
    words: tuple[str, ...]
    out: str
    before: Callable[[Path], None]
    again: Callable[[Path, Ended], Iterator[tuple[str, ...]]]
    """The commands that a person would give afterwards."""
    files: tuple[str, ...] = ("metrics.parquet",)
    foreign: dict[str, str] = field(default_factory=dict)


def _study(folder: Path) -> None:
    (folder / "study.toml").write_text(KEPT)


def _interrupted(folder: Path) -> None:
    """A run that was killed after its first checkpoint."""
    _study(folder)
    whole = len(command(folder, RUN).operations)
    shutil.rmtree(folder / "out")
    for at in range(whole * 2 // 3, 0, -1):
        assert command(folder, RUN, at, "after").killed
        if list((folder / "out/checkpoints").glob("0*")):
            return
        shutil.rmtree(folder / "out")
    raise AssertionError("no checkpoint was ever written")


def _place(folder: Path) -> None:
    for name, text in FOREIGN.items():
        (folder / "out" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "out" / name).write_text(text)


def _other(folder: Path) -> None:
    """A finished run of another seed, next to files of others."""
    _study(folder)
    assert command(folder, (*RUN, "--set", "seed=5")).code == 0
    _place(folder)


def _other_interrupted(folder: Path) -> None:
    """A run of another study that was killed, next to files of others."""
    _interrupted(folder)
    _place(folder)
    (folder / "study.toml").write_text(KEPT.replace("batch_size = 2", "batch_size = 3"))


def _finished(folder: Path) -> None:
    _study(folder)
    assert command(folder, RUN).code == 0


def _resumed(folder: Path, killed: Ended) -> Iterator[tuple[str, ...]]:
    yield RESUME if (folder / "out").exists() else RUN


def _overwritten(folder: Path, killed: Ended) -> Iterator[tuple[str, ...]]:
    """Resume whatever is there; where that was still the old run, overwrite it again."""
    done = command(folder, ("run", "study.toml", "--resume", "out", "--quiet"))
    if done.code:
        yield (*RUN, "--overwrite")


def _same(words: tuple[str, ...]) -> Callable[[Path, Ended], Iterator[tuple[str, ...]]]:
    return lambda folder, killed: iter([words])


_ALL = ("metrics.parquet", "clients.parquet", "setting.npz", "events.npz", "models/dgd-seed0.safetensors")
SCENARIOS = (
    Scenario("a new run", RUN, "out", _study, _resumed, _ALL),
    Scenario("a run that is resumed", RESUME, "out", _interrupted, _resumed, _ALL),
    Scenario("a finished run that is overwritten", (*RUN, "--overwrite"), "out", _other, _overwritten, _ALL, FOREIGN),
    Scenario(
        "an unfinished run that is overwritten",
        (*RUN, "--overwrite"),
        "out",
        _other_interrupted,
        _overwritten,
        _ALL,
        FOREIGN,
    ),
    Scenario("a finished run that is shown", ("show", "out"), "out", _finished, _same(("show", "out")), _ALL),
    Scenario("a sweep", SWEEP, "swept", _study, _same(SWEEP), ("metrics.parquet", "table.csv")),
    Scenario("a finished sweep that is run again", SWEEP, "swept", lambda f: _swept(f), _same(SWEEP), ("table.csv",)),
)


def _swept(folder: Path) -> None:
    _study(folder)
    assert command(folder, SWEEP).code == 0


def attack(every: int = 1) -> Iterator[Tally]:
    """Kill each command before, after and within every operation on files."""
    for scenario in SCENARIOS:
        with tempfile.TemporaryDirectory(prefix="dspodfl-attack-") as place:
            base = Path(place)
            (base / "template").mkdir()
            scenario.before(base / "template")
            whole = shutil.copytree(base / "template", base / "whole")
            done = command(whole, scenario.words)
            assert done.code == 0, done.err
            tally = Tally("kills", scenario.name)
            cases = [
                (at, how)
                for at, kind in enumerate(done.operations)
                for how in ("before", "after", *(["torn"] if kind == "t" else []))
            ]
            for at, how in thinned(cases, every):
                trial = shutil.copytree(base / "template", base / "trial", symlinks=True)
                tally.count(_try(scenario, trial, whole, at, how))
                shutil.rmtree(trial)
            yield tally


def _try(scenario: Scenario, folder: Path, whole: Path, at: int, how: str) -> str | None:
    """What went wrong after a kill; None where everything held."""
    where = f"killed {how} operation {at}"
    killed = command(folder, scenario.words, at, how)
    if not killed.killed:
        return f"{where}: it was not killed, but ended with {killed.code}: {killed.err}"
    out = folder / scenario.out
    if out.exists():
        shown = command(folder, ("show", scenario.out))
        if not shown.plain:
            return f"{where}: show: exit {shown.code}: {shown.err}"
        verified = command(folder, ("verify", scenario.out))
        nothing = "neither the folder of a run" in verified.err
        if verified.code and not nothing:
            return f"{where}: verify: exit {verified.code}: {verified.err}"
    for words in scenario.again(folder, killed):
        done = command(folder, words)
        if done.code:
            return f"{where}: {' '.join(words)}: exit {done.code}: {done.err}"
    for name in scenario.files:
        if (out / name).read_bytes() != (whole / scenario.out / name).read_bytes():
            return f"{where}: {name} is not that of the run in one go"
    if command(folder, ("verify", scenario.out)).code:
        return f"{where}: something is damaged afterwards"
    for name, text in scenario.foreign.items():
        if not (out / name).is_file() or (out / name).read_text() != text:
            return f"{where}: {name} of another program is lost"
    left = [p for p in folder.rglob(".*") if p.name.startswith((".dspodfl-", ".aside-", ".lock", ".metrics"))]
    names = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
    expected = {p.relative_to(whole).as_posix() for p in whole.rglob("*") if p.is_file()}
    if left or names != expected:
        return f"{where}: left over or missing: {sorted({*map(str, left), *(names ^ expected)})}"
    return None
