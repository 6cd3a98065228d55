"""Extreme values for every key of the configuration, generated from its schema.

Each value goes through ``dspodfl check`` as a TOML file; what is accepted there is also run for three iterations. Every
attempt must end in success or in plain lines and exit code 2: no traceback, no hang, no crash.
"""

from __future__ import annotations

import random
import tempfile
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel
from scripts.attack import Tally, thinned
from scripts.attack.sandbox import RUN, Sandbox

from dspodfl.config import Config, dumps

VALUES = (
    *("0", "-1", "1", "2", "3", "2147483647", "2147483648", "4294967295", "4294967296"),
    *("9223372036854775807", "9223372036854775808", "-9223372036854775808", "1" + "0" * 400, "0x" + "f" * 5000),
    *("0.0", "-0.0", "0.5", "1.0", "2.5", "1e308", "-1e308", "1e-308", "5e-324", "1e-12", "1e12", "nan", "inf", "-inf"),
    *('""', '"x"', '"auto"', f'"{"x" * 5000}"', r'"\u0000"', r'"\u001b[31mred\u0007"', r'"a\nb"', '"/dev/zero"', '"."'),
    *("true", "false", "1979-05-27", "[]", "{}", "[[[[1]]]]", "[" * 60 + "]" * 60, "[" * 900 + "]" * 900),
    *("[0]", "[1]", "[nan]", "[1e308, 1e308]", "[1e-308, 1e-308]", "[2147483648]", "[0.5, 0.5, 0.5, 0.5]", '["", 1]'),
    *("[" + "0, " * 5000 + "0]", "{ a = { b = { c = 1 } } }", '{ kind = "ring" }', '{ name = "x" }', '{ law = "x" }'),
)
"""TOML values that a user may write, by mistake or on purpose."""

SAMPLES: dict[str, Any] = {
    "gamma": 10.0,
    "every": 2,
    "factor": 0.5,
    "mean": 0.5,
    "std": 0.2,
    "mean1": 0.2,
    "std1": 0.1,
    "mean2": 0.8,
    "std2": 0.1,
    "alpha": 0.5,
    "samples": 20,
    "up": 0.5,
    "down": 0.5,
    "value": 0.5,
    "values": [0.5, 0.5, 0.5, 0.5],
    "graphs": [{"kind": "complete"}],
    "period": 2,
    "path": "shards",
    "factory": "own_model:network",
}
"""What a key is where its table needs it and another key of the table is tried."""
BASE: dict[str, Any] = {
    "seeds": 1,
    "clients": {"count": 4},
    "graph": {"kind": "ring"},
    "data": {"name": "synthetic", "samples": 60, "test_samples": 20, "features": 3, "classes": 4},
    "train": {"iterations": 3, "batch_size": 2},
    "eval": {"every": 2},
}
DOWNLOADED = ("fmnist", "mnist", "cifar10")


def attack(every: int = 1) -> Iterator[Tally]:
    """Try one case of ``every``, of each table; what is accepted is run."""
    yield from _tried({table: thinned(some, every) for table, some in _by_table().items()}, runs=True)


def sample(count: int, seed: int) -> Tally:
    """Check ``count`` cases of all, drawn with this seed; none of them is run."""
    attempts = [case for some in _by_table().values() for case in some]
    return next(_tried({"a sample": random.Random(seed).sample(attempts, count)}, runs=False))


def _by_table() -> dict[str, list[tuple[str, str]]]:
    """Cases by the table of the configuration that they change."""
    found: dict[str, list[tuple[str, str]]] = {}
    for table, where, text in cases():
        found.setdefault(table, []).append((where, text))
    return found


def _tried(groups: Mapping[str, Sequence[tuple[str, str]]], runs: bool) -> Iterator[Tally]:
    with tempfile.TemporaryDirectory() as folder, Sandbox(prepared(Path(folder))) as sandbox:
        study = Path(folder) / "study.toml"
        for name, attempts in groups.items():
            tally = Tally("extremes", name)
            for where, text in attempts:
                study.write_text(text, encoding="utf-8")
                ending = sandbox("check", "study.toml")
                if ending.code == 0 and not ending.wrong and runs:
                    ending = sandbox(RUN, "study.toml")
                tally.count(f"{where}: {ending.wrong}" if ending.wrong else None)
            yield tally


