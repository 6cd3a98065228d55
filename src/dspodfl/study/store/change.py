"""Files that are written together: temporary ones first, then the manifest of both, then the renaming."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dspodfl.study.store.files import Entry, entry, sync, temporary, write
from dspodfl.study.store.layout import CHECKPOINTS, CLAIMED, UNFINISHED
from dspodfl.study.store.manifest import Manifest

if TYPE_CHECKING:
    from dspodfl.study.store.folder import Folder


class Loose:
    """Write files of a folder whose lock another process has: its manifest stays as it is.

    Args:
        folder: The folder.
    """

    def __init__(self, folder: Folder) -> None:
        self._folder = folder

    def write(self, name: str, content: bytes) -> None:
        """Write a file completely or not at all.

        Args:
            name: The file.
            content: What it holds afterwards.

        Raises:
            ForeignFileError: A file of others has this name.
        """
        self._folder.guard([name])
        write(self._folder.path / name, content)


class Change:
    """Files that are written together.

    Args:
        folder: The folder.
        before: Its manifest now.
        target: Its manifest afterwards, but for the files.
        only: Whether other files of dspodfl in the folder are deleted.
    """

    def __init__(self, folder: Folder, before: Manifest, target: Manifest, only: bool) -> None:
        self._folder, self._before, self._target, self._only = folder, before, target, only
        self._temporaries: dict[str, Path] = {}
        self._entries: dict[str, Entry] = {}

    def write(self, name: str, content: bytes) -> None:
        """Write the new content of a file to a temporary one.

        Args:
            name: The file.
            content: What it holds afterwards.

        Raises:
            ForeignFileError: A file of others has this name.
        """
        self._folder.guard([name])
        path = self._folder.path / name
        path.parent.mkdir(exist_ok=True)
        self._temporaries[name], self._entries[name] = temporary(path, content), entry(content)

    @property
    def names(self) -> set[str]:
        """The files that were written so far."""
        return set(self._temporaries)

    def commit(self) -> None:
        """Replace the old files by the new ones."""
        folder, before, new = self._folder, self._before, self._entries
        same = (self._target.kind, self._target.id) == (before.kind, before.id)
        stay, gone = dict(before.files), dict(before.replaced)
        if self._only:
            gone |= folder.known()
            stay = {name: old for name, old in stay.items() if same and name in new}
        if not same:
            gone |= {f"{CHECKPOINTS}/{name}": {} for name in before.checkpoints}
        # What another run left under a name that is written now is the old file until it is replaced.
        gone = {name: old for name, old in gone.items() if name not in new or not same}
        if not (new or gone) and self._target == before:
            return
        # The state is that of what is there: it is complete once all files are.
        state = before.state if same else UNFINISHED if self._target.state == UNFINISHED else CLAIMED
        folder.put(replace(self._target, state=state, files=stay, writing=new, replaced=gone))
        for name, path in list(self._temporaries.items()):
            os.replace(path, folder.path / name)
            del self._temporaries[name]
        for parent in {(folder.path / name).parent for name in new}:
            sync(parent)
        if not same:
            folder.remove_metrics_log(before)
        folder.remove({name: old for name, old in gone.items() if name not in new})
        folder.put(replace(self._target, files=stay | new, writing={}, replaced={}))

    def discard(self) -> None:
        """Delete the temporary files that replaced no file."""
        for path in self._temporaries.values():
            with suppress(OSError):
                path.unlink(missing_ok=True)
        self._temporaries = {}
