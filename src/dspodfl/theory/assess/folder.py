"""The folder that ``dspodfl theory … --out`` writes: numbers, tables and figures, and what kind of result it is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dspodfl.errors import DataError
from dspodfl.study.store import COMPLETE, Folder, check_format, claim

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

Kind = Literal["theory bound", "theory sweep"]
KINDS: tuple[Kind, ...] = ("theory bound", "theory sweep")
"""The kinds of result.json."""
FORMAT = 1
"""The format of result.json."""
FILES = ("result.json", "table.csv", "curves.csv", "figure.png", "figure.svg")
"""The files of such a folder."""


def claim_folder(folder: Path, *, overwrite: bool) -> None:
    """Refuse a folder that a result cannot be written to, before anything is computed.

    Args:
        folder: The folder.
        overwrite: Whether a result of the theory that is there may be replaced.

    Raises:
        InputError: It exists already, holds files of others, or cannot be written to.
    """
    claim(folder, overwrite=overwrite, names=FILES, kind="theory")


def write_folder(
    folder: Path, kind: Kind, record: Mapping[str, Any], tables: Mapping[str, pd.DataFrame], figure: Figure | None
) -> None:
    """Write a result; all files appear at once, or none does.

    Args:
        folder: The folder; it is made where it does not exist.
        kind: The kind of the result, written to result.json with `FORMAT`.
        record: What else result.json holds, as plain values.
        tables: Tables by the names of their files.
        figure: The figure, written as PNG and SVG; None: there is none.

    Raises:
        DataError: A file could not be written.
    """
    from dspodfl.analysis.figures import picture

    content = {"kind": kind, "format": FORMAT, **record}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with Folder(folder, "theory").change(state=COMPLETE, only=True) as change:
            change.write("result.json", (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode())
            for name, table in tables.items():
                change.write(name, table.to_csv(index=False, float_format="%.10g").encode())
            for form in ("png", "svg"):
                if figure is not None:
                    change.write(f"figure.{form}", picture(figure, form))
    except OSError as error:
        raise DataError(f"{folder}: the result could not be written ({error})") from error


def check_record(record: Mapping[str, Any], folder: Path) -> Kind:
    """Check the kind and the format of a result.json of the theory.

    Args:
        record: Its content. Version 0.1 wrote neither kind nor format: what such a record holds decides.
        folder: Its folder, for messages.

    Returns:
        Its kind.

    Raises:
        DataError: It is of another kind, or of a later format.

    >>> check_record({"kind": "theory sweep", "format": 1, "axes": [], "rows": []}, Path("told"))
    'theory sweep'
    >>> check_record({"guaranteed": True}, Path("told"))
    'theory bound'
    """
    check_format(record, KINDS, FORMAT, f"{folder}: result.json")
    found: Kind = record.get("kind", "theory bound" if "guaranteed" in record else "theory sweep")
    return found
