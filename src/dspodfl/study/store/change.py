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
    """Writes files of a folder whose lock another process has: its manifest stays as it is."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder

    def write(self, name: str, content: bytes) -> None:
        """Write a file whole or not at all, unless something that is not ours has this name."""
        self._folder.guard([name])
        write(self._folder.path / name, content)


class Change:
    """Files that are written together."""

    def __init__(self, folder: Folder, before: Manifest, target: Manifest, only: bool) -> None:
        self._folder, self._before, self._target, self._only = folder, before, target, only
        self._temporaries: dict[str, Path] = {}
        self._entries: dict[str, Entry] = {}

    def write(self, name: str, content: bytes) -> None:
        """Write what a file is to hold to a temporary one.

        Raises:
            ForeignFileError: something that is not ours has this name.
        """
        self._folder.guard([name])
        path = self._folder.path / name
        path.parent.mkdir(exist_ok=True)
        self._temporaries[name], self._entries[name] = temporary(path, content), entry(content)

    @property
    def names(self) -> set[str]:
        """What was written so far."""
        return set(self._temporaries)

    def commit(self) -> None:
        """Let the new files take the place of the old ones."""
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
        """Delete the temporary files that took no place."""
        for path in self._temporaries.values():
            with suppress(OSError):
                path.unlink(missing_ok=True)
        self._temporaries = {}