def prepared(folder: Path) -> Path:
    """A folder with the files that tables of the schema name."""
    (folder / "links.csv").write_text("0,1\n1,2\n2,3\n3,0\n")
    (folder / "sgd.csv").write_text("client,rate\n0,0.5\n1,0.5\n2,0.5\n3,0.5\n")
    (folder / "link.csv").write_text("source,target,rate\n0,1,0.5\n0,3,0.5\n1,2,0.5\n2,3,0.5\n")
    (folder / "own_model.py").write_text(
        "from torch import nn\n\n\ndef network(inputs=3, outputs=4):\n    return nn.Linear(3, 4)\n"
    )
    (folder / "shards").mkdir()
    for name in ("a", "b", "c", "d", "test"):
        np.savez(folder / "shards" / f"{name}.npz", x=np.ones((6, 3), np.float32), y=np.arange(6) % 4)
    return folder


def cases() -> Iterator[tuple[str, str, str]]:
    """Every key with every value, as (table of the configuration, what is tried, TOML text)."""
    for path, table in dict.fromkeys(places(Config, ())):
        part = f"keys of `[{path[0]}]`" if path else "keys of the top level"
        for key in table.model_fields:
            where = ".".join((*path, key))
            for value in VALUES:
                shown = value if len(value) <= 40 else f"{value[:40]}… ({len(value)} characters)"
                yield part, f"{where} ({table.__name__}) = {shown}", _text(path, table, key, value)
            yield part, f"{where} ({table.__name__}).x = 1", _text(path, table, key, "{ x = 1 }")


def places(table: type[BaseModel], path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], type[BaseModel]]]:
    """Every place of the schema where a table can stand."""
    yield path, table
    for key, field in table.model_fields.items():
        for inner in _tables(field.annotation):
            if key != "graphs" and getattr(inner.model_fields.get("name"), "default", None) not in DOWNLOADED:
                names = typing.get_args(inner.model_fields["name"].annotation) if "name" in inner.model_fields else ()
                if not set(names) & set(DOWNLOADED):
                    yield from places(inner, (*path, key))


def _tables(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [table for argument in typing.get_args(annotation) for table in _tables(argument)]


_MARK = "value-that-is-tried"


def _text(path: tuple[str, ...], table: type[BaseModel], key: str, value: str) -> str:
    raw: dict[str, Any] = {name: dict(part) if isinstance(part, dict) else part for name, part in BASE.items()}
    here = raw
    for name in path[:-1]:
        here = here.setdefault(name, {})
        here.pop("name", None) if name == "data" and path[-1] == "partition" else None
    if path[:1] == ("data",) and len(path) > 1:
        raw["data"] = here = dict(BASE["data"])
    if path == ("graph", "dynamics") and "Waypoint" in table.__name__:
        raw["graph"] = here = {"kind": "geometric", "radius": 0.9}
    if path:
        kept = here.get(path[-1]) if path[-1] in here and not _tag(table) else {}
        here[path[-1]] = here = {**(kept or {}), **_sample(table, path)}
        if path == ("data",) and table.__name__ == "Synthetic":
            here.update({k: v for k, v in BASE["data"].items() if k != key})
        if path == ("data",) and table.__name__ == "Ridge":
            raw["model"] = {"name": "linear"}
        if path == ("model",) and table.__name__ == "Linear":
            raw["data"] = {"name": "ridge", "samples": 5, "dimension": 3}
        if path == ("model",) and table.__name__ in ("Cnn", "Vgg11"):
            raw["data"] = {"name": "fmnist-mini", "partition": {"kind": "iid"}}
    here[key] = _MARK
    return dumps(raw).replace(f'"{_MARK}"', value)


def _tag(table: type[BaseModel]) -> tuple[str, str] | None:
    for name in ("kind", "law", "name"):
        field = table.model_fields.get(name)
        if field is not None and typing.get_origin(field.annotation) is typing.Literal:
            return name, typing.get_args(field.annotation)[0]
    return None


def _sample(table: type[BaseModel], path: tuple[str, ...]) -> dict[str, Any]:
    """A table with what it needs, and no more."""
    tag = _tag(table)
    out: dict[str, Any] = {tag[0]: tag[1]} if tag else {}
    for name, field in table.model_fields.items():
        if field.is_required() and name not in out:
            out[name] = SAMPLES.get(name, "links.csv")
    if table.__name__ == "SwitchingDynamics":
        out["period"] = 2
    if table.__name__ == "CsvLaw":
        out["file"] = f"{path[-1]}.csv"
    if table.__name__ in ("FileGraph",):
        out["file"] = "links.csv"
    return out
