"""The summary: what a study says in a few numbers, runs that never arrive included."""

import json

import numpy as np
import pandas as pd
import pytest

from dspodfl.analysis.costs import Cost
from dspodfl.analysis.metrics import METRICS
from dspodfl.analysis.summary import DELAYS, summarize


def table(**runs):
    """Metrics of seeds {"s0": [(delay, accuracy), …]} of one algorithm; parts of the delay are shares of it."""
    rows = []
    for name, points in runs.items():
        for iteration, (delay, accuracy) in enumerate(points):
            row = dict.fromkeys(METRICS, np.nan) | {"algorithm": "dspodfl", "seed": int(name[1:])}
            row |= {"iteration": 10 * iteration, "accuracy": accuracy, "loss": 1 - accuracy}
            row |= {"delay_total": delay, "delay_processing": 0.75 * delay, "delay_transmission": 0.25 * delay}
            row |= {
                "delay_total_normalized": delay / 10,
                "bytes": 1000 * iteration,
                "diverged": bool(np.isnan(accuracy)),
            }
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
    assert found["final_accuracy"] == pytest.approx({"mean": np.mean(last), "std": np.std(last, ddof=1)})
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


def test_one_seed_has_no_deviation():
    found = summary(table(s0=[(0, 0.1), (10, 0.5)]), at_delay=[5.0])
    assert found["final_accuracy"] == {"mean": 0.5, "std": None}
    assert found["at_delay"][0]["accuracy"] == {"mean": 0.5, "std": None}


# --- how each run ended ---------------------------------------------------------------------------------------


ENDED = table(
    s0=[(0, 0.1), (60, 0.5), (101, 0.6)],  # spends its budget
    s1=[(0, 0.1), (60, 0.4), (81.2, 0.5)],  # its cap comes first
    s2=[(0, 0.1), (40, np.nan)],  # diverges
)


def test_every_run_is_recorded_with_where_and_why_it_ended():
    found = summarize(ENDED, [], [], Cost("delay", 100.0))["dspodfl"]["runs"]
    assert [(run["seed"], run["ended_at"], run["ended_by"]) for run in found] == [
        (0, 20, "budget"), (1, 20, "cap"), (2, 10, "diverged"),
    ]  # fmt: skip
    assert found[0] == {
        "seed": 0, "ended_at": 20, "ended_by": "budget", "delay_total": 101.0, "delay_total_normalized": 10.1,
        "bytes": 2000, "accuracy": 0.6,
    }  # fmt: skip
    assert found[2]["accuracy"] is None
    json.dumps(found, allow_nan=False)


@pytest.mark.parametrize("kind", ["delay", "normalized_delay", "bytes", "iterations"])
def test_a_budget_may_be_any_cost(kind):
    value = {"delay": 101.0, "normalized_delay": 10.1, "bytes": 2000, "iterations": 20}[kind]
    reached = summarize(ENDED[ENDED["seed"] == 0], [], [], Cost(kind, value))["dspodfl"]["runs"]
    missed = summarize(ENDED[ENDED["seed"] == 0], [], [], Cost(kind, value * 1.01))["dspodfl"]["runs"]
    assert (reached[0]["ended_by"], missed[0]["ended_by"]) == ("budget", "cap")


def test_a_run_that_has_reached_neither_budget_nor_cap_has_not_ended():
    caps = {("dspodfl", 0): 1000, ("dspodfl", 1): 1000, ("dspodfl", 2): 1000}
    found = summarize(ENDED, [], [], Cost("delay", 100.0), caps)["dspodfl"]["runs"]
    assert [run["ended_by"] for run in found] == ["budget", None, "diverged"]


def test_rows_that_0_1_wrote_after_a_run_had_spent_its_budget_are_not_its_last():
    resting = table(s0=[(0, 0.1), (60, 0.5), (101, 0.6), (101, 0.6), (101, 0.6)])
    found = summarize(resting, [], [], Cost("delay", 100.0))["dspodfl"]
    assert (found["runs"][0]["ended_at"], found["iterations"]) == (20, 20)
    assert found["final_accuracy"]["mean"] == 0.6


def test_without_a_budget_a_run_goes_to_its_last_row_even_if_nothing_fired_before_it():
    idle = table(s0=[(0, 0.1), (60, 0.5), (60, 0.5)])
    assert summary(idle)["runs"][0]["ended_at"] == 20
