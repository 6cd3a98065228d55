"""Dotted keys and their values: one parser for --set, --over and the files of experiments."""

import pytest

from dspodfl import ConfigError
from dspodfl.config.keys import assign, parse_value, split_key


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("0.5", 0.5),
        ("true", True),
        ("ring", "ring"),
        ("'a b'", "a b"),
        ("[1, 2]", [1, 2]),
        ("a-b.c", "a-b.c"),
    ],
)
def test_a_value_is_toml_or_a_bare_word(text, value):
    assert parse_value(text) == value


@pytest.mark.parametrize("text", ["", "a b", "[1", "{", "1\nother = 2", "a,b", "x=1", "a#b", "a\rb"])
def test_what_is_neither_is_refused(text):
    with pytest.raises(ValueError, match="no TOML value and no bare word"):
        parse_value(text)


@pytest.mark.parametrize("name", ["", ".", "a.", ".a", "a..b", "a. .b"])
def test_a_key_has_no_empty_part(name):
    assert split_key(name) is None


def test_tables_are_made_where_there_are_none():
    raw = {"a": {"b": 1}}
    assign(raw, "a.c.d", 2)
    assign(raw, " a . e ", 3)
    assert raw == {"a": {"b": 1, "c": {"d": 2}, "e": 3}}


def test_a_value_has_no_keys():
    with pytest.raises(ConfigError, match=r"^a.b.c.d: a.b is a value, not a table$"):
        assign({"a": {"b": 1}}, "a.b.c.d", 2)
    with pytest.raises(ConfigError, match=r"^--set 'a.b=1': a is a value, not a table$"):
        assign({"a": 1}, "a.b", 1, "--set 'a.b=1'")
