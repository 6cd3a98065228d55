"""Readings and verdicts on made-up results: what is computed, and what is said."""

import numpy as np
import pandas as pd
import pytest

from dspodfl import readings, verdict
from dspodfl.commands import cell
from dspodfl.experiment import Check, Experiment, Printed, Read
from dspodfl.judging import COLUMNS
from dspodfl.outcome import Outcome, read
from dspodfl.verdict import Evidence, Verdict, beside, judge, overall

PERFECT = {"dspodfl": 1.0, "dgd": 0.5}


def rows(algorithm, seed, accuracy, *, delay=1.0, point=None, diverged=False, share=0.5):
    """A run whose accuracy after k = 0, 1, … is given, every iteration taking some delay, a share of it processing."""
    out = []
    for k, value in enumerate(accuracy):
        row = dict.fromkeys(COLUMNS, 0.0) | {"algorithm": algorithm, "seed": seed, "iteration": k, "accuracy": value}
        row |= {"delay_processing": share * delay * k, "delay_transmission": (1 - share) * delay * k}
        row |= {"delay_total": delay * k, "delay_total_normalized": 2.0 * k, "diverged": diverged and k > 1}
        out.append({**(point or {}), **row})
    return out


def experiment(kind="sweep", check=(), over=("x",), printed=(), **read_as):
    grids = [{"name": name, "values": [1, 2, 3, 4, 5]} for name in over]
    return Experiment(
        name="made-up", title="Made up", paper="Figure 0", kind=kind, dataset="fmnist", seeds=2, says="It is so.",
        base={}, over=grids, read=Read(**read_as), check=list(check), printed=list(printed),
    )  # fmt: skip


def swept(levels, delay=10.0):
    """metrics of a sweep over x: algorithm -> final accuracy at each point, reached after two iterations."""
    table = []
    for algorithm, values in levels.items():
        for x, value in enumerate(values, 1):
            for seed in (0, 1):
                table += rows(algorithm, seed, [0.1, value / 2, value], delay=delay / 2, point={"x": x})
    return pd.DataFrame(table)


def judged(check, metrics, **how):
    made = experiment(check=[check], **how)
    (found,) = judge(Evidence(metrics, read(made, metrics), made.axes, made))
    return found


# --- readings -------------------------------------------------------------------------------------------------


def test_accuracy_is_read_where_the_delay_is_first_reached():
    table = pd.DataFrame([*rows("dgd", 0, [0.1, 0.2, 0.3, 0.4]), *rows("dgd", 1, [0.1, 0.4, 0.5, 0.9])])
    (row,) = readings.at_delay(table, [], 1.5).to_dict("records")
    assert (row["accuracy_mean"], row["accuracy_median"]) == (pytest.approx(0.4), pytest.approx(0.4))
    assert (row["reached"], row["seeds"], row["iteration_median"]) == (2, 2, 2.0)
    assert row["accuracy_std"] == pytest.approx(0.1)


def test_runs_that_never_reach_a_delay_are_counted_and_not_averaged():
    table = pd.DataFrame([*rows("dgd", 0, [0.1, 0.2, 0.8]), *rows("dgd", 1, [0.1, 0.4])])
    (row,) = readings.at_delay(table, [], 2.0).to_dict("records")
    assert (row["reached"], row["seeds"], row["accuracy_mean"]) == (1, 2, 0.8)
    (row,) = readings.at_delay(table, [], 99.0).to_dict("records")
    assert row["reached"] == 0 and row["accuracy_mean"] is None


def test_the_normalized_reading_is_at_the_largest_delay_that_all_runs_of_the_point_got_to():
    table = pd.DataFrame(
        [*rows("dgd", 0, [0.0, 0.2, 0.4], point={"x": 1}), *rows("rg", 0, [0.0, 0.1, 0.2, 0.3], point={"x": 1})]
    )
    found = readings.at_delay(table, ["x"], 1.0).set_index("algorithm")
    assert found["normalized_delay"].tolist() == [4.0, 4.0]
    assert found["normalized_mean"].tolist() == pytest.approx([0.4, 0.2])


def test_accuracy_is_read_after_iterations():
    table = pd.DataFrame([*rows("dgd", 0, [0.1, 0.2, 0.3]), *rows("dgd", 1, [0.1, 0.4, 0.5])])
    found = readings.at_iterations(table, [], [1, 2, 7])
    assert found["accuracy_mean"].tolist()[:2] == pytest.approx([0.3, 0.4])
    assert pd.isna(found["accuracy_mean"].iloc[2])


