"""Rows as columns: what comes back is what was appended, in a fraction of the memory."""

import pickle

import numpy as np
import pytest
from tests.edge import tiny

from dspodfl.analysis.metrics import INTEGERS, METRICS, MetricsRow
from dspodfl.study.builder import build
from dspodfl.study.store.metrics_log import MetricsLog
from dspodfl.study.store.rows import Rows, warning
from dspodfl.study.tables import ordered, progress, typed


def row(k, algorithm="dgd", seed=0, **values):
    made = dict.fromkeys(METRICS) | {"algorithm": algorithm, "seed": seed, "iteration": k, "diverged": False}
    made |= {name: 3 * k + n for n, name in enumerate(INTEGERS[2:])}
    return MetricsRow.of(made | {"loss": 0.1 * k, "delay_total": 2**0.5 * k} | values)


ROWS = [row(k, name, seed) for k in range(5) for name in ("dspodfl", "dgd") for seed in (0, 7)]


def test_rows_come_back_as_they_were_appended():
    rows = Rows(ROWS)
    assert list(rows) == ROWS and len(rows) == len(ROWS) and rows == ROWS
    assert not Rows() and list(Rows()) == []


def test_a_table_is_that_of_the_rows():
    rows = Rows(ROWS)
    assert rows.to_frame().equals(typed(ROWS)) and typed(rows).equals(typed(ROWS))
    assert (rows.to_frame().dtypes == typed(ROWS).dtypes).all()
    names = ["dgd", "dspodfl"]
    assert ordered(rows, names).equals(ordered(ROWS, names))
    assert Rows.of(typed(ROWS)) == ROWS
    assert list(Rows().to_frame().columns) == list(METRICS)
    assert ordered(Rows(), names).empty


def test_rows_can_be_put_together_and_sent():
    rows, other = Rows(ROWS[:3]), Rows([row(9, "rg", 1), *ROWS[3:]])
    rows += other
    assert list(rows) == [*ROWS[:3], row(9, "rg", 1), *ROWS[3:]]
    assert list(pickle.loads(pickle.dumps(rows))) == list(rows)
    runs = [("dspodfl", 0), ("dspodfl", 7), ("dgd", 0), ("dgd", 7), ("rg", 1)]
    assert progress(rows, runs) == progress(list(rows), runs) == 4
    assert progress(rows, [*runs, ("none", 0)]) == 0


def test_of_a_row_that_was_measured_twice_the_last_counts():
    rows = Rows([row(0), row(1), row(2), row(1, loss=9.0)]).latest()
    assert sorted((found["iteration"], found["loss"]) for found in rows) == [(0, 0.0), (1, 9.0), (2, 0.2)]


def test_what_is_no_number_is_missing_and_infinity_is_not():
    (found,) = Rows([row(1, loss=float("nan"), accuracy=float("inf"), optimality_error=None, diverged=True)])
    assert found["loss"] is None and found["accuracy"] == float("inf") and found["diverged"] is True


def test_a_row_takes_little_memory_and_little_disk(tmp_path):
    many = [row(k, loss=np.pi * k, accuracy=np.sqrt(k)) for k in range(2000)]
    rows = Rows(many)
    held = sum(column.itemsize * len(column) for column in rows._columns.values())
    assert held / len(many) < 160
    log = MetricsLog(tmp_path / "log")
    log.begin({}, rows)
    log.close()
    assert (tmp_path / "log").stat().st_size / len(many) < 650


@pytest.mark.parametrize(("iterations", "every", "count"), [(100, 10, 11), (7, 2, 5), (1, 5, 2)])
def test_the_number_of_rows_is_known_before(iterations, every, count):
    study = build(tiny(train={"iterations": iterations}, eval={"every": every}))[1]
    assert study.evaluations(iterations) == count
    assert warning(count) is None and "eval.every" in warning(2_000_000)
