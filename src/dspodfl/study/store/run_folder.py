"""The run_folder of a run's folder: takes it for one run alone, notes what is measured, and writes checkpoints when due."""

from __future__ import annotations

import os
import secrets
import time
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn

from dspodfl.analysis import METRICS, MetricsRow
from dspodfl.engine import Alone, Team
from dspodfl.errors import DataError, InputError
from dspodfl.study.result import ALWAYS, Result, has_journal, model_file, read_parquet
from dspodfl.study.store import lock
from dspodfl.study.store import metrics_log as journal
from dspodfl.study.store.checkpoint import FOLDER, Checkpoint, CheckpointStore
from dspodfl.study.store.files import entry_of, sync, write
from dspodfl.study.store.folder import (
    CLAIMED,
    MANIFEST,
    NEW,
    UNFINISHED,
    Folder,
    ForeignFileError,
    Manifest,
    claim,
    looks_ours,
)
from dspodfl.study.store.metrics_log import JOURNAL, Found, MetricsLog
from dspodfl.study.store.rows import Rows

CONFIG = "config.toml"
_SHORTEST, _LONGEST = 0.1, 0.5
"""Seconds between two places where a run can be stopped, about."""
_NEW = ".dspodfl-new-"
"""Folders that are about to get their name begin with this."""


