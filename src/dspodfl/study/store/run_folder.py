"""The folder of a run: locked for one process, it has the log of metrics, checkpoints, and the result."""

from __future__ import annotations

import os
import secrets
import time
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

from dspodfl.analysis import MetricsRow
from dspodfl.config import labels_of
from dspodfl.errors import DataError, InputError
from dspodfl.study.result import ALWAYS, Result, model_file
from dspodfl.study.store import lock, metrics_log
from dspodfl.study.store.checkpoint import FOLDER
from dspodfl.study.store.checkpoint_writer import CheckpointWriter
from dspodfl.study.store.claiming import abandoned, claim
from dspodfl.study.store.files import entry_of, sync, write
from dspodfl.study.store.folder import Folder
from dspodfl.study.store.folder_reader import has_metrics_log, looks_ours
from dspodfl.study.store.layout import CLAIMED, MANIFEST, METRICS_LOG, NEW, UNFINISHED
from dspodfl.study.store.manifest import ForeignFileError, Manifest
from dspodfl.study.store.metrics_log import LogContent, MetricsLog
from dspodfl.study.store.rows import Rows
from dspodfl.study.tables import read_parquet

CONFIG = "config.toml"
"""The file of the resolved configuration."""
_NEW = ".dspodfl-new-"
"""Folders that are about to get their name begin with this."""


