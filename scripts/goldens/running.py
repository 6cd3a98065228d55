"""Run a study in this process, and read everything it leaves: the one place that knows how the product is started."""

from __future__ import annotations

import hashlib
import json
import os
import re
import runpy
import shutil
import sys
import tempfile
import time
import tomllib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scripts.goldens.studies import STUDIES, Step, Study, Table

MOST = 100
"""Values of a column that are kept one by one; of longer ones the digest, the first and the last."""
_LONG = 6000
"""Characters of a printed text that are kept; of longer ones the digest and the beginning."""
_LARGE = 40_000
"""Characters of JSON that is kept; of more, which is the schema, the digest and the beginning."""
_UNLIKE = {
    *("wall_seconds", "run_iterations_per_second", "seconds_spent", "versions", "commit", "device", "bytes_free"),
    *("host", "date", "written"),
}
"""Keys of JSON files that depend on the machine, the time or the version."""
_SCRUBBED = (
    (re.compile(r"^[\d.,]+ (s|min|h)\b.*run-iterations/s.*$", re.M), "<time>"),
    (re.compile(r"^dspodfl \d+\.\d+\S*$", re.M), "<version>"),
    (re.compile(r"\b[\d,.]+ (GiB|MiB) (of memory )?(are|were) free"), "<memory> free"),
)
_KINDS = ("error:", "warning:")


def enter() -> None:
    """Prepare a process for studies: one thread, no window, no terminal."""
    os.environ |= {"MPLBACKEND": "Agg", "COLUMNS": "120", "NO_COLOR": "1"}
    for name in ("OMP", "MKL", "OPENBLAS", "NUMBA"):
        os.environ[f"{name}_NUM_THREADS"] = "1"
    for name in ("DSPODFL_DATA", "DSPODFL_TRACEBACK", "RANK", "WORLD_SIZE"):
        os.environ.pop(name, None)
    sys.dont_write_bytecode = True
    here = [str(Path(__file__).parents[2] / "src"), str(Path(__file__).parents[2])]
    others = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry and entry not in here]
    os.environ["PYTHONPATH"] = os.pathsep.join([*here, *others])
    sys.path[:0] = [entry for entry in here if entry not in sys.path]


def timed(name: str) -> tuple[str, dict[str, Any], float]:
    """The name of a study, what it gives, and the seconds it took."""
    start = time.perf_counter()
    found = give(STUDIES[name])
    return name, found, time.perf_counter() - start


def give(study: Study) -> dict[str, Any]:
    """What a study gives: of each command line the exit code and what it printed, and all files at the end."""
    folder = Path(os.path.realpath(tempfile.mkdtemp(prefix="golden-")))
    before = Path.cwd()
    try:
        os.chdir(folder)
        (folder / "study.toml").write_text(toml(study.config))
        for write in study.files:
            write(folder)
        given = set(_files(folder))
        steps = [_step(step, folder) for step in study.steps]
        if study.python:
            steps.append(_program(study, folder))
        return {
            "steps": steps,
            "files": {name: _read(folder / name, folder) for name in _files(folder) if name not in given},
        }
    finally:
        os.chdir(before)
        _forget(folder)
        shutil.rmtree(folder, ignore_errors=True)


# --- starting -------------------------------------------------------------------------------------------------


def command_line(words: tuple[str, ...]) -> int:
    """``python -m dspodfl`` with these words, in this process; gives the exit code."""
    sys.argv = ["dspodfl", *words]
    try:
        runpy.run_module("dspodfl", run_name="__main__", alter_sys=False)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def _step(step: Step, folder: Path) -> dict[str, Any]:
    with _environment(step.env), _memory(step.memory), _captured() as texts:
        code = command_line(step.words)
    out, err = (_scrubbed(text, folder) for text in texts)
    said = [line for line in err.splitlines() if line.startswith(_KINDS)]
    printed = _large(_json(json.loads(out), folder)) if out.startswith("{") else _short(out)
    return {"words": " ".join(step.words), "code": code, "out": printed, "said": said, "listing": _listing(folder)}


def _program(study: Study, folder: Path) -> dict[str, Any]:
    with _captured() as texts:
        exec(compile(study.python, study.name, "exec"), {"study": study.config})
    return {
        "words": "python",
        "code": 0,
        "out": _short(_scrubbed(texts[0], folder)),
        "said": [],
        "listing": _listing(folder),
    }


@contextmanager
def _environment(changes: dict[str, str]) -> Iterator[None]:
    before, path, argv, show = dict(os.environ), list(sys.path), sys.argv, warnings.showwarning
    os.environ |= changes
    try:
        yield
    finally:
        os.environ.clear()
        os.environ |= before
        sys.path[:], sys.argv, warnings.showwarning = path, argv, show


@contextmanager
def _memory(free: int | None) -> Iterator[None]:
    """A machine with this much free memory, as psutil reports it."""
    import psutil

    ask = psutil.virtual_memory
    if free is not None:
        psutil.virtual_memory = lambda: ask()._replace(available=free)
    try:
        yield
    finally:
        psutil.virtual_memory = ask


