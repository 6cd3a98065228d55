"""The documentation is true: its Python runs, its TOML is valid, it names every key and every column."""

import re
import tomllib
from pathlib import Path

import pytest

from dspodfl import Config
from dspodfl.config import template
from dspodfl.judging import COLUMNS
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
    assert not [column for column in COLUMNS if f"`{column}`" not in page]


def test_the_randomness_page_names_every_stream_with_its_number():
    page = (ROOT / "docs/randomness.md").read_text()
    assert not [s for s in Stream if f"| {s.name} | {int(s)} |" not in page]


def test_every_linked_file_exists():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            assert target.startswith("http") or (page.parent / target).exists(), f"{page.name} links to {target}"
