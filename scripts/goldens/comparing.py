"""Name the differences between what a study gave and what it gives."""

from __future__ import annotations

import math
import platform
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NEAR = 1e-6
"""The relative difference that numbers may have on another kind of CPU."""
_NUMBER = re.compile(r"-?\d+\.\d+(?:[eE][-+]?\d+)?|-?\d+(?:[eE][-+]?\d+)?")


def machine() -> dict[str, str]:
    """What decides how floating-point numbers are rounded: the CPU, and the libraries that calculate."""
    import numpy as np
    import scipy
    import torch

    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    fields = dict(line.split(":", 1) for line in reversed(text.splitlines()) if ":" in line)
    about = {key.strip(): value.strip() for key, value in fields.items()}
    kind = " ".join(about.get(key, "") for key in ("vendor_id", "cpu family", "model")).strip()
    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]  # type: ignore[call-overload]
    return {
        "cpu": f"{platform.machine()} {kind}".strip(),
        "vectors": torch.backends.cpu.get_cpu_capability(),
        "blas": f"{blas.get('name')} {blas.get('version')}",
        "torch": torch.__version__.partition("+")[0],
        "numpy": np.__version__,
        "scipy": scipy.__version__,
    }


def differences(old: Any, new: Any, *, exact: bool, where: tuple[str, ...] = ()) -> Iterator[str]:
    """Each difference as one line: study, file, column, row, old, new; ``exact`` floats, or only near ones."""
    if isinstance(old, dict) and isinstance(new, dict):
        # Values behind different digests may be close: the first and the last value are compared instead.
        left_out = {"sha256"} if not exact and _floats(old) else set()
        for key in [*old, *(key for key in new if key not in old)]:
            if key not in new:
                yield _line((*where, key), old[key], "nothing")
            elif key not in old:
                yield _line((*where, key), "nothing", new[key])
            elif key not in left_out:
                yield from differences(old[key], new[key], exact=exact, where=(*where, key))
    elif isinstance(old, list) and isinstance(new, list):
        if len(old) != len(new):
            yield _line((*where, "length"), len(old), len(new))
        for number, (one, other) in enumerate(zip(old, new, strict=False)):
            yield from differences(one, other, exact=exact, where=(*where, f"row {number}"))
    elif not _equal(old, new, exact):
        yield _line(where, old, new)


def _floats(about: dict[str, Any]) -> bool:
    """Whether what is described is made of floats, or is a text that may hold some."""
    kind = str(about.get("type", "text"))
    return kind in ("text", "double", "float", "halffloat", "bfloat16") or kind.startswith("float")


def _equal(old: Any, new: Any, exact: bool) -> bool:
    if isinstance(old, float) and isinstance(new, float):
        if exact or not (math.isfinite(old) and math.isfinite(new)):
            return old.hex() == new.hex()
        return math.isclose(old, new, rel_tol=NEAR, abs_tol=1e-12)
    if not exact and isinstance(old, str) and isinstance(new, str):
        return _NUMBER.sub("#", old) == _NUMBER.sub("#", new)
    return type(old) is type(new) and old == new


def _line(where: tuple[str, ...], old: Any, new: Any) -> str:
    return f"{', '.join(where)}: {_brief(old)} -> {_brief(new)}"


def _brief(value: Any) -> str:
    text = value if value == "nothing" else repr(value)
    return text if len(text) <= 160 else f"{text[:160]} …"
