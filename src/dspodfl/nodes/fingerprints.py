"""What must be equal at both ends of a link: every key of the configuration that determines draws and updates."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

from dspodfl.config import FREE, Config
from dspodfl.protocol import FINGERPRINT_BYTES

_LOCAL = ("data.path", "graph.file", "model.weights")
"""Keys that name a file of this machine: its content counts, not where it is."""


def fingerprints(config: Config, contents: dict[str, bytes] | None = None) -> tuple[tuple[str, bytes], ...]:
    """Return the fingerprint of every key of a configuration, as HELLO carries them.

    Args:
        config: The configuration, resolved.
        contents: What stands for the contents of files, by name: the links of a graph, …

    Returns:
        Dotted key and the first bytes of SHA-256 of its value as canonical JSON, ordered by key. Keys that change
        nothing that is computed (checkpoint, scale, nodes) and names of files are left out.

    >>> from dspodfl import Config
    >>> one, other = (dict(fingerprints(Config(train={"iterations": n}))) for n in (10, 20))
    >>> [key for key in one if one[key] != other[key]]
    ['train.iterations']
    """
    values = config.model_dump(mode="json", exclude=set(FREE), exclude_none=True)
    found = {key: json.dumps(value, sort_keys=True).encode() for key, value in _leaves(values) if key not in _LOCAL}
    found |= {f"content of {name}": content for name, content in (contents or {}).items()}
    return tuple((key, hashlib.sha256(found[key]).digest()[:FINGERPRINT_BYTES]) for key in sorted(found))


def _leaves(values: dict[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value
