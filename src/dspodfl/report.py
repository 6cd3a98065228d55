"""One self-contained page about runs, sweeps and reproductions."""

from pathlib import Path


def page(folders: list[Path]) -> str:
    return ""
