"""The keeper of a run's folder: takes it for one run alone, notes what is measured, and writes checkpoints when due."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from dspodfl import journal, lock
from dspodfl.checkpoint import FOLDER, Checkpoint, Store
from dspodfl.engine import Alone, Team
from dspodfl.errors import DataError, InputError
from dspodfl.journal import JOURNAL, Journal
from dspodfl.judging import Row
from dspodfl.results import Result, claim, sync

_SHORTEST, _LONGEST = 0.1, 0.5
"""Seconds between two places where a run can be stopped, about."""


class Keeper:
    """Keeps a folder for a run, from the first evaluation to the result.

    ``options`` is what whoever goes on with the run should know of how it was asked for.
    """

    def __init__(
        self, folder: Path, options: Mapping[str, Any] | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.folder, self.store, self.options = folder, Store(folder), options or {}
        self._every_iterations, self._every_minutes, self._clock = 0, 0.0, clock
        self._lock: lock.Lock | None = None
        self._journal = Journal(folder / JOURNAL)
        self._made: list[Path] = []
        self._begun = self._reopened = False
        self._saved, self._since, self._stride = clock(), clock(), 1
        self._place: tuple[int, int] | None = None  # finished waves and iteration of the last checkpoint

    def when(self, every_iterations: int, every_minutes: float, keep: int) -> None:
        """When a checkpoint is due (0: never for that reason), and how many are kept."""
        self._every_iterations, self._every_minutes, self.store.keep = every_iterations, every_minutes, keep

    def __enter__(self) -> Keeper:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    # --- the folder -------------------------------------------------------------------------------------------

    def create(self, *, overwrite: bool) -> None:
        """Take a folder for a new run: one that does not exist yet, unless it may be overwritten."""
        claim(self.folder, overwrite=overwrite)
        missing = [path for path in (self.folder, *self.folder.parents) if not path.exists()]
        try:
            self.folder.mkdir(parents=True, exist_ok=overwrite)
            self._made = missing
            self._take("out")
        except FileExistsError:
            raise InputError("out", str(self.folder), "a folder that does not exist yet (or use --overwrite)") from None
        except OSError as error:
            raise InputError("out", str(self.folder), f"a folder that can be written ({error})") from None

    def reopen(self) -> None:
        """Take the folder of a run that is to be gone on with."""
        if not self.folder.is_dir():
            raise InputError("--resume", str(self.folder), "the folder of a run")
        try:
            self._take("--resume")
            self._reopened = True
        except OSError as error:
            raise InputError("--resume", str(self.folder), f"a folder that can be written ({error})") from None

    def _take(self, field: str) -> None:
        held = lock.Lock(self.folder)
        try:
            held.take()
        except lock.Held as error:
            who = f" (process {error.args[0]} is)" if error.args[0] else ""
            raise InputError(field, str(self.folder), f"a folder that no other run is writing to{who}") from None
        self._lock = held

    def release(self) -> None:
        """Let go of the folder; one that was made for nothing is removed."""
        self._journal.close()
        if self._lock is not None:
            self._lock.release()
            self._lock = None
        for path in () if self._begun else self._made:
            try:
                path.rmdir()
            except OSError:  # something else is in it
                break

    # --- while the run is on its way --------------------------------------------------------------------------

    def reach(self, iteration: int) -> int:
        """How far the run may go from an iteration before it is asked whether to stop: a fraction of a second."""
        self._since = self._clock()
        ahead = iteration + self._stride
        if self._every_iterations:
            ahead = min(ahead, iteration - iteration % self._every_iterations + self._every_iterations)
        return ahead

    def begin(self, result: Result, header: Mapping[str, Any], rows: Sequence[Row], **beside: Any) -> None:
        """The first rows of a run, or those it is taken up again with: from now on the folder is its own.

        What the journal of a run that died has beyond its checkpoint stays there until it is measured again.
        """
        path = self.folder / JOURNAL
        try:
            self._journal.begin(header, [*(_rows(path) if self._reopened else []), *rows], **beside)
            result.save_setting(self.folder)
            if not self._reopened:  # what another run left
                for name in ("summary.json", "metrics.parquet"):
                    (self.folder / name).unlink(missing_ok=True)
                shutil.rmtree(self.folder / FOLDER, ignore_errors=True)
            sync(self.folder)
        except OSError as error:
            self._fail("the first rows", error)
        self._begun = True

    @property
    def begun(self) -> bool:
        """Whether anything is in the folder."""
        return self._begun

    def note(self, rows: Sequence[Row], **beside: Any) -> None:
        """Rows of an evaluation."""
        try:
            self._journal.append(rows, **beside)
        except OSError as error:
            self._fail("what was measured", error)

    def due(self, iteration: int, paused: bool) -> bool:
        """Whether a checkpoint is due at an iteration, which was reached by a pause or by an evaluation."""
        now = self._clock()
        if paused:
            took = now - self._since
            self._stride = min(2**20, 2 * self._stride) if took < _SHORTEST else self._stride
            self._stride = max(1, self._stride // 2) if took > _LONGEST else self._stride
        by_count = self._every_iterations > 0 and iteration > 0 and iteration % self._every_iterations == 0
        return by_count or 0 < self._every_minutes * 60 <= now - self._saved

    def save(self, made: Checkpoint, team: Team | None = None) -> None:
        """Write a checkpoint, once a place; where that fails, the last one stays as it is, and the run ends.

        Of several ranks each writes its own shards: all call this at once, and rank 0's keeper decides.
        """
        place = len(made.plan.done), made.iteration
        if (team or Alone()).share(place == self._place):
            return
        try:
            self.store.save(made, team)
        except OSError as error:
            self._fail("a checkpoint", error)
        self._saved, self._place = self._clock(), place

    def _fail(self, what: str, error: OSError) -> NoReturn:
        how = "the last checkpoint is as it was" if self.store.sealed() else "there is no checkpoint yet"
        raise DataError(f"{self.folder}: {what} could not be written ({error}); {how}") from error

    def finish(self, result: Result, *, models: bool) -> None:
        """Write the result; of one that is complete no checkpoint is needed any more."""
        result.save(self.folder, overwrite=True, models=models)
        self._journal.close()
        (self.folder / JOURNAL).unlink(missing_ok=True)
        if result.summary["study"]["complete"]:
            self.store.tidy(keep=0)


def _rows(path: Path) -> list[Row]:
    try:
        return journal.read(path).rows
    except (FileNotFoundError, ValueError, KeyError):  # there is none, or nothing whole is in it
        return []
