"""The names and kinds of what a folder holds, in one place.

Every folder that is written has a ``manifest.json`` with its ``kind`` and ``format``; so have all other JSON files.
"""

from __future__ import annotations

import re

MANIFEST = "manifest.json"
"""The file that lists every file of a folder with its checksum."""
METRICS_LOG = "metrics.jsonl"
"""The log of metrics while a run is not finished."""
METRICS_LOGS = (METRICS_LOG, "metrics.journal")
"""Its name, and the one that earlier versions gave it."""
FORMAT = 1
"""What manifests are written in; a later one is refused."""
KINDS = ("run", "experiment", "cells", "theory")
NEW = "a folder that does not exist yet (or use --overwrite, from Python overwrite=True)"
"""What is allowed where a folder is there already."""
CLAIMED, UNFINISHED, INTERRUPTED, COMPLETE = "claimed", "unfinished", "interrupted", "complete"
"""States: nothing was measured; rows are being measured; a result of what was measured so far; a complete result."""
NODES = "nodes"
"""The source of a run that was collected from nodes, in its manifest and its summary."""
PICTURES = re.compile(r"[\w-]+\.(png|svg)")
"""Drawn again at any time: files of dspodfl where they look so, whether or not the manifest names them."""
CHECKPOINTS = "checkpoints"
"""The folder of checkpoints within the folder of a run."""
CHECKPOINT_FILES = re.compile(
    r"manifest\.json|metrics(-\d+)?\.parquet|(accuracies|events)\.safetensors|(state|wave)-[\d-]+\.safetensors"
)
"""Names of the files of a checkpoint."""
SIGNS_OF_0_1: dict[str, list[list[str]]] = {
    "run": [["config.toml"], ["summary.json", "metrics.parquet", *METRICS_LOGS]],
    "experiment": [["grid.json"]],
    "theory": [["result.json"]],
    "cells": [],
}
"""Folders of version 0.1 have no manifest: one of a kind has one of the files of every list."""
