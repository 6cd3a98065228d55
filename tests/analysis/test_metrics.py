"""The columns of metrics.parquet: one registry, and null in files that are older than a column."""

import pandas as pd
import pytest
from scripts import config_docs

from dspodfl.analysis import metrics
from dspodfl.analysis.metrics import COLUMNS, METRICS, Column, complete


@pytest.fixture
def later(monkeypatch):
    """A column that was added after the files were written."""
    monkeypatch.setattr(metrics, "COLUMNS", (*COLUMNS, Column("later", "number", "added later", since=2)))
    monkeypatch.setattr(metrics, "METRICS", (*METRICS, "later"))


def old(**extra):
    return pd.DataFrame({**extra, **{name: [0.0] for name in METRICS}})


def test_a_column_that_an_older_file_has_not_is_null(later):
    table = old(axis=[1])
    table.attrs = {"about": {"kind": "cell"}}
    found = complete(table)
    assert list(found) == ["axis", *METRICS, "later"]
    assert found["later"].isna().all() and found.attrs == table.attrs
    assert found[list(METRICS)].equals(table[list(METRICS)])


def test_a_table_of_this_schema_is_left_as_it_is():
    table = old()
    assert complete(table) is table


def test_a_column_of_the_first_schema_is_never_made_up(later):
    assert "loss" not in complete(old().drop(columns="loss"))


def test_a_later_column_is_of_numbers_which_may_be_null():
    with pytest.raises(ValueError, match="may be null"):
        Column("later", "integer", "added later", since=2)


def test_the_page_of_the_output_has_the_columns_of_the_registry():
    text = config_docs.OUTPUT.read_text(encoding="utf-8")
    assert config_docs.output(text) == text, "run python -m scripts.config_docs"
