"""Every failure is a line and an exit code; what cannot be printed stops nothing; no text commands the terminal."""

import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from tests.edge import TINY_TOML, CommandLine, tiny

from dspodfl import run
from dspodfl.errors import ConfigError, DataError, InputError, LostRankError, OutOfMemoryError
from dspodfl.errors.signals import Interrupted
from dspodfl.study import terminal
from dspodfl.study.result import Result
from dspodfl.study.store.checkpoint import CheckpointStore
from dspodfl.ui.cli import failures

ROOT_ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p.endswith("src"))}


@pytest.fixture
def dspodfl(monkeypatch, capsys, tmp_path):
    line = CommandLine(monkeypatch, capsys, tmp_path)
    (tmp_path / "study.toml").write_text(TINY_TOML)
    return line


ERRORS = [
    (InputError("key", 1, "2"), "key = 1: must be 2", 2),
    (ConfigError(["a is wrong", "b is wrong"]), "a is wrong\nerror: b is wrong", 2),
    (DataError("file: damaged"), "file: damaged", 2),
    (OutOfMemoryError("too large"), "too large", 2),
    (LostRankError("rank 1 is gone"), "rank 1 is gone", 1),
    (OSError(errno.ENOSPC, "No space left on device", "/x/metrics"), "/x/metrics: No space left on device", 2),
    (OSError(errno.ENOSPC, "No space left on device"), "No space left on device", 2),
    (PermissionError(errno.EACCES, "Permission denied", "a", None, "b"), "b: Permission denied", 2),
    (OSError("odd"), "internal error: OSError: odd; please report it (DSPODFL_TRACEBACK=1 prints the traceback)", 1),
    (MemoryError("Unable to allocate 37 GiB"), "out of memory: Unable to allocate 37 GiB", 2),
    (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "out of memory", 2),
    (RecursionError("maximum recursion depth"), "internal error: RecursionError: maximum recursion depth", 1),
    (OverflowError("int too large"), "internal error: OverflowError: int too large", 1),
    (EOFError(), "internal error: EOFError", 1),
    (AssertionError("two\nlines"), "internal error: AssertionError: two lines", 1),
    (ValueError("x" * 10_000), "internal error: ValueError: xxx", 1),
    (ExceptionGroup("several", [ValueError("a")]), "internal error: ExceptionGroup: several", 1),
    (SystemExit(0), "code that was called ended the program: SystemExit: 0", 2),
    (SystemExit("gone"), "code that was called ended the program: SystemExit: gone", 2),
    (GeneratorExit(), "internal error: GeneratorExit", 1),
    (typer.BadParameter("no"), "invalid value: no", 2),
    (Interrupted(1), "", 129),
    (Interrupted(2), "", 130),
    (Interrupted(15), "", 143),
    (typer.Exit(3), "", 3),
]


@pytest.mark.parametrize(("error", "says", "code"), ERRORS, ids=lambda value: type(value).__name__)
def test_every_failure_is_a_line_and_an_exit_code(error, says, code, capsys):
    def command():
        raise error

    assert failures.guarded(command) == code
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"error: {says}" if says and code < 3 else "")
    if not isinstance(error, ConfigError):
        assert len(said.err.splitlines()) == (1 if says else 0)
    assert len(said.err) < 2000


