"""The folder of a grid: claimed for one grid, it has the checkpoints of the cells that advance, and the outcome."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from dspodfl.errors import DataError, InputError, bounded
from dspodfl.study.store import (
    UNFINISHED,
    CheckpointStore,
    CheckpointWriter,
    Manifest,
    abandoned,
    check_format,
    claim,
    lock,
)

FORMAT = 1
"""Of grid.json and of the tables of cells."""
GRID = "grid.json"
OUTCOME = ("metrics.parquet", "table.csv", "figure.png", "figure.svg", "result.json")
"""What a finished grid writes."""


class GridFolder(CheckpointWriter):
    """The folder of a grid; one process writes to it at a time.

    Args:
        folder: Where it is, or will be.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, kind="experiment")

    def __enter__(self) -> GridFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def check(self) -> None:
        """Refuse a folder that cannot be written to, before anything is computed."""
        claim(self.folder, overwrite=True)

    def claim(self, content: Mapping[str, Any], *, overwrite: bool, former: Mapping[str, str] | None = None) -> None:
        """Take the folder for a grid until `release`: a new one, or one that holds the same grid, which is resumed.

        Args:
            content: What the grid is; it is written to grid.json. Finished cells of another grid stay: each is named by
                what it computes.
            overwrite: Whether another grid may take the place of the one that is there; its files stay until then.
            former: The names that version 0.1 gave the cells, and their present ones.

        Raises:
            InputError: Another grid, another process or files of others are there, or it cannot be written to.
        """
        record = json.loads(json.dumps(content, default=str))
        folder, files = self.folder, self._files
        claim(folder, overwrite=True, names=(GRID, *OUTCOME), kind="experiment")
        try:
            manifest = files.manifest() if folder.is_dir() else None
            same = folder.is_dir() and self._grid(manifest, former or {}) == record
            begun = manifest is not None and manifest.kind == "experiment" and not manifest.files
            new = not folder.is_dir() or not any(folder.iterdir()) or abandoned(folder) or begun
            if not new and not same and not overwrite:
                allowed = "a new folder, or one of the same grid, which is resumed (or use --overwrite)"
                raise InputError("out", str(folder), allowed)
            folder.mkdir(parents=True, exist_ok=True)
            self._hold()
            files.clean()
            if same and manifest is not None:
                return
            text = json.dumps(
                {"kind": "grid", "format": FORMAT, **record}, indent=2, ensure_ascii=False, sort_keys=True
            )
            with files.change(state=UNFINISHED) as change:
                change.write(GRID, (text + "\n").encode())
        except OSError as error:
            raise InputError("out", str(folder), f"a folder that can be written ({error})") from None

    def _hold(self) -> None:
        try:
            self._files.take()
        except lock.LockHeldError as error:
            who = f" (process {error.process} is)" if error.process else ""
            allowed = f"a folder that no other sweep or reproduction is writing to{who}"
            raise InputError("out", str(self.folder), allowed) from None

    def release(self) -> None:
        """Release the folder."""
        self._files.release()

    def _grid(self, manifest: Manifest | None, former: Mapping[str, str]) -> Any:
        """What the grid in the folder is, cells by their present names; None where there is none, or it is damaged."""
        try:
            if manifest is not None and manifest.kind != "experiment":
                return None
            found = bounded.parse_json(self._files.read(GRID, bounded.JSON))
            check_format(found, {"grid"}, FORMAT, GRID)
        except (DataError, ValueError):
            return None
        if not isinstance(found, dict):
            return None
        grid = {key: value for key, value in found.items() if key not in ("kind", "format")}
        if isinstance(grid.get("cells"), dict):
            grid["cells"] = {former.get(name, name): point for name, point in grid["cells"].items()}
        return grid

    # --- checkpoints ------------------------------------------------------------------------------------------

    def newest(self, cells: Collection[str], finished: Collection[str]) -> tuple[Path | None, list[str], list[str]]:
        """Find the newest checkpoint of cells of a grid of which some are left to run.

        Args:
            cells: The cells of the grid, by digest.
            finished: Those that need not be run.

        Returns:
            Its folder (None where there is none), the cells that advance in it, and a line for each that is damaged.
        """
        notes: list[str] = []
        for path in self.store.committed():
            try:
                found = self.store.read_manifest(path)
                advancing = [str(cell) for cell in found["cells"]]
            except (DataError, KeyError, TypeError) as error:
                notes.append(f"{error}; what it has is computed again")
                continue
            if set(advancing) <= set(cells) and not set(advancing) <= set(finished):
                return path, advancing, notes
        return None, [], notes

    def discard(self) -> None:
        """Delete all checkpoints: what they hold is finished, or is not wanted any more."""
        names = self._files.checkpoints()
        if names:
            self._files.remove_checkpoints(names)
            self._files.note(checkpoints=())
        keep = self.store.keep
        self.store, self._place = CheckpointStore(self.folder, keep), None
