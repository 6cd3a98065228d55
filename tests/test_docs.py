"""The documentation is true: its Python runs, its TOML is valid, it names every key and every column."""

import re
import tomllib
from pathlib import Path

import pytest

from dspodfl import Config, rng
from dspodfl.analysis.metrics import METRICS
from dspodfl.config import template
from dspodfl.problem.data import coerce, partitions
from dspodfl.rng import Stream

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(language):
    for page in PAGES:
        for number, text in enumerate(re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)):
            yield pytest.param(text, id=f"{page.name}-{number}")


@pytest.mark.parametrize("code", list(blocks("python")))
def test_every_python_example_runs(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "example", "exec"), {"__name__": "example"})


@pytest.mark.parametrize("text", list(blocks("toml")))
def test_every_toml_example_is_valid(text):
    Config(**tomllib.loads(text))


def keys_of(table, out):
    for name, value in table.items():
        out.add(name)
        if isinstance(value, dict):
            keys_of(value, out)
    return out


def test_the_configuration_page_names_every_key_of_the_template():
    page = (ROOT / "docs/configuration.md").read_text()
    missing = [key for key in keys_of(tomllib.loads(template()), set()) if f"{key}" not in page]
    assert not missing


def test_the_output_page_names_every_column():
    page = (ROOT / "docs/output.md").read_text()
    assert not [column for column in METRICS if f"`{column}`" not in page]


def test_the_randomness_page_names_every_stream_with_its_number():
    page = (ROOT / "docs/randomness.md").read_text()
    rows = re.findall(r"^\| ([A-Z_]+) \| (\d+) \|", page, re.MULTILINE)
    assert rows == [(stream.name, str(int(stream))) for stream in Stream]


def test_the_randomness_page_names_every_address_of_the_stream_of_partitions():
    page = (ROOT / "docs/randomness.md").read_text()
    rows = re.findall(r"^\| ([a-z -]+) \| (?:0|(2\^20)(?: \+ (\d))?) \|", page, re.MULTILINE)
    assert {purpose: (2**20 if power else 0) + int(more or 0) for purpose, power, more in rows} == {
        "shares": 0,
        "order of samples": partitions._SHUFFLE,
        "order of clients or pieces": partitions._ORDER,
        "ties": partitions._TIES,
        "held-out test samples": coerce._HOLD_OUT,
    }


def test_the_held_out_samples_are_those_of_the_address_that_the_page_gives():
    kept, held_out = coerce._hold_out(20, 7, client=2)
    order = rng.permutation(7, Stream.PARTITION, 20, i=2, k=2**20 + 3)
    assert held_out.tolist() == sorted(order[: 20 // coerce.HELD_OUT].tolist())
    assert sorted([*kept, *held_out]) == list(range(20)) and coerce.HELD_OUT == 6


def test_every_linked_file_exists():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            assert target.startswith("http") or (page.parent / target).exists(), f"{page.name} links to {target}"