def test_the_traceback_is_there_for_who_asks(capsys, monkeypatch):
    monkeypatch.setenv("DSPODFL_TRACEBACK", "1")
    assert failures.guarded(lambda: 1 // 0) == 1
    said = capsys.readouterr().err
    assert said.startswith("Traceback") and "error: internal error: ZeroDivisionError" in said


def test_a_warning_is_a_line(capsys, monkeypatch):
    import warnings

    def command():
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = failures._show_warning
            warnings.warn("ca\x1b[2Jreful", stacklevel=1)
        return 0

    assert failures.guarded(command) == 0
    assert capsys.readouterr().err == "warning: ca\\u001b[2Jreful\n"


# --- streams that cannot be written to --------------------------------------------------------------------------


def shell(folder, command):
    """A command line in a shell, in a folder; ``dspodfl`` is this package."""
    command = f'dspodfl() {{ {sys.executable} -m dspodfl "$@"; }}\n{command}'
    done = subprocess.run(
        ["bash", "-c", command], cwd=folder, env=ROOT_ENVIRONMENT, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("redirect", "says"),
    [
        pytest.param(
            ">&-", "error: what was to be printed could not be (Bad file descriptor)\n", marks=pytest.mark.long
        ),
        (">/dev/full", "error: what was to be printed could not be (No space left on device)\n"),
        (">&- 2>&- <&-", ""),
    ],
)
def test_a_run_whose_output_cannot_be_printed_is_written_all_the_same_and_exits_with_1(redirect, says, tmp_path):
    (tmp_path / "study.toml").write_text(TINY_TOML)
    code, _, err = shell(tmp_path, f"dspodfl run study.toml --device cpu --out out {redirect}")
    assert (code, err.strip().splitlines()[-1:]) == (1, [says.strip()] if says else [])
    assert Result.load(tmp_path / "out").summary["study"]["complete"]


@pytest.mark.parametrize(
    ("words", "redirect", "expected"),
    [
        ("list", ">&-", 1),
        ("list", ">/dev/full", 1),
        ("--version", ">/dev/full 2>/dev/full", 1),
        ("--help", ">/dev/full", 2),
        ("show out", ">&- 2>&-", 1),
        ("nonsense", ">&- 2>/dev/full", 2),
        ("run --set train.iterations=x", "2>&-", 2),
    ],
)
def test_no_command_minds_a_stream_that_is_closed_or_full(words, redirect, expected, finished):
    code, out, err = shell(finished, f"dspodfl {words} {redirect}")
    assert "Traceback" not in out + err and "Exception ignored" not in err
    assert code == expected, (out, err)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A folder with a finished run in it."""
    folder = tmp_path_factory.mktemp("finished")
    run(tiny(), device="cpu").save(folder / "out")
    return folder


def test_a_pipe_that_nobody_reads_is_no_error_in_words(finished):
    code, out, err = shell(finished, "set -o pipefail; dspodfl list | head -1")
    assert (code, err) == (1, "") and len(out.splitlines()) == 1


# --- text of strangers ------------------------------------------------------------------------------------------

ESCAPE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e"
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


@given(st.text())
def test_clean_text_has_no_control_characters_and_keeps_all_others(text):
    cleaned = terminal.clean(text)
    assert not CONTROL.search(cleaned)
    cleaned.encode()
    if not CONTROL.search(text) and text.isprintable():
        assert cleaned == text


def test_escape_sequences_of_a_configuration_do_not_reach_the_terminal(dspodfl):
    hostile = json.dumps(ESCAPE)
    for change in (f"graph.kind={hostile}", f"{hostile}=1", f"algorithms=[{hostile}]", f"model={{{hostile}=1}}"):
        answer = dspodfl("check", "study.toml", "--set", change)
        assert answer.code == 2 and not CONTROL.search(answer.err), answer.err
    for words in ([f"che{ESCAPE}ck"], ["check", f"{ESCAPE}.toml"], ["show", ESCAPE], ["run", f"--{ESCAPE}"]):
        answer = dspodfl(*words)
        assert answer.code == 2 and not CONTROL.search(answer.err + answer.out), answer.err
    assert dspodfl("init", f"{ESCAPE}.toml").code == 0
    answer = dspodfl("check", f"{ESCAPE}.toml")
    assert answer.code == 0 and not CONTROL.search(answer.out) and "\\u001b[2J" in answer.out


@pytest.mark.parametrize("name", [ESCAPE, "[red]x[/blue]", ":smile:", "[/]"])
def test_a_hostile_folder_is_shown_as_text(name, dspodfl):
    result = run(tiny(seeds=1), device="cpu")
    folder = dspodfl.folder / "out"
    result.save(folder)
    for file in ("summary.json", "config.toml"):
        text = (folder / file).read_text()
        (folder / file).write_text(text.replace('"dgd"', json.dumps(name)))
    answer = dspodfl("show", "out")
    assert not CONTROL.search(answer.out + answer.err)
    assert answer.code == 2 or ("\\u001b]" if name == ESCAPE else name) in answer.out


def test_a_table_prints_names_as_they_are(capsys):
    from rich.table import Table

    table = Table()
    table.add_column(f"head{ESCAPE}")
    for cell in ("[bold]a[/red]", ":smile:", ESCAPE):
        table.add_row(cell)
    terminal.OUT.print(table)
    said = capsys.readouterr().out
    assert "[bold]a[/red]" in said and ":smile:" in said and not CONTROL.search(said)


def test_checkpoints_that_are_there_are_said_to_be_there_whatever_the_run_was_doing(dspodfl, monkeypatch):
    def interrupted(*_):
        raise Interrupted(15)

    monkeypatch.setattr("dspodfl.ui.cli.run._set_up", interrupted)
    answer = dspodfl("run", "study.toml", "--out", "out")
    assert answer.code == 143 and "nothing was written" in answer.err
    run(tiny(), device="cpu", out="out", callbacks=[lambda _: True])
    assert CheckpointStore(Path("out")).committed()
    answer = dspodfl("run", "study.toml", "--resume", "out")
    assert answer.code == 143 and "nothing was written" not in answer.err
    assert "out is as it was" in answer.err and "dspodfl run --resume out" in answer.err
