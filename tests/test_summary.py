"""The summary: what a study says in a few numbers, runs that never arrive included."""

import json

import numpy as np
import pandas as pd
import pytest

from dspodfl.judging import COLUMNS
from dspodfl.summary import DELAYS, summarize


def table(**runs):
    """Metrics of seeds {"s0": [(delay, accuracy), …]} of one algorithm; parts of the delay are shares of it."""
    rows = []
    for name, points in runs.items():
        for iteration, (delay, accuracy) in enumerate(points):
            row = dict.fromkeys(COLUMNS, np.nan) | {"algorithm": "dspodfl", "seed": int(name[1:])}
            row |= {"iteration": 10 * iteration, "accuracy": accuracy, "loss": 1 - accuracy}
            row |= {"delay_total": delay, "delay_processing": 0.75 * delay, "delay_transmission": 0.25 * delay}
            row |= {"delay_total_normalized": delay / 10, "diverged": bool(np.isnan(accuracy))}
            rows.append(row)
    return pd.DataFrame(rows)


def summary(metrics, targets=(), at_delay=()):
    return summarize(metrics, targets, at_delay)["dspodfl"]


FIVE = table(
    s0=[(0, 0.1), (10, 0.5), (20, 0.9)],
    s1=[(0, 0.1), (30, 0.5), (60, 0.6)],
    s2=[(0, 0.1), (20, 0.4), (40, 0.7)],
    s3=[(0, 0.1), (40, 0.2), (80, 0.5)],
    s4=[(0, 0.1), (50, 0.3), (90, 0.3)],
)


def test_final_values_are_mean_and_deviation_over_seeds():
    found = summary(FIVE)
    last = [0.9, 0.6, 0.7, 0.5, 0.3]
    assert found["final_accuracy"] == pytest.approx({"mean": np.mean(last), "std": np.std(last)})
    assert found["final_loss"]["mean"] == pytest.approx(1 - np.mean(last))
    assert (found["seeds"], found["iterations"], found["diverged"]) == (5, 20, 0)


def test_final_delays_are_median_and_quartiles_over_seeds():
    found = summary(FIVE)["final_delay"]
    assert set(found) == set(DELAYS)
    assert found["delay_total"] == pytest.approx({"median": 60, "quartile1": 40, "quartile3": 80, "mean": 58})
    assert found["delay_processing"]["median"] == pytest.approx(45)
    assert found["delay_total_normalized"]["median"] == pytest.approx(6)


def test_the_delay_to_a_target_is_where_a_run_is_first_seen_there():
    (found,) = summary(FIVE, targets=[0.3])["targets"]
    assert (found["accuracy"], found["reached"]) == (0.3, 5)
    assert found["delay_total"] == pytest.approx({"median": 30, "quartile1": 20, "quartile3": 50, "mean": 38})
    assert found["iteration"]["median"] == 10


def test_a_run_that_never_arrives_is_infinitely_late():
    (found,) = summary(FIVE, targets=[0.5])["targets"]  # delays 10, 30, 40, 80 and never
    assert found["reached"] == 4
    assert found["delay_total"] == {"median": 40, "quartile1": 30, "quartile3": 80, "mean": None}


def test_a_quantile_that_falls_on_a_run_that_never_arrives_is_null():
    half, few, none = summary(FIVE, targets=[0.6, 0.8, 0.95])["targets"]  # 20, 40, 60; 20; nobody
    assert (half["reached"], few["reached"], none["reached"]) == (3, 1, 0)
    assert half["delay_total"] == {"median": 60, "quartile1": 40, "quartile3": None, "mean": None}
    assert few["delay_total"] == {"median": None, "quartile1": None, "quartile3": None, "mean": None}
    assert none["delay_total"] == few["delay_total"]


def test_a_quantile_between_a_run_that_arrives_and_one_that_does_not_is_null():
    two = table(s0=[(0, 0.1), (10, 0.5)], s1=[(0, 0.1), (10, 0.2)])
    (found,) = summary(two, targets=[0.5])["targets"]
    assert found["delay_total"] == {"median": None, "quartile1": None, "quartile3": None, "mean": None}


def test_quantiles_are_linear_between_runs():
    four = table(**{f"s{i}": [(0, 0.1), (delay, 0.5)] for i, delay in enumerate((10, 20, 40, 80))})
    (found,) = summary(four, targets=[0.5])["targets"]
    expected = {
        name: np.quantile([10, 20, 40, 80], q)
        for name, q in (("quartile1", 0.25), ("median", 0.5), ("quartile3", 0.75))
    }
    assert found["delay_total"] == pytest.approx(expected | {"mean": 37.5})


def test_a_target_met_by_the_initial_model_takes_no_time():
    (found,) = summary(FIVE, targets=[0.1])["targets"]
    assert (found["reached"], found["delay_total"]["median"], found["iteration"]["quartile3"]) == (5, 0, 0)


def test_rows_need_not_be_in_order():
    mixed = FIVE.sample(frac=1, random_state=1)
    assert summary(mixed, [0.3, 0.5], [25.0]) == summary(FIVE, [0.3, 0.5], [25.0])


def test_accuracy_at_a_delay_is_read_where_the_delay_is_first_reached():
    near, far = summary(FIVE, at_delay=[30.0, 85.0])["at_delay"]
    assert (near["delay"], near["reached"]) == (30.0, 4)  # the first run ends at 20
    assert near["accuracy"]["mean"] == pytest.approx(np.mean([0.5, 0.7, 0.2, 0.3]))
    assert near["iteration"] == {"median": 10, "quartile1": 10, "quartile3": 20, "mean": None}
    assert (far["reached"], far["accuracy"]["mean"]) == (1, pytest.approx(0.3))
    assert far["iteration"]["median"] is None


def test_runs_that_diverged_are_counted_and_left_out_of_final_means():
    runs = table(s0=[(0, 0.1), (10, 0.5)], s1=[(0, 0.1), (10, 0.4), (20, np.nan)], s2=[(0, 0.1), (10, 0.7)])
    found = summary(runs, targets=[0.4])
    assert found["diverged"] == 1
    assert found["final_accuracy"]["mean"] == pytest.approx(0.6)
    assert found["targets"][0]["reached"] == 3  # it was there before


def test_values_beyond_floating_point_are_null_and_the_summary_is_json():
    for values in ([np.inf, 1.0], [1e308, 1.7e308], [np.nan, np.nan]):
        metrics = table(s0=[(10, 0.5)], s1=[(20, 0.5)]).assign(loss=values, optimality_error=values)
        found = summary(metrics, [0.9])
        assert found["final_loss"] == found["final_optimality_error"] == {"mean": None, "std": None}
        json.dumps(found, allow_nan=False)


def test_regression_reaches_no_target():
    metrics = FIVE.assign(accuracy=np.nan)
    found = summary(metrics, targets=[0.5])
    assert found["final_accuracy"] == {"mean": None, "std": None}
    assert found["targets"][0]["reached"] == 0


def test_algorithms_keep_the_order_of_the_table():
    both = pd.concat([FIVE.assign(algorithm="rg"), FIVE, FIVE.assign(algorithm="dgd")])
    assert list(summarize(both, [0.5], [])) == ["rg", "dspodfl", "dgd"]
