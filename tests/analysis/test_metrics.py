"""The columns of metrics.parquet: one registry, and null in files that are older than a column."""

import pickle
from dataclasses import FrozenInstanceError

import pandas as pd
import pytest
from scripts import config_docs

from dspodfl.analysis import metrics
from dspodfl.analysis.metrics import COLUMNS, METRICS, Column, MetricsRow, complete


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


def test_a_row_has_every_column_in_the_order_of_the_file():
    row = MetricsRow.of({"algorithm": "dgd", "seed": 3, "iteration": 7, "loss": 0.5, "accuracy": float("nan")})
    assert tuple(row) == METRICS and len(row) == len(METRICS)
    assert (row["algorithm"], row["seed"], row["iteration"], row["diverged"]) == ("dgd", 3, 7, False)
    assert (row["loss"], row["accuracy"], row["bytes"]) == (0.5, None, None)
    assert row == dict(row) == pickle.loads(pickle.dumps(row))
    with pytest.raises(KeyError):
        row["none of ours"]


def test_a_row_cannot_be_changed():
    row = MetricsRow.of({"algorithm": "dgd", "seed": 3, "iteration": 7})
    with pytest.raises(FrozenInstanceError):
        row.iteration = 8
    with pytest.raises(TypeError):
        row["iteration"] = 8


@pytest.mark.parametrize("name", ["algorithm", "seed", "iteration"])
def test_a_row_names_its_run_and_iteration(name):
    values = {"algorithm": "dgd", "seed": 3, "iteration": 7}
    with pytest.raises(KeyError, match=name):
        MetricsRow.of({key: value for key, value in values.items() if key != name})
