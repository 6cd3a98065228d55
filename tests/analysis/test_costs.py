"""Costs: how they are read from a command line, a configuration and a summary, and how they are said."""

import pytest

from dspodfl import InputError
from dspodfl.analysis.costs import Cost, from_config, from_record, parse


@pytest.mark.parametrize(
    ("text", "cost", "said"),
    [
        ("delay=5000", Cost("delay", 5000), "delay 5,000"),
        ("iteration=2000", Cost("iterations", 2000), "iteration 2,000"),
        ("iterations = 2000", Cost("iterations", 2000), "iteration 2,000"),
        ("bytes=1e9", Cost("bytes", 1e9), "1 GB sent"),
        ("normalized_delay=50", Cost("normalized_delay", 50), "normalized delay 50"),
    ],
)
def test_a_cost_is_read_from_a_word(text, cost, said):
    assert parse(text) == cost and cost.text == said


@pytest.mark.parametrize(
    "text",
    ["", "delay", "5000", "=5", "delay=", "delay=x", "delay=0", "delay=-1", "delay=nan", "bytes=inf", "dealy=3",
     "iteration=1.5", "delay=1=2", "delay:5"],
)  # fmt: skip
def test_a_cost_that_is_none_is_refused_with_what_is_allowed(text):
    with pytest.raises(InputError, match="must be KIND=VALUE") as found:
        parse(text)
    assert str(found.value).startswith(f"--at = {text!r}: ")


def test_a_misspelt_kind_gets_a_hint_and_a_right_one_none():
    with pytest.raises(InputError, match="did you mean 'delay'"):
        parse("dealy=3")
    with pytest.raises(InputError, match=r"as in delay=5000$"):
        parse("delay")


@pytest.mark.parametrize(
    ("train", "cost"),
    [
        ({"until": {"delay": 10000.0}}, Cost("delay", 10000)),
        ({"until": {"delay": None, "bytes": 1e9}}, Cost("bytes", 1e9)),
        ({"until": {"iterations": 50}, "iterations": 90}, Cost("iterations", 50)),
        ({"until_delay": 500.0, "iterations": 90}, Cost("delay", 500)),
        ({"iterations": 90}, None),
        ({"until": None}, None),
        ({}, None),
    ],
)
def test_the_budget_of_a_configuration_old_or_new(train, cost):
    assert from_config({"train": train}) == cost


def test_the_budget_of_a_summary_or_of_an_object():
    assert from_record({"kind": "delay", "value": 3}) == from_record(Cost("delay", 3.0)) == Cost("delay", 3.0)
    for nothing in (None, {}, {"kind": "hours", "value": 3}, {"kind": "delay"}, 5):
        assert from_record(nothing) is None