def test_delays_to_a_target_are_quartiles_over_all_runs_with_late_ones_infinitely_late():
    table = pd.DataFrame(
        [line for seed, level in enumerate([0.9, 0.9, 0.9, 0.2]) for line in rows("dgd", seed, [0, level])]
    )
    (row,) = readings.to_targets(table, [], [0.5]).to_dict("records")
    assert (row["reached"], row["total_median"], row["total_quartile3"]) == (3, 1.0, None)
    assert row["total_mean"] is None and row["total_least"] == 1.0
    (row,) = readings.to_targets(table, [], [0.95]).to_dict("records")
    assert (row["reached"], row["total_median"], row["total_least"]) == (0, None, 1.0)  # where all runs ended
    (row,) = readings.to_targets(table, [], [0.5]).to_dict("records")
    assert (row["processing_median"], row["transmission_median"]) == (0.5, 0.5)


def test_diverged_runs_are_left_out_of_accuracies_and_counted():
    table = pd.DataFrame([*rows("dgd", 0, [0.1, 0.2, 0.3]), *rows("dgd", 1, [0.1, 0.2, np.nan], diverged=True)])
    (row,) = readings.at_delay(table, [], 2.0).to_dict("records")
    assert (row["reached"], row["diverged"], row["accuracy_mean"]) == (2, 1, 0.3)


# --- verdicts -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wins", "word"), [(5, "holds"), (4, "holds"), (3, "holds in part"), (2, "holds in part"), (1, "does not hold")]
)
def test_best_counts_the_points_where_an_algorithm_is_first(wins, word):
    ours = [0.9] * wins + [0.1] * (5 - wins)
    found = judged(Check(kind="best", algorithm="dspodfl"), swept({"dspodfl": ours, "dgd": [0.5] * 5}), at_delay=10.0)
    assert found.word == word
    assert f"{wins} of 5 points" in found.sentence and "at delay 10" in found.sentence


def test_best_counts_points_that_an_algorithm_never_got_to_against_it():
    metrics = swept({"dspodfl": [0.9] * 5, "dgd": [0.5] * 5})
    slow = (metrics["algorithm"] == "dspodfl") & (metrics["x"] > 2)
    metrics.loc[slow, "delay_total"] /= 100
    found = judged(Check(kind="best", algorithm="dspodfl"), metrics, at_delay=10.0)
    assert found.word == "holds in part" and "2 of 5 points (not at x = 3, 4, 5)" in found.sentence


def test_best_may_be_among_some():
    metrics = swept({"dspodfl": [0.6] * 5, "dgd": [0.9] * 5, "rg": [0.5] * 5})
    assert judged(Check(kind="best", algorithm="dspodfl"), metrics, at_delay=10.0).word == "does not hold"
    some = Check(kind="best", algorithm="dspodfl", among=["dspodfl", "rg"])
    assert judged(some, metrics, at_delay=10.0).word == "holds"


@pytest.mark.parametrize(("kind", "word"), [("rises", "holds"), ("falls", "does not hold")])
def test_trends_are_rank_correlations(kind, word):
    metrics = swept({"dspodfl": [0.1, 0.2, 0.3, 0.5, 0.4], "dgd": [0.1, 0.2, 0.3, 0.4, 0.5]})
    found = judged(Check(kind=kind), metrics, at_delay=10.0)
    assert found.word == word and "DGD +1.00" in found.sentence and "DSpodFL +0.90" in found.sentence


def test_a_trend_needs_three_points():
    assert judged(Check(kind="rises"), swept({"dgd": [0.1, 0.2]}), at_delay=10.0).word == "cannot be told"


@pytest.mark.parametrize(("direction", "word"), [("falls", "holds"), ("rises", "does not hold")])
def test_a_gap_is_that_to_the_best_other(direction, word):
    metrics = swept({"dspodfl": [0.9] * 5, "dgd": [0.1, 0.2, 0.3, 0.4, 0.5], "rg": [0.2, 0.3, 0.4, 0.5, 0.6]})
    found = judged(Check(kind="gap", algorithm="dspodfl", direction=direction), metrics, at_delay=10.0)
    assert found.word == word and "+0.700 to +0.300" in found.sentence


@pytest.mark.parametrize(("at", "word"), [([2, 3], "holds"), ([2, 5], "holds in part"), ([5], "does not hold")])
def test_tuned_is_against_the_best_of_the_others_at_their_best(at, word):
    metrics = swept({"dspodfl": [0.1, 0.8, 0.9, 0.4, 0.2], "dgd": [0.1, 0.2, 0.3, 0.7, 0.1], "rg": [0.6] * 5})
    found = judged(Check(kind="tuned", algorithm="dspodfl", at=at), metrics, at_delay=10.0)
    assert found.word == word
    assert "DGD, has 0.700 at its own best, 4" in found.sentence


