"""Where numbers come from: device, versions, commit."""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

from dspodfl._version import __version__


def provenance(device: torch.device) -> dict[str, Any]:
    """Return where numbers come from: device, versions, commit.

    Args:
        device: Where they are computed.

    Returns:
        What summary.json says of it: ``device``, ``versions`` by package, and ``commit`` (None outside a source tree).
    """
    names = ("torch", "numpy", "scipy", "networkx", "pandas", "pyarrow", "pydantic", "numba", "triton")
    cuda = device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(device) if cuda else f"cpu ({torch.get_num_threads()} threads)",
        "versions": {
            "dspodfl": __version__,
            "python": platform.python_version(),
            **{name: importlib.metadata.version(name) for name in names if _installed(name)},
        },
        "commit": _commit(),
    }


def _installed(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _commit() -> str | None:
    """The commit of the source tree that this package runs from, if it does."""
    here = Path(__file__).resolve().parent
    try:
        if _git(here, "ls-files", "--error-unmatch", Path(__file__).name) is None:
            return None
        return _git(here, "rev-parse", "HEAD")
    except (OSError, subprocess.TimeoutExpired):
        return None


def _git(folder: Path, *words: str) -> str | None:
    """What git says, or None where it says no."""
    command = ["git", "-C", str(folder), *words]
    found = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)  # noqa: S603
    return found.stdout.strip() if found.returncode == 0 else None