@contextmanager
def _captured() -> Iterator[list[str]]:
    """What this process and those it starts print."""
    texts: list[str] = []
    saved = [(number, os.dup(number), getattr(sys, name)) for number, name in ((1, "stdout"), (2, "stderr"))]
    with tempfile.TemporaryFile("w+b") as out, tempfile.TemporaryFile("w+b") as err:
        try:
            for (number, _, stream), file, name in zip(saved, (out, err), ("stdout", "stderr"), strict=True):
                stream.flush()
                os.dup2(file.fileno(), number)
                setattr(sys, name, open(number, "w", encoding="utf-8", closefd=False))  # noqa: SIM115 (closed below)
            yield texts
        finally:
            for (number, copy, stream), name in zip(saved, ("stdout", "stderr"), strict=True):
                getattr(sys, name).close()
                setattr(sys, name, stream)
                os.dup2(copy, number)
                os.close(copy)
            for file in (out, err):
                file.seek(0)
                texts.append(file.read().decode("utf-8", "replace"))


def _forget(folder: Path) -> None:
    """Modules of the study's folder are those of no other study."""
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(str(folder)):
            del sys.modules[name]


# --- reading --------------------------------------------------------------------------------------------------


def _files(folder: Path) -> list[str]:
    found = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return sorted(str(path.relative_to(folder)) for path in found)


def _listing(folder: Path) -> str:
    """A name for what is in the folder; `files` says at the end what it is."""
    return " ".join(_files(folder))


def _read(path: Path, folder: Path) -> Any:
    """The content of a file, in a form that equal content gives alone; None where only its being there counts."""
    if path.name == "manifest.json" or "checkpoints" in path.parts:
        return None
    match path.suffix:
        case ".parquet":
            return _table(path)
        case ".json":
            return _large(_json(json.loads(path.read_text()), folder))
        case ".toml" | ".csv":
            return _short(_scrubbed(path.read_text(), folder))
        case ".npz":
            return _arrays(path)
        case ".safetensors":
            return _tensors(path)
    return None


def _table(path: Path) -> dict[str, Any]:
    import pyarrow.parquet as pq

    found = pq.read_table(path)
    return {
        "rows": found.num_rows,
        "columns": {name: _column(found[name].to_pylist(), str(found[name].type)) for name in found.column_names},
    }


def _column(values: list[Any], kind: str) -> dict[str, Any]:
    if len(set(map(repr, values))) == 1:
        return {"type": kind, "all": values[0]}
    if len(values) <= MOST:
        return {"type": kind, "values": values}
    return {"type": kind, "sha256": _digest(json.dumps(values).encode()), "first": values[0], "last": values[-1]}


def _json(found: Any, folder: Path) -> Any:
    if isinstance(found, dict):
        kept = {key: _json(value, folder) for key, value in found.items() if key not in _UNLIKE}
        if "building" in kept.get("seconds", {}):
            del kept["seconds"]
        return kept
    if isinstance(found, list):
        return [_json(value, folder) for value in found]
    return _scrubbed(found, folder) if isinstance(found, str) else found


def _large(found: Any) -> Any:
    text = json.dumps(found, indent=1)
    return found if len(text) <= _LARGE else _short(text)


def _arrays(path: Path) -> dict[str, Any]:
    import numpy as np

    with np.load(path, allow_pickle=False) as arrays:
        return {name: _array(arrays[name]) for name in sorted(arrays.files)}


def _tensors(path: Path) -> dict[str, Any]:
    from safetensors.numpy import load_file

    return {name: _array(value) for name, value in sorted(load_file(path).items())}


def _array(array: Any) -> dict[str, Any]:
    return {"type": str(array.dtype), "shape": list(array.shape), "sha256": _digest(array.tobytes())}


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _scrubbed(text: str, folder: Path) -> str:
    text = text.replace(str(folder), "<folder>")
    for pattern, name in _SCRUBBED:
        text = pattern.sub(name, text)
    return "\n".join(line.rstrip() for line in text.splitlines())


def _short(text: str) -> Any:
    if len(text) <= _LONG:
        return text.splitlines()
    return {"sha256": _digest(text.encode()), "lines": text.count("\n"), "begins": text[:400].splitlines()}


# --- writing --------------------------------------------------------------------------------------------------


def toml(table: Table) -> str:
    """A configuration as TOML."""
    plain = {key: value for key, value in table.items() if not isinstance(value, dict)}
    lines = [f"{key} = {_value(value)}" for key, value in plain.items()]
    for key, value in table.items():
        if key not in plain:
            lines += [f"[{key}]", *(f"{name} = {_value(one)}" for name, one in value.items())]
    text = "\n".join(lines) + "\n"
    assert tomllib.loads(text) == table
    return text


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_value(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    return json.dumps(value) if isinstance(value, str | bool) else repr(value)
