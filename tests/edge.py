"""Tiny studies, the command line in process, and the configuration schema as a list of keys."""

import sys
import typing
from dataclasses import dataclass
from typing import Literal

import pytest
import torch
from pydantic import BaseModel

from dspodfl import Config
from dspodfl.ui.cli import app as cli

TINY = {
    "seeds": 1,
    "algorithms": ["dspodfl", "dgd"],
    "clients": {"count": 4},
    "graph": {"kind": "ring"},
    "data": {"name": "synthetic", "samples": 60, "test_samples": 20, "features": 3, "classes": 4},
    "train": {"iterations": 4, "batch_size": 2},
    "eval": {"every": 2},
}
"""Two algorithms on a ring of four, four iterations: runs in milliseconds."""

TINY_TOML = """
seeds = 1
algorithms = ["dspodfl", "dgd"]
[clients]
count = 4
[graph]
kind = "ring"
[data]
name = "synthetic"
samples = 60
test_samples = 20
features = 3
classes = 4
[train]
iterations = 4
batch_size = 2
[eval]
every = 2
"""


def merged(base, changes):
    """Tables merged key by key; a table with another kind, law or name replaces the former one."""
    out = dict(base)
    for key, value in changes.items():
        old = out.get(key)
        fresh = not isinstance(value, dict) or {"kind", "law", "name", "factory"} & set(value)
        out[key] = value if fresh or not isinstance(old, dict) else merged(old, value)
    return out


def tiny(**changes):
    """The tiny study with some keys changed."""
    return Config(**merged(TINY, changes))


def on_the_cpu(monkeypatch):
    """Whatever machine the tests run on, ``auto`` is the CPU: exact statements hold on one device."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)


# --- the command line -----------------------------------------------------------------------------------------


@dataclass
class Answer:
    """What a command came to."""

    code: int
    out: str
    err: str


class CommandLine:
    """``dspodfl …`` inside this process, in a folder of its own."""

    def __init__(self, monkeypatch, capsys, folder):
        self._monkeypatch, self._capsys, self.folder = monkeypatch, capsys, folder
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "path", list(sys.path))
        monkeypatch.setattr(sys, "dont_write_bytecode", True)
        on_the_cpu(monkeypatch)

    def __call__(self, *words):
        self._capsys.readouterr()
        before = set(sys.modules)
        self._monkeypatch.setattr(sys, "argv", ["dspodfl", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        for name in set(sys.modules) - before:  # modules of the test's own folder are not those of the next test
            if str(self.folder) in str(getattr(sys.modules[name], "__file__", "")):
                del sys.modules[name]
        out, err = self._capsys.readouterr()
        return Answer(end.value.code or 0, out, err)

    def written(self):
        """Every file in the folder, with its content."""
        return {
            str(path.relative_to(self.folder)): path.read_bytes() if path.is_file() else None
            for path in self.folder.rglob("*")
        }


# --- the schema -----------------------------------------------------------------------------------------------


def tables(annotation):
    """The tables that a field can hold."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [table for argument in typing.get_args(annotation) for table in tables(argument)]


def walk(table=Config, known=None):
    """Every table of the schema."""
    known = {} if known is None else known
    if table not in known:
        known[table] = None
        for field in table.model_fields.values():
            for inner in tables(field.annotation):
                walk(inner, known)
    return list(known)


def _places(table=Config, path=()):
    yield path, table
    for key, field in table.model_fields.items():
        for inner in tables(field.annotation):
            if key not in ("graphs", "algorithms", "peer"):  # lists of tables
                yield from _places(inner, (*path, key))


PLACES = list(dict.fromkeys(_places()))
"""Every place where a table of the schema can stand: its path and the table."""
NAMED = [".".join((*path, table.__name__)) for path, table in PLACES]


def home(table, key):
    """The class that says what a key of a table is: that of common keys is a base class."""
    return next(c for c in reversed(table.__mro__) if key in getattr(c, "model_fields", {}) and _own(c, table, key))


def _own(base, table, key):
    return base.model_fields[key].annotation == table.model_fields[key].annotation


def is_tag(table, key):
    """Whether a key says which table this is."""
    annotation = table.model_fields[key].annotation
    return typing.get_origin(annotation) is Literal and len(typing.get_args(annotation)) == 1


def keys():
    """``Table.key`` for every key of the schema, without the names of kinds and the top-level tables themselves."""
    found = {}
    for table in walk():
        for key, field in table.model_fields.items():
            if not is_tag(table, key) and not (table is Config and tables(field.annotation) and key != "algorithms"):
                found[f"{home(table, key).__name__}.{key}"] = None
    return list(found)
