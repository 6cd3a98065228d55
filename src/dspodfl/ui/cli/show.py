"""The command show: print the table of whatever a folder holds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from dspodfl.analysis import Cost
from dspodfl.errors import DataError, InputError, bounded
from dspodfl.study.store import MANIFEST, METRICS_LOG, METRICS_LOGS, Folder, ForeignFileError, Loose, lock
from dspodfl.ui.cli.grids import print_outcome
from dspodfl.ui.console.results import ERR, OUT, print_places, print_result, print_unfinished
from dspodfl.ui.console.theory import print_record, print_sweep

if TYPE_CHECKING:
    from dspodfl.study import Result

_SUMMARY, _RESULT, _GRID = "summary.json", "result.json", "grid.json"
_LOOKED_FOR = (
    f"a folder that dspodfl wrote: a run ({_SUMMARY} or {METRICS_LOG}), a sweep, a reproduction or a bound ({_RESULT})"
    ", or one that holds such folders"
)
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)


def show_folder(folder: Path, at: Cost | None = None) -> None:
    """Print what a folder holds, or each of the folders in it.

    Args:
        folder: Of a run, a sweep, a reproduction or the theory, or one whose sub-folders are such.
        at: The cost to read at.

    Raises:
        InputError: The folder holds nothing of ours, or cannot be read at that cost.
        DataError: A file is damaged; of several folders the others are printed first.
    """
    if not folder.is_dir():
        raise InputError("directory", str(folder), _LOOKED_FOR)
    if _kind(folder) is not None:
        _show(folder, at)
        return
    try:
        inside = [path for path in sorted(folder.iterdir()) if path.is_dir() and _shown(path)]
    except OSError as error:
        raise InputError("directory", str(folder), f"a folder that can be read ({error.strerror})") from None
    if not inside:
        raise InputError("directory", str(folder), _LOOKED_FOR)
    problems = []
    for path in inside:
        OUT.print(Text(f"{path}:"), soft_wrap=True)
        try:
            _show(path, at)
        except InputError as error:  # --at does not apply to it
            ERR.print(Text(f"not shown: {error}"), soft_wrap=True)
        except DataError as error:
            problems.append(str(error))
        OUT.print()
    if problems:
        raise DataError("\n".join(problems))


def _shown(folder: Path) -> bool:
    """Whether a folder in another is shown: the cells that reproductions share are no result by themselves."""
    if _kind(folder) is None:
        return False
    try:
        manifest = Folder(folder).manifest()
    except DataError:
        return True  # it is shown as damaged
    return manifest is None or manifest.kind != "cells"


def _kind(folder: Path) -> str | None:
    """What a folder holds, as far as the names of its files tell."""
    # a run that has lost its summary still has its metrics, and is reported as damaged
    runs = (_SUMMARY, *METRICS_LOGS, "setting.npz", MANIFEST)
    for kind, names in (("result", (_RESULT,)), ("run", runs), ("grid", (_GRID,))):
        if any((folder / name).is_file() for name in names):
            return kind
    return None


def _show(folder: Path, at: Cost | None) -> None:
    kind = _kind(folder)
    if kind == "run":
        _show_run(folder, at)
    elif kind == "grid":
        OUT.print(Text(f"{folder}: not finished; the command that began it continues it"), soft_wrap=True)
    else:
        _show_result(folder, at)


def _show_run(folder: Path, at: Cost | None) -> None:
    from dspodfl.study import Result

    result = Result.load(folder)
    for note in result.notes:
        ERR.print(Text(note), soft_wrap=True)
    try:
        print_result(result, at)
    except _UNREADABLE as error:
        raise DataError(f"{folder}: {_SUMMARY} or another file of this run is damaged ({error})") from error
    print_places(folder, _draw(result, folder))
    print_unfinished(result, folder)


def _draw(result: Result, folder: Path) -> bool:
    """Draw the pictures of a run; where that is not possible, print why."""
    try:
        files = Folder(folder)
        # A manifest that began with pictures would say of a finished run of version 0.1 that it is not.
        loose = lock.holder(folder) is not None or files.manifest() is None
        result.draw(Loose(files) if loose else folder)
        return True
    except OSError as error:
        why = error.strerror or str(error)
    except ForeignFileError as error:
        why = str(error)
    ERR.print(Text(f"the pictures were not drawn: {why}"), soft_wrap=True)
    return False


def _show_result(folder: Path, at: Cost | None) -> None:
    """A sweep or a reproduction; or a result of the theory, which has a file of the same name."""
    from dspodfl.experiments import is_theory
    from dspodfl.theory.assess import check_record

    record = _record(folder)
    theory = is_theory(record)
    if theory and at is not None:
        raise InputError("--at", at.text, f"left out: {folder} is of the theory, which measures nothing")
    try:
        if not theory:
            _show_outcome(folder, at)
        elif check_record(record, folder) == "theory bound":
            print_record(record, f"theory bound: {folder.name}")
        else:
            _show_theory_sweep(folder, record)
    except (InputError, DataError):
        raise
    except _UNREADABLE as error:
        raise DataError(f"{folder}: {_RESULT} is damaged ({type(error).__name__}: {error})") from error


def _record(folder: Path) -> dict[str, Any]:
    try:
        found = bounded.parse_json(Folder(folder).read(_RESULT, bounded.JSON))
    except ValueError as error:
        raise DataError(f"{folder}: {_RESULT} is damaged ({error})") from None
    if not isinstance(found, dict):
        raise DataError(f"{folder}: {_RESULT} is damaged (it is not a table)")
    return found


def _show_theory_sweep(folder: Path, record: dict[str, Any]) -> None:
    import pandas as pd

    names = [str(name) for name in record["axes"]]
    print_sweep(pd.DataFrame(record["rows"]), names, f"theory: {folder.name}")
    OUT.print(Text(f"tables:  {folder}"), soft_wrap=True)


def _show_outcome(folder: Path, at: Cost | None) -> None:
    from dspodfl.experiments import Outcome

    print_outcome(Outcome.load(folder), at)
    OUT.print(Text(f"picture: {folder / 'figure.png'}"), soft_wrap=True)
    OUT.print(Text(f"tables:  {folder}"), soft_wrap=True)