class RunFolder:
    """Keeps a folder for a run, from the first evaluation to the result.

    ``options`` is what the process that resumes the run should know of how it was started.
    """

    def __init__(
        self, folder: Path, options: Mapping[str, Any] | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.folder, self.store, self.options = folder, CheckpointStore(folder), options or {}
        self._every_iterations, self._every_minutes, self._clock = 0, 0.0, clock
        self._files = Folder(folder)
        self._id = secrets.token_hex(8)
        self._config = ""
        self._journal = MetricsLog(folder / JOURNAL, columns=METRICS)
        self._made: list[Path] = []
        self._claimed = self._begun = self._reopened = False
        self._saved, self._since, self._stride = clock(), clock(), 1
        self._place: tuple[int, int, Any] | None = None  # finished waves, iteration, runs behind of the last checkpoint

    def when(self, every_iterations: int, every_minutes: float, keep: int) -> None:
        """When a checkpoint is due (0: never for that reason), and how many are kept."""
        self._every_iterations, self._every_minutes, self.store.keep = every_iterations, every_minutes, keep

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    # --- the folder -------------------------------------------------------------------------------------------

    def create(self, *, overwrite: bool, config: str = "") -> None:
        """Take a folder for a new run: one that does not exist yet, unless it may be overwritten.

        A new folder appears with its configuration in it: whenever the process is killed, the run can be resumed. What
        an existing one holds of another run stays there until something was measured.

        Args:
            overwrite: whether the folder may exist.
            config: the resolved configuration, as TOML.
        """
        claim_run(self.folder, self.options, overwrite=overwrite)
        self._files.guard(_models(config) if self.options.get("models") else [])
        self._config = config
        missing = [path for path in (self.folder, *self.folder.parents) if not path.exists()]
        try:
            if missing:
                self.folder.parent.mkdir(parents=True, exist_ok=True)
                self._made = missing
                self._create()
            else:
                self._take("out")
                self._files.clean()
                if self._files.manifest() is None and not self._files.known():
                    self._claim()
        except FileExistsError:
            raise InputError(
                "out",
                str(self.folder),
                NEW,
            ) from None
        except OSError as error:
            raise InputError("out", str(self.folder), f"a folder that can be written ({error})") from None

    def _create(self) -> None:
        """Make the folder under another name, put the configuration into it, and give it its name."""
        parent = self.folder.parent
        _sweep(parent)
        new = parent / f"{_NEW}{secrets.token_hex(4)}"
        new.mkdir()
        files, self._files = self._files, Folder(new)
        try:
            self._files.take()
            self._claim()
            if self.folder.exists():
                raise FileExistsError(str(self.folder))
            os.rename(new, self.folder)
            sync(parent)
        except BaseException:
            _discard(self._files)
            self._files = files
            raise
        self._files.moved(self.folder)

    def _claim(self) -> None:
        """Write the configuration, and that the folder is a run's."""
        with self._files.change(state=CLAIMED, id=self._id, about=self._about()) as change:
            change.write(CONFIG, self._config.encode())
        self._claimed = True

    def _about(self) -> dict[str, Any]:
        return {"config": self._config, "options": dict(self.options)}

    def reopen(self) -> None:
        """Take the folder of a run that is to be resumed; nothing in it is changed yet."""
        try:
            if not self.folder.is_dir():
                raise InputError("--resume", str(self.folder), "the folder of a run")
            self._take("--resume")
            self._reopened = True
        except OSError as error:
            raise InputError("--resume", str(self.folder), f"a folder that can be written ({error})") from None

    def recover(self) -> None:
        """Finish what a process that was killed had begun in a folder that is resumed: its configuration, cleaning."""
        try:
            manifest = self._files.manifest()
            if manifest is not None and self._stale_config(manifest):
                write(self.folder / CONFIG, str(manifest.about["config"]).encode())
            self._files.clean()
        except OSError as error:
            raise InputError("--resume", str(self.folder), f"a folder that can be written ({error})") from None

    def _stale_config(self, manifest: Manifest) -> bool:
        """Whether the configuration is that of the run which this one has replaced."""
        path, old = self.folder / CONFIG, manifest.replaced.get(CONFIG)
        return old is not None and path.is_file() and entry_of(path) == old != manifest.writing.get(CONFIG)

    def _take(self, field: str) -> None:
        try:
            self._files.take()
        except lock.Held as error:
            who = f" (process {error.args[0]} is)" if error.args[0] else ""
            raise InputError(field, str(self.folder), f"a folder that no other run is writing to{who}") from None

    def release(self) -> None:
        """Release the folder; one that was made for nothing is removed."""
        self._journal.close()
        if self._claimed and not self._begun:
            with suppress(OSError, DataError):
                self._files.remove(self._files.known())
                (self.folder / MANIFEST).unlink(missing_ok=True)
        self._files.release()
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

    def begin(self, result: Result, header: Mapping[str, Any], rows: Iterable[MetricsRow], **extra: Any) -> None:
        """Write the first rows of a run, or those it is resumed with: from now on the folder is its own.

        What the journal of a run that died has beyond its checkpoint stays there until it is measured again.
        """
        try:
            if self._reopened:
                self._continue(header, rows, extra)
            self._config = result.config_toml
            with self._files.change(
                state=UNFINISHED, id=self._id, about=self._about(), only=not self._reopened
            ) as change:
                result.save_setting(change)
            if not self._reopened:
                self._journal.begin({**header, "id": self._id}, rows, **extra)
            sync(self.folder)
        except OSError as error:
            self._fail("the first rows", error)
        self._begun = True

    def _continue(self, header: Mapping[str, Any], rows: Iterable[MetricsRow], extra: Mapping[str, Any]) -> None:
        """Append to the journal of the run, if it is sound; else write one with all that is known."""
        manifest = self._files.manifest()
        self._id = manifest.id if manifest else ""
        header = {**header, "id": self._id}
        found = self._found(manifest)
        if found is None or found.damage or found.header is None or tuple(found.header.get("columns", ())) != METRICS:
            before: Iterable[MetricsRow] = found.rows if found else self._result_rows()
            self._journal.begin(header, chain(before, rows), **extra)
        else:
            known = len(found.rows)
            self._journal.resume(header, found)
            found.rows.extend(rows)
            if len(found.rows.latest()) > known:  # a power cut has taken rows that the checkpoint has
                self._journal.append(list(rows), **extra)

    def _found(self, manifest: Manifest | None) -> Found | None:
        """What the journal says, if it is that of this run."""
        path = self.folder / JOURNAL
        if not (has_journal(self.folder, manifest) if manifest else looks_ours(path, JOURNAL)):
            return None
        try:
            return journal.read(path, Rows(), METRICS)
        except (OSError, ValueError, KeyError, TypeError):  # nothing whole is in it
            return None

    def _result_rows(self) -> Rows:
        """What was measured before the run was interrupted."""
        with suppress(DataError, OSError, ValueError, KeyError):
            if self._files.holds("metrics.parquet"):
                return Rows.of(read_parquet(self._files.read("metrics.parquet")))
        return Rows()

    @property
    def begun(self) -> bool:
        """Whether anything is in the folder."""
        return self._begun

    def note(self, rows: Sequence[MetricsRow], **beside: Any) -> None:
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

        Of several ranks each writes its own shards: all call this at once, and rank 0's run_folder decides.
        """
        place = len(made.plan.done), made.iteration, made.about.get("behind")
        if (team or Alone()).share(place == self._place):
            return
        self.store.files = self._files
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
        self._config = result.config_toml
        try:
            result.write(self._files, self._id, models=models, about=self._about())
            self._journal.close()
            self._files.remove_journal(self._files.manifest())
            if result.summary["study"]["complete"]:
                self._files.clean()
        except OSError as error:
            raise DataError(f"{self.folder}: the result could not be written ({error})") from error


def claim_run(folder: Path, options: Mapping[str, Any], *, overwrite: bool) -> None:
    """Refuse a folder that a run cannot or must not be written to, before anything is computed.

    Args:
        folder: where the run is to be written.
        options: what else than the usual files is written: ``record`` (events.npz), ``models``.
        overwrite: whether it may exist.
    """
    more = ["events.npz"] if options.get("record") else []
    claim(folder, overwrite=overwrite, names=[*ALWAYS, JOURNAL, *more])
    for name in (FOLDER, *(["models"] if options.get("models") else [])):
        path = folder / name
        if os.path.lexists(path) and (path.is_symlink() or not path.is_dir()):
            raise ForeignFileError(path)


def _models(config: str) -> list[str]:
    """The files that the models of a study will be written to."""
    raw = tomllib.loads(config)
    seeds = range(raw["seed"], raw["seed"] + raw["seeds"]) if raw else ()
    return [model_file(name, seed) for name in raw.get("algorithms", ()) for seed in seeds]


def _sweep(parent: Path) -> None:
    """Delete the folders next to a new one that never got their name, because their process was killed."""
    for path in parent.glob(f"{_NEW}*"):
        files = Folder(path)
        with suppress(OSError, lock.Held):
            files.take()
            _discard(files)


def _discard(files: Folder) -> None:
    """Delete a folder that never got its name."""
    with suppress(OSError, DataError):
        files.clean()
        for name in (CONFIG, MANIFEST):
            (files.path / name).unlink(missing_ok=True)
    files.release()
    with suppress(OSError):
        files.path.rmdir()
