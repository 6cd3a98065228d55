"""What small studies give is what it was, to the last bit; and they name every choice there is.

The whole is compared by ``python -m scripts.goldens check``; here is a slice of it. Where the CPU or the libraries are
others than those that the goldens were written with, floats are compared to 1e-6.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from scripts.goldens.comparing import differences
from scripts.goldens.running import toml
from scripts.goldens.studies import SLICE, STUDIES

ROOT = Path(__file__).parents[1]
GOLDENS = ROOT / "tests" / "goldens"
NOT_RUN = {
    ("head", "imagenet"): "128 million parameters a client",
    ("clock", "lockstep"): "of nodes: tests/nodes compares them with the simulator",
    ("patience", "auto"): "of nodes: tests/nodes compares them with the simulator",
    ("kind", "custom"): "written by what Python gives: python-custom",
    ("name", "custom"): "written by what Python gives: python-custom",
}
COMMANDS = ("run", "init", "schema", "check", "list", "show", "verify", "sweep", "reproduce", "report")
THEORY = ("theory bound", "theory sweep")


def dspodfl(*words):
    done = subprocess.run(
        [sys.executable, "-m", "dspodfl", *words], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return done.stdout


def chosen(value, key=""):
    """Every key with the word it has, at any depth."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from chosen(inner, name)
    elif isinstance(value, list):
        for inner in value:
            yield from chosen(inner, key)
    elif isinstance(value, str):
        yield key, value


def choices(schema, key=""):
    """Every key of the schema with each word that it may have."""
    if isinstance(schema, dict):
        for word in [*schema.get("enum", []), *([schema["const"]] if "const" in schema else [])]:
            if isinstance(word, str):
                yield key, word
        for name, inner in schema.get("properties", {}).items():
            yield from choices(inner, name)
        for name, inner in schema.items():
            if name == "$defs":
                for part in inner.values():
                    yield from choices(part)
            elif name != "properties" and isinstance(inner, dict | list):
                yield from choices(inner, key)
    elif isinstance(schema, list):
        for inner in schema:
            yield from choices(inner, key)


def test_every_word_of_the_schema_is_in_a_study():
    found = {pair for study in STUDIES.values() for pair in chosen(study.config)}
    wanted = set(choices(json.loads(dspodfl("schema"))))
    assert {"graph", "kind", "law", "name", "order", "precision"} & {key for key, _ in wanted}
    assert sorted(wanted - found - set(NOT_RUN)) == []


def test_every_name_that_is_listed_is_in_a_study():
    words = {word for study in STUDIES.values() for _, word in chosen(study.config)}
    words |= {"factory" for study in STUDIES.values() if "factory" in study.config.get("model", {})}
    listed = re.findall(r"^  (\S+)  ", dspodfl("list"), re.MULTILINE)
    assert len(listed) > 40 and sorted(set(listed) - words) == []


@pytest.mark.parametrize("command", [*COMMANDS, *THEORY])
def test_every_option_is_in_a_command_line(command):
    options = set(re.findall(r"^ +(?:-\w, )?(--[\w-]+)", dspodfl(*command.split(), "--help"), re.MULTILINE)) - {
        "--help"
    }
    lines = [" ".join(step.words) for study in STUDIES.values() for step in study.steps]
    used = {word for line in lines if line.startswith(command) for word in line.split()}
    used |= {"--out"} if "-o" in used else set()
    assert sorted(options - used) == []


def test_every_study_has_a_golden_and_nothing_else_is_there():
    assert {file.stem for file in GOLDENS.iterdir()} == {*STUDIES, "machine"}
    assert sum(file.stat().st_size for file in GOLDENS.iterdir()) < 2_000_000


def test_configurations_are_written_as_they_are():
    for study in STUDIES.values():
        assert toml(study.config)


SOME = ("algorithms-all", "dynamics-markov", "order-adapt_then_combine-mlp", "budget-delay", "resume", "sweep", "wrong")


@pytest.mark.parametrize("names", [SOME, pytest.param(SLICE, marks=pytest.mark.long)], ids=["some", "slice"])
def test_a_slice_gives_what_it_gave(names):
    assert set(names) <= set(SLICE)
    done = subprocess.run(
        [sys.executable, "-m", "scripts.goldens", "check", *names, "--jobs", "1"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_difference_is_named_by_its_column_and_row():
    old = {"files": {"metrics.parquet": {"rows": 2, "columns": {"loss": {"type": "double", "values": [1.0, 2.0]}}}}}
    new = json.loads(json.dumps(old).replace("2.0", "2.0000000000000004"))
    (line,) = differences(old, new, exact=True, where=("study",))
    assert line == "study, files, metrics.parquet, columns, loss, values, row 1: 2.0 -> 2.0000000000000004"
    assert not list(differences(old, new, exact=False))
    assert list(differences({"steps": 3, "x": float("nan")}, {"steps": 4, "x": float("nan")}, exact=False)) == [
        "steps: 3 -> 4"
    ]
