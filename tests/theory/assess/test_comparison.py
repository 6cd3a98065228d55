"""Bounds next to measured runs: each run is read up to its own last row, whatever the others do."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from dspodfl import Config, run
from dspodfl.theory.assess import assess, compare, matching
from dspodfl.theory.assess.comparison import _measured

RIDGE = {
    "seeds": 3,
    "algorithms": ["dgd"],
    "clients": {"count": 4},
    "graph": {"kind": "ring"},
    "data": {"name": "ridge", "samples": 40, "dimension": 3},
    "train": {"iterations": 8, "learning_rate": {"value": 0.001}},
    "eval": {"every": 2},
}


@pytest.fixture(scope="module")
def measured():
    return run(Config(**RIDGE))


@pytest.fixture(scope="module")
def assessment():
    return assess(Config(**RIDGE))


def errors(seed, at, values, diverged=False):
    return pd.DataFrame(
        {"algorithm": "dgd", "seed": seed, "iteration": at, "optimality_error": values, "consensus_error": values,
         "diverged": [False] * (len(at) - 1) + [diverged]}
    )  # fmt: skip


def test_means_are_over_the_runs_that_have_not_ended():
    found = _measured("dgd", [errors(0, [0, 2, 4], [8.0, 4.0, 2.0]), errors(1, [0, 2, 4], [4.0, 2.0, 1.0]),
                              errors(2, [0, 2], [6.0, 3.0])]).set_index("iteration")  # fmt: skip
    assert found["seeds"].to_dict() == {0: 3, 2: 3, 4: 2}
    assert found["optimality_error"].to_dict() == {0: 6.0, 2: 3.0, 4: 1.5}


def test_an_iteration_that_one_of_several_runs_gets_to_is_left_out():
    """It has no standard error: a single run may be above the bound of a mean."""
    found = _measured("dgd", [errors(0, [0, 2, 4], [8.0, 4.0, 2.0]), errors(1, [0, 2], [4.0, 2.0])])
    assert found["iteration"].tolist() == [0, 2]
    alone = _measured("dgd", [errors(0, [0, 2, 4], [8.0, 4.0, 2.0])])
    assert alone["iteration"].tolist() == [0, 2, 4]


def test_runs_evaluated_at_different_iterations_are_read_between_their_rows_by_a_factor_an_iteration():
    k = np.arange(0, 9, 2)
    found = _measured("dgd", [errors(0, k, 0.5**k), errors(1, k + 1, 0.5 ** (k + 1.0))]).set_index("iteration")
    both = found.loc[1:8]
    assert both["optimality_error"].to_numpy() == pytest.approx(0.5 ** both.index.to_numpy(float))


def test_rows_where_a_run_has_diverged_are_left_out():
    found = _measured("dgd", [errors(0, [0, 2, 4], [8.0, 4.0, np.nan], diverged=True), errors(1, [0, 2], [4.0, 2.0])])
    assert found["iteration"].tolist() == [0, 2]


def test_runs_that_end_at_different_iterations_are_compared_with_the_bound(measured, assessment):
    metrics = measured.metrics
    short = metrics[(metrics["seed"] != 2) | (metrics["iteration"] <= 4)]
    found = compare(assessment, replace(measured, metrics=short), "folder")
    whole = compare(assessment, measured, "folder")
    assert found.table["seeds"].tolist() == [3, 3, 3, 2, 2]
    shared = ["iteration", "optimality_error_bound", "consensus_error_bound"]
    pd.testing.assert_frame_equal(found.table[shared], whole.table[shared])


def test_a_horizon_shorter_than_a_run_is_read_at_its_end(measured):
    short = assess(Config(**(RIDGE | {"train": RIDGE["train"] | {"iterations": 5}})))
    found = compare(short, measured, "folder").table
    assert found["optimality_error_bound"].iloc[-1] == found["optimality_error_bound"].iloc[-2]


@pytest.mark.parametrize("changed", [{"checkpoint": {"keep": 5}}, {"scale": {"timeout": 5.0}}, {"eval": {"every": 1}}])
def test_tables_that_change_no_number_do_not_keep_a_run_from_being_compared(measured, changed):
    assert matching(Config(**(RIDGE | changed)), measured, "folder").algorithms == ["dgd"]


@pytest.mark.parametrize("changed", [{"iterations": 99}, {"until_delay": 50.0}, {"precision": "fp64"}])
def test_how_long_runs_go_does_not_keep_them_from_being_compared(measured, changed):
    config = Config(**(RIDGE | {"train": RIDGE["train"] | changed}))
    assert matching(config, measured, "folder").algorithms == ["dgd"]