class RunFolder(CheckpointWriter):
    """The folder of a run, from the first evaluation to the result.

    Args:
        folder: Where it is, or will be.
        options: The options of the run, for the process that resumes it.
        clock: Seconds that never go back.
    """

    def __init__(
        self, folder: Path, options: Mapping[str, Any] | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(folder, clock)
        self.options = {} if options is None else options
        self._id = secrets.token_hex(8)
        self._config = ""
        self._log = MetricsLog(folder / METRICS_LOG)
        self._made: list[Path] = []
        self._checked = self._claimed = self._begun = self._reopened = False

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    # --- the folder -------------------------------------------------------------------------------------------

    def claim(self, *, overwrite: bool) -> None:
        """Refuse a folder that the run cannot or must not be written to, before anything is computed.

        Args:
            overwrite: Whether it may exist.

        Raises:
            InputError: It exists, cannot be written, or a file of others has a name that must be written.
        """
        more = ["events.npz"] if self.options.get("record") else []
        claim(self.folder, overwrite=overwrite, names=[*ALWAYS, METRICS_LOG, *more])
        for name in (FOLDER, *(["models"] if self.options.get("models") else [])):
            path = self.folder / name
            if os.path.lexists(path) and (path.is_symlink() or not path.is_dir()):
                raise ForeignFileError(path)
        self._checked = True

    def create(self, *, overwrite: bool, config: str = "") -> None:
        """Take a folder for a new run: one that does not exist yet, unless it may be overwritten.

        A new folder appears with its configuration in it: whenever the process is killed, the run can be resumed. Files
        of another run in an existing folder stay there until the first rows are written.

        Args:
            overwrite: Whether the folder may exist.
            config: The resolved configuration, as TOML.

        Raises:
            InputError: It exists, another process writes to it, or it cannot be written.
        """
        if not self._checked:
            self.claim(overwrite=overwrite)
        self._files.guard(_models(config) if self.options.get("models") else [])
        self._config = config
        missing = [path for path in (self.folder, *self.folder.parents) if not path.exists()]
        try:
            if not missing and not overwrite and self.folder.is_dir() and not abandoned(self.folder):
                raise FileExistsError(str(self.folder))  # another process has made it meanwhile
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
            self._files.rename(self.folder)
            sync(parent)
        except BaseException:
            _discard(self._files)
            self._files = files
            raise

    def _claim(self) -> None:
        """Write the configuration, and that the folder is a run's."""
        with self._files.change(state=CLAIMED, id=self._id, about=self._about()) as change:
            change.write(CONFIG, self._config.encode())
        self._claimed = True

    def _about(self) -> dict[str, Any]:
        return {"config": self._config, "options": dict(self.options)}

    def reopen(self) -> None:
        """Lock the folder of a run that is to be resumed; no file in it is changed yet.

        Raises:
            InputError: It is no folder, another process writes to it, or it cannot be written.
        """
        try:
            if not self.folder.is_dir():
                raise InputError("--resume", str(self.folder), "the folder of a run")
            self._take("--resume")
            self._reopened = True
        except OSError as error:
            raise InputError("--resume", str(self.folder), f"a folder that can be written ({error})") from None

    def recover(self) -> None:
        """Finish a change that a killed process had begun: its configuration, and the files that it had to delete.

        Raises:
            InputError: The folder cannot be written.
        """
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
        except lock.LockHeldError as error:
            who = f" (process {error.process} is)" if error.process else ""
            raise InputError(field, str(self.folder), f"a folder that no other run is writing to{who}") from None

    def release(self) -> None:
        """Release the folder; a new one without rows is deleted."""
        self._log.close()
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

    def begin(self, result: Result, header: Mapping[str, Any], rows: Iterable[MetricsRow], **extra: Any) -> None:
        """Write the first rows of a run, or those that it is resumed with, and replace what another run has left.

        Rows that the log of a run that died has beyond its checkpoint stay there until they are measured again.

        Args:
            result: The result before anything is measured: configuration, clients, graphs and rates.
            header: What the run is.
            rows: The rows.
            extra: What was spent until then.

        Raises:
            DataError: A file could not be written.
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
                self._log.begin({**header, "id": self._id}, rows, **extra)
            sync(self.folder)
        except OSError as error:
            self._fail("the first rows", error)
        self._begun = True

    def _continue(self, header: Mapping[str, Any], rows: Iterable[MetricsRow], extra: Mapping[str, Any]) -> None:
        """Append to the log of the run, if it is not damaged; else write one with all rows that are known."""
        manifest = self._files.manifest()
        self._id = manifest.id if manifest else ""
        header = {**header, "id": self._id}
        path = metrics_log.path_in(self.folder)
        found = self._logged(path, manifest)
        if found is None or found.damage or found.header is None or path.name != METRICS_LOG:
            before: Iterable[MetricsRow] = found.rows if found else self._result_rows()
            self._log.begin(header, chain(before, rows), **extra)
            if found is not None and path.name != METRICS_LOG:
                path.unlink()
        else:
            known = len(found.rows)
            self._log.resume(header, found)
            found.rows.extend(rows)
            if len(found.rows.latest()) > known:  # a power cut has taken rows that the checkpoint has
                self._log.append(list(rows), **extra)

    def _logged(self, path: Path, manifest: Manifest | None) -> LogContent | None:
        """What the log of metrics says, if it is that of this run."""
        if not (has_metrics_log(self.folder, manifest) if manifest else looks_ours(path, path.name)):
            return None
        try:
            return metrics_log.read(path)
        except (OSError, ValueError, KeyError, TypeError):  # all lines are damaged
            return None

    def _result_rows(self) -> Rows:
        """The rows that were measured before the run was interrupted."""
        with suppress(DataError, OSError, ValueError, KeyError):
            if self._files.holds("metrics.parquet"):
                return Rows.of(read_parquet(self._files.read("metrics.parquet")))
        return Rows()

    @property
    def begun(self) -> bool:
        """Whether rows are in the folder."""
        return self._begun

    def note(self, rows: Sequence[MetricsRow], **extra: Any) -> None:
        """Append the rows of an evaluation.

        Args:
            rows: The rows.
            extra: What was spent until then.

        Raises:
            DataError: The log could not be written.
        """
        try:
            self._log.append(rows, **extra)
        except OSError as error:
            self._fail("what was measured", error)

    def finish(self, result: Result, *, models: bool) -> None:
        """Write the result; the checkpoints of a complete run are deleted.

        Args:
            result: The result.
            models: Whether the models are written too.

        Raises:
            DataError: A file could not be written.
        """
        self._config = result.config_toml
        try:
            result.write(self._files, self._id, models=models, about=self._about())
            self._log.close()
            self._files.remove_metrics_log(self._files.manifest())
            if result.summary["study"]["complete"]:
                self._files.clean()
        except OSError as error:
            raise DataError(f"{self.folder}: the result could not be written ({error})") from error


def _models(config: str) -> list[str]:
    """The files of the models of a study."""
    raw = tomllib.loads(config)
    seeds = range(raw["seed"], raw["seed"] + raw["seeds"]) if raw else ()
    return [model_file(name, seed) for name in labels_of(raw.get("algorithms", ())) for seed in seeds]


def _sweep(parent: Path) -> None:
    """Delete the folders next to a new one that never got their name, because their process was killed."""
    for path in parent.glob(f"{_NEW}*"):
        files = Folder(path)
        with suppress(OSError, lock.LockHeldError):
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
