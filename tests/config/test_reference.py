"""The schema is the one source of descriptions, the template, the docs' tables, help() and the JSON schema."""

import re
import tomllib
from pathlib import Path
from typing import Annotated, Literal

import jsonschema
import pytest
from pydantic import Field
from scripts import config_docs
from tests.edge import PLACES, TINY, TINY_TOML, is_tag, walk

from dspodfl import Config, ConfigError
from dspodfl.config import template
from dspodfl.config.base import Count, Positive, Table
from dspodfl.config.json_schema import DIALECT, json_schema
from dspodfl.config.reference import example_of, keys, tables_of, tag
from dspodfl.config.template import SCHEMA_FILE, WIDTH, _plain_table

# --- descriptions ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", walk(), ids=lambda table: table.__name__)
def test_every_key_of_every_table_has_a_description(table):
    missing = [key for key, field in table.model_fields.items() if not (field.description or "").strip()]
    assert missing == []


@pytest.mark.parametrize("table", walk(), ids=lambda table: table.__name__)
def test_help_of_a_table_shows_its_keys_with_their_meaning(table):
    for key, field in table.model_fields.items():
        assert re.search(rf"^ +{key}\b", table.__doc__, re.MULTILINE), key
        assert is_tag(table, key) or field.description in table.__doc__


def test_help_of_the_configuration_shows_the_keys_of_its_tables():
    for name, field in Config.model_fields.items():
        for table in tables_of(field.annotation):
            if tag(table) != "custom":
                assert {key.name for key in keys(table)} <= set(re.findall(r"\w+", Config.__doc__)), name


def test_what_has_no_default_has_an_example_that_is_valid():
    for path, table in PLACES:
        for key in keys(table):
            field = table.model_fields[key.name]
            if field.is_required():
                assert key.example is not None, f"{'.'.join(path)}: {table.__name__}.{key.name}"


# --- the template ---------------------------------------------------------------------------------------------


def test_the_template_is_at_most_120_columns_wide():
    assert max(map(len, template().splitlines())) <= WIDTH == 120


def test_the_template_begins_with_the_line_that_editors_read():
    assert template().splitlines()[0] == f"#:schema ./{SCHEMA_FILE}"


def alternatives():
    """Every alternative that the template writes in one line, with its place."""
    table = ""
    for line in template().splitlines():
        table = line.strip("#[] ") if re.match(r"(# )?\[", line) else table
        found = re.match(r"# (\w+) = (\{.*\})", line)
        if found:
            yield pytest.param((table, *found.groups()), id=f"{table}.{found[1]}={found[2]}")


@pytest.mark.parametrize("line", list(alternatives()))
def test_an_alternative_of_the_template_is_valid_as_it_is_written(line):
    table, key, text = line
    value = tomllib.loads(f"value = {text}")["value"]
    got = getattr(getattr(Config(**{table: {key: value}}), table), key)
    assert {name: getattr(got, name) for name in value if name != "graphs"} == {
        name: inner for name, inner in value.items() if name != "graphs"
    }


def test_the_template_has_an_alternative_for_each_table_that_is_written_in_one_line():
    text = template()
    for path, table in PLACES:
        if len(path) == 2 and tag(table):
            assert re.search(rf"^(# )?\w+ = {{ \w+ = \"{tag(table)}\"", text, re.MULTILINE), (path, table)


def blocks():
    """The alternatives of [graph], [data] and [model] with their own keys, as they are uncommented."""
    table, block = "", []
    for line in [*template().splitlines(), "[end]"]:
        begins = re.match(r'# (kind|name|factory) = "', line)
        if (begins or not line.startswith("#")) and block:
            yield pytest.param(table, "\n".join(block), id=block[0])
            block = []
        if begins:
            block = [line.removeprefix("# ")]
        elif block and re.match(r"#   \w+ = ", line):
            block.append(line.removeprefix("#   "))
        table = line.strip("#[] ") if re.match(r"(# )?\[", line) else table


@pytest.mark.parametrize(("table", "text"), list(blocks()))
def test_a_table_of_another_kind_is_valid_when_its_lines_are_uncommented(table, text):
    raw = {table: tomllib.loads(text)}
    if table == "attack":
        raw[table]["clients"] = [3, 7]  # which all kinds have
    if raw[table].get("name") == "linear":
        raw["data"] = {"name": "ridge"}
    assert getattr(Config(**raw), table).model_fields_set == set(raw[table])