@pytest.mark.parametrize(("last", "word"), [(0.52, "holds"), (0.58, "holds in part"), (0.9, "does not hold")])
def test_flat_is_a_small_range(last, word):
    metrics = swept({"dspodfl": [0.5, 0.5, 0.5, 0.5, last]})
    assert judged(Check(kind="flat", algorithm="dspodfl", within=0.05), metrics, at_delay=10.0).word == word


def test_ahead_compares_curves_over_the_delays_that_all_cover():
    better = [rows("dspodfl", s, [0.1, 0.5, 0.8, 0.9]) for s in (0, 1)]
    worse = [rows("dgd", s, [0.1, 0.2, 0.3, 0.4, 0.99]) for s in (0, 1)]
    metrics = pd.DataFrame([line for run in (*better, *worse) for line in run])
    found = judged(Check(kind="ahead", algorithm="dspodfl"), metrics, kind="curves", over=())
    assert found.word == "holds" and "100%" in found.sentence
    found = judged(Check(kind="ahead", algorithm="dgd"), metrics, kind="curves", over=())
    assert found.word == "does not hold"


def test_printed_accuracies_are_met_within_a_fortieth_or_one_deviation():
    metrics = pd.DataFrame([*rows("dgd", 0, [0.1, 0.7]), *rows("dgd", 1, [0.1, 0.9]), *rows("rg", 0, [0.1, 0.8])])
    printed = [
        Printed(algorithm="dgd", iteration=1, accuracy=0.71),  # 0.8 ± 0.1
        Printed(algorithm="rg", iteration=1, accuracy=0.78),  # 0.8, no spread
    ]
    how = {"kind": "accuracy_table", "over": (), "iterations": [1]}
    assert judged(Check(kind="within"), metrics, printed=printed, **how).word == "holds"
    found = judged(
        Check(kind="within"), metrics, printed=[*printed[:1], printed[1].model_copy(update={"accuracy": 0.7})], **how
    )
    assert found.word == "holds in part"
    assert "1 of 2" in found.sentence and "; not RG at 1: 0.800 ± 0.000 against 0.70." in found.sentence
    met = judged(Check(kind="within"), metrics, printed=printed, **how)
    assert "2 of 2" in met.sentence and "; the furthest is RG at 1" in met.sentence


def test_printed_numbers_stand_beside_ours():
    metrics = pd.DataFrame(rows("dgd", 0, [0.1, 0.7]))
    made = experiment(
        kind="accuracy_table", over=(), iterations=[0, 1], printed=[Printed(algorithm="dgd", iteration=1, accuracy=0.6)]
    )
    table = beside(readings.at_iterations(metrics, [], [0, 1]), made)
    assert pd.isna(table["printed_accuracy"].iloc[0]) and table["printed_accuracy"].iloc[1] == 0.6


def test_sooner_compares_median_delays_to_targets():
    metrics = pd.DataFrame([*rows("dspodfl", 0, [0, 0.9], delay=1.0), *rows("dgd", 0, [0, 0.9], delay=5.0)])
    how = {"kind": "delay_table", "over": (), "targets": [0.5, 0.95]}
    assert judged(Check(kind="sooner", algorithm="dspodfl"), metrics, **how).word == "holds"
    assert judged(Check(kind="sooner", algorithm="dgd"), metrics, **how).word == "does not hold"


@pytest.mark.parametrize(("delay", "word"), [(1.0, "cannot be told"), (9.0, "does not hold")])
def test_runs_that_end_early_are_not_later_than_what_they_were_not_waited_for(delay, word):
    """DGD gets to 0.5 at delay 5; DSpodFL has not when its runs end, before that or after it."""
    metrics = pd.DataFrame([*rows("dspodfl", 0, [0, 0.4], delay=delay), *rows("dgd", 0, [0, 0.9], delay=5.0)])
    how = {"kind": "delay_table", "over": (), "targets": [0.5]}
    assert judged(Check(kind="sooner", algorithm="dspodfl"), metrics, **how).word == word


def test_comparisons_that_are_not_decided_are_named_and_keep_a_claim_from_holding_in_full():
    metrics = pd.DataFrame([*rows("dspodfl", 0, [0, 0.6], delay=1.0), *rows("dgd", 0, [0, 0.9], delay=5.0)])
    how = {"kind": "delay_table", "over": (), "targets": [0.5, 0.8]}
    found = judged(Check(kind="sooner", algorithm="dspodfl"), metrics, **how)
    assert found.word == "holds in part"
    assert found.sentence.endswith(
        "in 1 of 1 comparisons with the others at the targets; runs end too early for one with DGD at 0.8."
    )