def test_the_blocks_of_the_template_are_all_kinds():
    found = {(block.values[0], block.values[1].split("\n")[0].split('"')[1]) for block in blocks()}
    wanted = {(path[0], tag(t)) for path, t in PLACES if len(path) == 1 and tag(t) not in (None, "custom")}
    default = {("graph", "geometric"), ("data", "fmnist-mini"), ("model", "svm")}
    assert wanted - default <= found


# A schema as it may become: a table that needs one of several keys, and keys that are left out unless given.


class Until(Table):
    """Where a run ends."""

    delay: Positive | None = Field(None, description="at this delay", examples=[10.0])
    steps: Count | None = Field(None, description="at this iteration")


class Piece(Table):
    """Some keys."""

    until: Until = Field(Until(delay=7.0), description="where it ends")
    later: Until | None = Field(None, description="where it ends later")
    number: Count | None = Field(None, description="a number")
    word: Annotated[Literal["a", "b"], Field(description="a word")] = "a"


def test_optional_keys_and_tables_inside_tables_are_written():
    text = "\n".join(_plain_table(Piece, set()))
    assert tomllib.loads(text) == {"until": {"delay": 7.0}, "word": "a"}
    assert "# later = { delay = 10.0 }" in text and "# number = …" in text
    assert "steps: at this iteration" in text and "a | b" in text
    assert example_of(Until) == {"delay": 10.0}
    assert "number: a number" in Piece.__doc__ and "delay: at this delay" in Piece.__doc__


# --- docs and JSON schema -------------------------------------------------------------------------------------


def test_the_tables_of_the_configuration_page_are_up_to_date():
    text = config_docs.PAGE.read_text(encoding="utf-8")
    assert config_docs.page(text) == text, "run python -m scripts.config_docs"


def test_the_configuration_page_has_the_description_of_every_key():
    text = config_docs.PAGE.read_text(encoding="utf-8").replace("\\|", "|").lower()
    for path, table in PLACES:
        for key in keys(table):
            assert tag(table) == "custom" or key.description.lower() in text, ".".join((*path, key.name))


def check(raw):
    jsonschema.Draft202012Validator(json_schema()).validate(raw)


def test_the_schema_is_valid_of_its_draft_and_says_which():
    made = json_schema()
    jsonschema.Draft202012Validator.check_schema(made)
    assert made["$schema"] == DIALECT == jsonschema.Draft202012Validator.META_SCHEMA["$id"]


def test_the_schema_marks_the_former_name_of_a_budget_of_delay_as_deprecated():
    properties = json_schema()["$defs"]["Train"]["properties"]
    assert [key for key, about in properties.items() if about.get("deprecated")] == ["until_delay"]
    for wrong in (0, -1, "60", True):
        with pytest.raises(jsonschema.ValidationError):
            check({"train": {"until_delay": wrong}})
        with pytest.raises(ConfigError, match=r"train\.until"):
            Config(train={"until_delay": wrong})


def test_the_schema_has_a_description_of_every_key():
    made = json_schema()
    for name, table in (("", made), *made["$defs"].items()):
        for key, about in table.get("properties", {}).items():
            assert about.get("description"), f"{name}.{key}"


@pytest.mark.parametrize(
    "raw",
    [
        {},
        TINY,
        tomllib.loads(TINY_TOML),
        tomllib.loads(template()),
        {"algorithms": "DGD"},
        {"train": {"learning_rate": 0.1}},
        {"train": {"until_delay": 60}},
        {"graph": {"radius": 0.3}},
        {"model": {"factory": "package.module:f", "arguments": {"width": 3}}},
        {"graph": {"kind": "ring", "dynamics": {"kind": "switching", "graphs": [{"kind": "star"}], "period": 3}}},
    ],
)
def test_the_schema_takes_what_the_configuration_takes(raw):
    check(raw)
    Config(**raw)


@pytest.mark.parametrize(
    "raw",
    [
        {"lr": 0.1},
        {"seeds": 0},
        {"seeds": "many"},
        {"train": {"learning_rate": 0}},
        {"train": {"learning_rate": {"kind": "step", "value": 0.1}}},
        {"graph": {"kind": "rnig"}},
        {"graph": {"kind": "ring", "radius": 0.3}},
        {"rates": {"sgd": {"law": "constant", "value": 2}}},
        {"algorithms": []},
    ],
)
def test_the_schema_refuses_what_the_configuration_refuses(raw):
    with pytest.raises(jsonschema.ValidationError):
        check(raw)
    with pytest.raises(ConfigError):
        Config(**raw)


def test_no_file_but_the_schema_has_the_defaults():
    assert not list(Path(config_docs.PAGE.parents[1] / "src").rglob("default.toml"))