def test_the_ratio_tells_which_link_draw_was_printed():
    metrics = pd.DataFrame(
        [
            *rows("dspodfl", 0, [0, 0.9], share=0.5, point={"rates.link_draw": "symmetric"}),
            *rows("dspodfl", 0, [0, 0.9], share=0.4, point={"rates.link_draw": "two_sided"}),
        ]
    )
    printed = [Printed(algorithm="dspodfl", target=0.5, processing=100.0, transmission=150.0)]
    how = {"kind": "delay_table", "over": ("rates.link_draw",), "targets": [0.5], "printed": printed}
    found = judged(Check(kind="ratio", algorithm="dspodfl"), metrics, **how)
    assert found.word == "does not hold"
    assert "1.00 with symmetric draws, 1.50 with two_sided draws" in found.sentence
    assert "prints 1.50" in found.sentence and "nearest to two_sided" in found.sentence


def test_several_verdicts_make_one():
    def said(*words):
        return overall([Verdict(word, "", "best") for word in words])

    assert said("holds", "holds") == "holds"
    assert said("holds", "does not hold") == "holds in part"
    assert said("holds", "cannot be told") == "holds in part"
    assert said("does not hold", "cannot be told") == "does not hold"
    assert said() == said("cannot be told") == "cannot be told"


@pytest.mark.parametrize("kind", verdict.CHECKS)
def test_every_check_can_say_that_it_cannot_tell(kind):
    metrics = swept({"rg": [0.1, 0.2]})
    check = Check(kind=kind, algorithm="dspodfl")
    made = experiment(kind="sweep", check=[check], at_delay=10.0)
    reading = read(made, metrics)
    if kind == "sooner":
        reading = readings.to_targets(metrics, ["x"], [0.5])
    (found,) = judge(Evidence(metrics, reading, ["x"], made))
    assert found.word == "cannot be told" and found.sentence


def test_an_outcome_is_the_same_after_saving_and_loading(tmp_path):
    metrics = swept({"dspodfl": [0.9] * 5, "dgd": [0.5] * 5})
    made = experiment(check=[Check(kind="best", algorithm="dspodfl")], at_delay=10.0)
    (cell, *_) = made.model_copy(update={"over": [], "kind": "curves"}).cells()
    outcome = Outcome.of(made, [cell], metrics, {"device": "cpu"})
    assert outcome.word == "holds"
    again = Outcome.load(outcome.save(tmp_path / "out"))
    pd.testing.assert_frame_equal(again.metrics, metrics)
    assert again.verdicts == outcome.verdicts and again.about == {"device": "cpu"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "metrics.parquet", "table.csv", "figure.png", "figure.svg", "result.json",
    }  # fmt: skip


def test_a_table_says_how_late_a_target_is_at_least():
    metrics = pd.DataFrame([*rows("dspodfl", 0, [0, 0.4], delay=9.0), *rows("dgd", 0, [0, 0.9], delay=5.0)])
    ours, theirs = (cell(row) for _, row in readings.to_targets(metrics, [], [0.5]).iterrows())
    assert ours == "> 9 0/1" and theirs == "5"


@pytest.mark.parametrize(
    ("dgd", "rg", "word"),
    [(0.35, 0.35, "holds"), (0.6, 0.6, "does not hold"), (0.6, 0.1, "holds in part"), (0.45, 0.45, "holds in part")],
)
def test_a_lead_is_compared_with_that_of_another_experiment(dgd, rg, word):
    """There DSpodFL is 0.2 ahead of the best other and 0.3 of their mean."""
    here = swept({"dspodfl": [0.7] * 3, "dgd": [dgd] * 3, "rg": [rg] * 3})
    there = swept({"dspodfl": [0.7] * 3, "dgd": [0.5] * 3, "rg": [0.3] * 3})
    made = experiment(kind="sweep", check=[Check(kind="lead", algorithm="dspodfl", beside="there")], at_delay=10.0)
    (alone,) = judge(Evidence(here, read(made, here), ["x"], made))
    assert alone.word == "cannot be told" and "There must have been reproduced" in alone.sentence
    other = Evidence(there, read(made, there), ["x"], made)
    (found,) = judge(Evidence(here, read(made, here), ["x"], made, {"there": other}))
    assert found.word == word
    assert f"{0.7 - max(dgd, rg):.3f} and 0.200 ahead of the best other" in found.sentence


def test_what_varies_least_is_steadier_than_the_others():
    metrics = swept({"dspodfl": [0.5, 0.6, 0.5], "dgd": [0.5, 0.9, 0.5], "rg": [0.5, 0.55, 0.5]})
    found = judged(Check(kind="steadier", algorithm="dspodfl"), metrics, at_delay=10.0)
    assert found.word == "holds in part"
    assert "varies by 0.100 over x, less than 1 of 2 others: RG by 0.050, DGD by 0.400." in found.sentence
    assert judged(Check(kind="steadier", algorithm="rg"), metrics, at_delay=10.0).word == "holds"
    assert judged(Check(kind="steadier", algorithm="dgd"), metrics, at_delay=10.0).word == "does not hold"
