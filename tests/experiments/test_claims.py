"""Aggregates and claim checks on made-up results: what is computed, and what is said."""

import numpy as np
import pandas as pd
import pytest

from dspodfl import InputError
from dspodfl.analysis import aggregates as aggregation
from dspodfl.analysis.costs import Cost
from dspodfl.analysis.metrics import METRICS
from dspodfl.experiments.claims import ClaimCheck, check_claims, check_kinds, claim_kind, kinds, overall, with_printed
from dspodfl.experiments.definition import Check, Experiment, Printed, Read
from dspodfl.experiments.evidence import Evidence
from dspodfl.experiments.result import ExperimentResult, read
from dspodfl.experiments.table import at_cost, caption, cell, outcome_table

PERFECT = {"dspodfl": 1.0, "dgd": 0.5}


def rows(algorithm, seed, accuracy, *, delay=1.0, point=None, diverged=False, share=0.5):
    """A run whose accuracy after k = 0, 1, … is given, every iteration taking some delay, a share of it processing."""
    out = []
    for k, value in enumerate(accuracy):
        row = dict.fromkeys(METRICS, 0.0) | {"algorithm": algorithm, "seed": seed, "iteration": k, "accuracy": value}
        row |= {"delay_processing": share * delay * k, "delay_transmission": (1 - share) * delay * k}
        row |= {"delay_total": delay * k, "delay_total_normalized": 2.0 * k, "diverged": diverged and k > 1}
        out.append({**(point or {}), **row})
    return out


def experiment(kind="sweep", check=(), over=("x",), printed=(), **read_as):
    grids = [{"name": name, "values": [1, 2, 3, 4, 5]} for name in over]
    return Experiment(
        name="made-up", title="Made up", paper="Figure 0", kind=kind, dataset="fmnist", seeds=2, claim="It is so.",
        base={}, over=grids, read=Read(**read_as), check=list(check), printed=list(printed),
    )  # fmt: skip


def swept(levels, delay=10.0, seeds=2, noise=0.0):
    """metrics of a sweep over x: algorithm -> final accuracy at each point, reached after two iterations.

    Noise is added to the final accuracy of each run.
    """
    random = np.random.default_rng(0)
    table = []
    for algorithm, values in levels.items():
        for x, value in enumerate(values, 1):
            for seed in range(seeds):
                last = value + noise * random.normal()
                table += rows(algorithm, seed, [0.1, last / 2, last], delay=delay / 2, point={"x": x})
    return pd.DataFrame(table)


def judged(check, metrics, **how):
    made = experiment(check=[check], **how)
    (found,) = check_claims(Evidence(metrics, read(made, metrics), made.axes, made))
    return found


# --- aggregation -------------------------------------------------------------------------------------------------


def test_accuracy_is_read_where_the_delay_is_first_reached():
    table = pd.DataFrame([*rows("dgd", 0, [0.1, 0.2, 0.3, 0.4]), *rows("dgd", 1, [0.1, 0.4, 0.5, 0.9])])
    (row,) = aggregation.at_delay(table, [], 1.5).to_dict("records")
    assert (row["accuracy_mean"], row["accuracy_median"]) == (pytest.approx(0.4), pytest.approx(0.4))
    assert (row["reached"], row["seeds"], row["iteration_median"]) == (2, 2, 2.0)
    assert row["accuracy_std"] == pytest.approx(np.std([0.3, 0.5], ddof=1))


def test_runs_that_never_reach_a_delay_are_counted_and_not_averaged():
    table = pd.DataFrame([*rows("dgd", 0, [0.1, 0.2, 0.8]), *rows("dgd", 1, [0.1, 0.4])])
    (row,) = aggregation.at_delay(table, [], 2.0).to_dict("records")
    assert (row["reached"], row["seeds"], row["accuracy_mean"]) == (1, 2, 0.8)
    (row,) = aggregation.at_delay(table, [], 99.0).to_dict("records")
    assert row["reached"] == 0 and row["accuracy_mean"] is None


def test_the_normalized_reading_is_at_the_largest_delay_that_all_runs_of_the_point_got_to():
    table = pd.DataFrame(
        [*rows("dgd", 0, [0.0, 0.2, 0.4], point={"x": 1}), *rows("rg", 0, [0.0, 0.1, 0.2, 0.3], point={"x": 1})]
    )
    found = aggregation.at_delay(table, ["x"], 1.0).set_index("algorithm")
    assert found["normalized_delay"].tolist() == [4.0, 4.0]
    assert found["normalized_mean"].tolist() == pytest.approx([0.4, 0.2])


def test_accuracy_is_read_after_iterations():
    table = pd.DataFrame([*rows("dgd", 0, [0.1, 0.2, 0.3]), *rows("dgd", 1, [0.1, 0.4, 0.5])])
    found = aggregation.at_iterations(table, [], [1, 2, 7])
    assert found["accuracy_mean"].tolist()[:2] == pytest.approx([0.3, 0.4])
    assert pd.isna(found["accuracy_mean"].iloc[2])


def test_delays_to_a_target_are_quartiles_over_all_runs_with_late_ones_infinitely_late():
    table = pd.DataFrame(
        [line for seed, level in enumerate([0.9, 0.9, 0.9, 0.2]) for line in rows("dgd", seed, [0, level])]
    )
    (row,) = aggregation.to_targets(table, [], [0.5]).to_dict("records")
    assert (row["reached"], row["total_median"], row["total_quartile3"]) == (3, 1.0, None)
    assert row["total_mean"] is None and row["total_least"] == 1.0
    (row,) = aggregation.to_targets(table, [], [0.95]).to_dict("records")
    assert (row["reached"], row["total_median"], row["total_least"]) == (0, None, 1.0)  # where all runs ended
    (row,) = aggregation.to_targets(table, [], [0.5]).to_dict("records")
    assert (row["processing_median"], row["transmission_median"]) == (0.5, 0.5)


def test_diverged_runs_are_left_out_of_accuracies_and_counted():
    table = pd.DataFrame([*rows("dgd", 0, [0.1, 0.2, 0.3]), *rows("dgd", 1, [0.1, 0.2, np.nan], diverged=True)])
    (row,) = aggregation.at_delay(table, [], 2.0).to_dict("records")
    assert (row["seeds"], row["reached"], row["diverged"], row["accuracy_mean"]) == (2, 1, 1, 0.3)
    assert row["accuracy_std"] is None  # one seed is left


def test_runs_that_ended_where_they_diverged_are_counted_though_they_never_got_there():
    lost = rows("dgd", 1, [0.1, np.nan])
    lost[-1]["diverged"] = True
    table = pd.DataFrame([*rows("dgd", 0, [0.1, 0.2, 0.3]), *lost])
    for found in (
        aggregation.at_delay(table, [], 2.0),
        aggregation.at_end(table, []),
        aggregation.at_iterations(table, [], [2]),
    ):
        (row,) = found.to_dict("records")
        assert (row["seeds"], row["reached"], row["diverged"], row["accuracy_mean"]) == (2, 1, 1, 0.3)


def test_the_end_of_a_run_is_its_own_last_row():
    """Runs of one study end at different iterations."""
    short, long = rows("dgd", 0, [0.1, 0.4], delay=50.0), rows("rg", 0, [0.1, 0.2, 0.3, 0.5], delay=20.0)
    metrics = pd.DataFrame([*short, *long])
    found = aggregation.at_end(metrics, [], {(): Cost("delay", 50.0)}).set_index("algorithm")
    assert found["accuracy_mean"].to_dict() == {"dgd": 0.4, "rg": 0.5}
    assert found["iteration"].to_dict() == {"dgd": 1, "rg": 3}
    capped = aggregation.at_end(metrics, [], {(): Cost("delay", 55.0)}).set_index("algorithm")
    assert capped["reached"].to_dict() == {"dgd": 0, "rg": 1} and capped["accuracy_mean"].isna()["dgd"]


def test_a_sweep_of_budgets_is_read_at_the_budget_of_each_point():
    budgets = {(1,): Cost("bytes", 10.0), (2,): Cost("bytes", 20.0)}
    metrics = swept({"dgd": [0.4, 0.6]}).assign(bytes=lambda t: 10 * t["iteration"])
    found = aggregation.at_end(metrics, ["x"], budgets)
    assert found["accuracy_mean"].tolist() == [0.2, 0.6]
    assert caption("sweep", found) == (
        "Accuracy: mean ± std over 2 seeds, where each run has spent the budget of its point."
    )


# --- claim checks----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wins", "word"), [(5, "holds"), (4, "holds"), (3, "holds in part"), (2, "holds in part"), (1, "does not hold")]
)
def test_best_counts_the_points_where_an_algorithm_is_first(wins, word):
    ours = [0.9] * wins + [0.1] * (5 - wins)
    found = judged(Check(kind="best", algorithm="dspodfl"), swept({"dspodfl": ours, "dgd": [0.5] * 5}), at_delay=10.0)
    assert found.status == word
    assert f"{wins} of 5 points" in found.sentence and "at delay 10" in found.sentence


def test_points_that_an_algorithm_never_got_to_are_undecided():
    metrics = swept({"dspodfl": [0.9] * 5, "dgd": [0.5] * 5})
    slow = (metrics["algorithm"] == "dspodfl") & (metrics["x"] > 3)
    metrics.loc[slow, "delay_total"] /= 100
    found = judged(Check(kind="best", algorithm="dspodfl"), metrics, at_delay=10.0)
    assert found.status == "holds" and "3 of 5 points, undecided at 2 (x = 4, 5)" in found.sentence
    metrics.loc[(metrics["algorithm"] == "dspodfl") & (metrics["x"] > 1), "delay_total"] /= 100
    assert judged(Check(kind="best", algorithm="dspodfl"), metrics, at_delay=10.0).status == "cannot be told"


def test_best_names_the_points_where_an_algorithm_is_behind():
    metrics = swept({"dspodfl": [0.9, 0.9, 0.9, 0.1, 0.1], "dgd": [0.5] * 5})
    found = judged(Check(kind="best", algorithm="dspodfl"), metrics, at_delay=10.0)
    assert "3 of 5 points, behind at 2 (x = 4, 5); on average it is +0.080 ± 0.000 above" in found.sentence


def test_best_is_decided_by_paired_differences_and_not_by_means():
    """By their means, DSpodFL is best at every point; the seeds do not say so at any."""
    metrics = swept({"dspodfl": [0.51] * 5, "dgd": [0.5] * 5}, seeds=3)
    flip = (metrics["algorithm"] == "dspodfl") & (metrics["seed"] == 0)
    metrics.loc[flip, "accuracy"] -= 0.3
    metrics.loc[(metrics["algorithm"] == "dspodfl") & (metrics["seed"] == 1), "accuracy"] += 0.3
    found = judged(Check(kind="best", algorithm="dspodfl"), metrics, at_delay=10.0)
    assert found.status == "cannot be told"
    assert "0 of 5 points, undecided at 5" in found.sentence and "+0.010 ± " in found.sentence


def test_one_seed_decides_no_claim_about_accuracies():
    metrics = swept({"dspodfl": [0.9, 0.8, 0.7], "dgd": [0.1, 0.2, 0.3]}, seeds=1)
    for kind in ("best", "rises", "falls", "gap", "steadier", "flat", "ahead"):
        check = Check(kind=kind, algorithm="dspodfl", direction="falls")
        found = judged(check, metrics, at_delay=10.0)
        assert found.status == "cannot be told" and found.sentence


def test_runs_of_seeds_that_only_one_algorithm_has_are_not_compared():
    metrics = swept({"dspodfl": [0.6] * 3, "dgd": [0.5] * 3}, seeds=3)
    lucky = (metrics["algorithm"] == "dgd") & (metrics["seed"] == 2)
    metrics = pd.concat([metrics[~lucky], metrics[lucky].assign(seed=7, accuracy=1.0)])
    found = judged(Check(kind="best", algorithm="dspodfl"), metrics, at_delay=10.0)
    assert found.status == "holds" and "in 2 of 2 seeds" in found.sentence


def test_best_may_be_among_some():
    metrics = swept({"dspodfl": [0.6] * 5, "dgd": [0.9] * 5, "rg": [0.5] * 5})
    assert judged(Check(kind="best", algorithm="dspodfl"), metrics, at_delay=10.0).status == "does not hold"
    some = Check(kind="best", algorithm="dspodfl", among=["dspodfl", "rg"])
    assert judged(some, metrics, at_delay=10.0).status == "holds"


@pytest.mark.parametrize(("kind", "word"), [("rises", "holds"), ("falls", "does not hold")])
def test_trends_are_changes_along_a_line_seed_by_seed(kind, word):
    metrics = swept({"dspodfl": [0.1, 0.2, 0.3, 0.5, 0.4], "dgd": [0.1, 0.2, 0.3, 0.4, 0.5]})
    found = judged(Check(kind=kind), metrics, at_delay=10.0)
    assert (
        found.status == word and "DGD +0.400 ± 0.000" in found.sentence and "DSpodFL +0.360 ± 0.000" in found.sentence
    )


def test_a_trend_that_the_noise_of_the_seeds_covers_cannot_be_told():
    metrics = swept({"dspodfl": [0.5, 0.51, 0.52]}, seeds=4, noise=0.1)
    found = judged(Check(kind="rises"), metrics, at_delay=10.0)
    assert found.status == "cannot be told" and "undecided for 1" in found.sentence


def test_a_trend_needs_three_points():
    assert judged(Check(kind="rises"), swept({"dgd": [0.1, 0.2]}), at_delay=10.0).status == "cannot be told"


@pytest.mark.parametrize(("direction", "word"), [("falls", "holds"), ("rises", "does not hold")])
def test_a_gap_is_that_to_the_best_other(direction, word):
    metrics = swept({"dspodfl": [0.9] * 5, "dgd": [0.1, 0.2, 0.3, 0.4, 0.5], "rg": [0.2, 0.3, 0.4, 0.5, 0.6]})
    found = judged(Check(kind="gap", algorithm="dspodfl", direction=direction), metrics, at_delay=10.0)
    assert found.status == word and "+0.700 to +0.300" in found.sentence and "−0.400 ± 0.000" in found.sentence


@pytest.mark.parametrize(("at", "word"), [([2, 3], "holds"), ([2, 5], "holds in part"), ([5], "does not hold")])
def test_tuned_is_against_the_best_of_the_others_at_their_best(at, word):
    metrics = swept({"dspodfl": [0.1, 0.8, 0.9, 0.4, 0.2], "dgd": [0.1, 0.2, 0.3, 0.7, 0.1], "rg": [0.6] * 5})
    found = judged(Check(kind="tuned", algorithm="dspodfl", at=at), metrics, at_delay=10.0)
    assert found.status == word
    assert "DGD, has 0.700 at its own best, 4" in found.sentence


def test_a_range_whose_interval_spans_what_is_allowed_cannot_be_told():
    metrics = swept({"dspodfl": [0.5, 0.55]}, seeds=3, noise=0.05)
    assert (
        judged(Check(kind="flat", algorithm="dspodfl", within=0.05), metrics, at_delay=10.0).status == "cannot be told"
    )


@pytest.mark.parametrize(("last", "word"), [(0.52, "holds"), (0.58, "holds in part"), (0.9, "does not hold")])
def test_flat_is_a_small_range(last, word):
    metrics = swept({"dspodfl": [0.5, 0.5, 0.5, 0.5, last]})
    assert judged(Check(kind="flat", algorithm="dspodfl", within=0.05), metrics, at_delay=10.0).status == word


def test_ahead_compares_curves_over_the_delays_that_all_cover():
    better = [rows("dspodfl", s, [0.1, 0.5, 0.8, 0.9]) for s in (0, 1)]
    worse = [rows("dgd", s, [0.1, 0.2, 0.3, 0.4, 0.99]) for s in (0, 1)]
    metrics = pd.DataFrame([line for run in (*better, *worse) for line in run])
    found = judged(Check(kind="ahead", algorithm="dspodfl"), metrics, kind="curves", over=())
    assert found.status == "holds" and "100%" in found.sentence and "above it in 2 of 2 seeds" in found.sentence
    found = judged(Check(kind="ahead", algorithm="dgd"), metrics, kind="curves", over=())
    assert found.status == "does not hold"


def test_printed_accuracies_are_met_within_a_fortieth_or_one_deviation():
    metrics = pd.DataFrame([*rows("dgd", 0, [0.1, 0.7]), *rows("dgd", 1, [0.1, 0.9]), *rows("rg", 0, [0.1, 0.8])])
    printed = [
        Printed(algorithm="dgd", iteration=1, accuracy=0.68),  # 0.8 ± 0.141, ddof 1
        Printed(algorithm="rg", iteration=1, accuracy=0.78),  # 0.8, no spread
    ]
    how = {"kind": "accuracy_table", "over": (), "iterations": [1]}
    assert judged(Check(kind="within"), metrics, printed=printed, **how).status == "holds"
    found = judged(
        Check(kind="within"), metrics, printed=[*printed[:1], printed[1].model_copy(update={"accuracy": 0.7})], **how
    )
    assert found.status == "holds in part"
    assert "1 of 2" in found.sentence and "; not RG at 1: 0.800 against 0.70." in found.sentence
    met = judged(Check(kind="within"), metrics, printed=printed, **how)
    assert "2 of 2" in met.sentence and "; the furthest is RG at 1" in met.sentence


def test_printed_numbers_stand_beside_ours():
    metrics = pd.DataFrame(rows("dgd", 0, [0.1, 0.7]))
    made = experiment(
        kind="accuracy_table", over=(), iterations=[0, 1], printed=[Printed(algorithm="dgd", iteration=1, accuracy=0.6)]
    )
    table = with_printed(aggregation.at_iterations(metrics, [], [0, 1]), made)
    assert pd.isna(table["printed_accuracy"].iloc[0]) and table["printed_accuracy"].iloc[1] == 0.6


def timed(algorithm, last, delays):
    """A run a seed that gets to its last accuracy after one iteration of the delay given."""
    return [line for seed, delay in enumerate(delays) for line in rows(algorithm, seed, [0, last], delay=delay)]


def test_ahead_is_not_spoiled_by_one_run_that_ended_early():
    better = [rows("dspodfl", s, [0.1, 0.5, 0.8, 0.9]) for s in (0, 1, 2)]
    worse = [rows("dgd", s, [0.1, 0.2, 0.3, 0.4]) for s in (0, 1)] + [rows("dgd", 2, [0.1, 0.2])]
    metrics = pd.DataFrame([line for run in (*better, *worse) for line in run])
    found = judged(Check(kind="ahead", algorithm="dspodfl"), metrics, kind="curves", over=())
    assert found.status == "holds" and "raw delays 1 to 3 " in found.sentence


def test_sooner_compares_delays_to_targets_seed_by_seed():
    metrics = pd.DataFrame([*timed("dspodfl", 0.9, [1.0, 1.1, 0.9]), *timed("dgd", 0.9, [5.0, 5.2, 5.1])])
    how = {"kind": "delay_table", "over": (), "targets": [0.5, 0.95]}
    assert judged(Check(kind="sooner", algorithm="dspodfl"), metrics, **how).status == "holds"
    found = judged(Check(kind="sooner", algorithm="dgd"), metrics, **how)
    assert found.status == "does not hold" and "more in 1 (DSpodFL at 0.5)" in found.sentence


def test_sooner_is_not_decided_by_one_seed_or_by_seeds_that_disagree():
    how = {"kind": "delay_table", "over": (), "targets": [0.5]}
    for ours, theirs in (([1.0], [5.0]), ([1.0, 9.0, 2.0], [5.0, 3.0, 4.0])):
        metrics = pd.DataFrame([*timed("dspodfl", 0.9, ours), *timed("dgd", 0.9, theirs)])
        found = judged(Check(kind="sooner", algorithm="dspodfl"), metrics, **how)
        assert found.status == "cannot be told" and "the seeds do not decide DGD at 0.5" in found.sentence


@pytest.mark.parametrize(("delay", "word"), [(1.0, "cannot be told"), (9.0, "does not hold")])
def test_runs_that_end_early_are_not_later_than_what_they_were_not_waited_for(delay, word):
    """DGD gets to 0.5 at delay 5; DSpodFL has not when its runs end, before that or after it."""
    metrics = pd.DataFrame([*timed("dspodfl", 0.4, [delay] * 3), *timed("dgd", 0.9, [5.0, 5.1, 5.2])])
    how = {"kind": "delay_table", "over": (), "targets": [0.5]}
    assert judged(Check(kind="sooner", algorithm="dspodfl"), metrics, **how).status == word


def test_comparisons_that_are_not_decided_are_named_and_lower_nothing():
    metrics = pd.DataFrame([*timed("dspodfl", 0.6, [1.0, 1.1, 1.2]), *timed("dgd", 0.9, [5.0, 5.1, 5.2])])
    how = {"kind": "delay_table", "over": (), "targets": [0.5, 0.8]}
    found = judged(Check(kind="sooner", algorithm="dspodfl"), metrics, **how)
    assert found.status == "holds"
    assert "in 1 of 2 comparisons" in found.sentence
    assert "; runs end too early for DGD at 0.8 (0 to 0)" in found.sentence


def test_the_ratio_tells_which_link_draw_was_printed():
    metrics = pd.DataFrame(
        [
            line
            for seed in (0, 1, 2)
            for draw, share in (("symmetric", 0.5), ("two_sided", 0.4))
            for line in rows("dspodfl", seed, [0, 0.9], share=share, point={"rates.link_draw": draw})
        ]
    )
    printed = [Printed(algorithm="dspodfl", target=0.5, processing=100.0, transmission=150.0)]
    how = {"kind": "delay_table", "over": ("rates.link_draw",), "targets": [0.5], "printed": printed}
    found = judged(Check(kind="ratio", algorithm="dspodfl"), metrics, **how)
    assert found.status == "does not hold"
    assert "1.00 with symmetric draws, 1.50 with two_sided draws" in found.sentence
    assert "prints 1.50" in found.sentence and "nearest to two_sided" in found.sentence


def test_several_claim_checks_make_one():
    def said(*words):
        return overall([ClaimCheck(word, "", "best") for word in words])

    assert said("holds", "holds") == "holds"
    assert said("holds", "does not hold") == "holds in part"
    assert said("holds", "cannot be told") == "holds"  # what cannot be decided does not lower a headline
    assert said("holds in part", "cannot be told") == "holds in part"
    assert said("does not hold", "cannot be told") == "does not hold"
    assert said() == said("cannot be told") == "cannot be told"


@pytest.mark.parametrize("kind", sorted(kinds()))
def test_every_check_can_say_that_it_cannot_tell(kind):
    metrics = swept({"rg": [0.1, 0.2]})
    check = Check(kind=kind, algorithm="dspodfl")
    made = experiment(kind="sweep", check=[check], at_delay=10.0)
    reading = read(made, metrics)
    if kind == "sooner":
        reading = aggregation.to_targets(metrics, ["x"], [0.5])
    (found,) = check_claims(Evidence(metrics, reading, ["x"], made))
    assert found.status == "cannot be told" and found.sentence


def test_an_outcome_is_the_same_after_saving_and_loading(tmp_path):
    metrics = swept({"dspodfl": [0.9] * 5, "dgd": [0.5] * 5})
    made = experiment(check=[Check(kind="best", algorithm="dspodfl")], at_delay=10.0)
    (cell, *_) = made.model_copy(update={"over": [], "kind": "curves"}).cells()
    outcome = ExperimentResult.of(made, [cell], metrics, {"device": "cpu"})
    assert outcome.status == "holds"
    again = ExperimentResult.load(outcome.save(tmp_path / "out"))
    pd.testing.assert_frame_equal(again.metrics, metrics)
    assert again.checks == outcome.checks and again.about == {"device": "cpu"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "metrics.parquet", "table.csv", "figure.png", "figure.svg", "result.json", "manifest.json",
    }  # fmt: skip


def test_a_table_says_how_late_a_target_is_at_least():
    metrics = pd.DataFrame([*rows("dspodfl", 0, [0, 0.4], delay=9.0), *rows("dgd", 0, [0, 0.9], delay=5.0)])
    ours, theirs = (cell(row) for _, row in aggregation.to_targets(metrics, [], [0.5]).iterrows())
    assert ours == "> 9 0/1" and theirs == "5"


@pytest.mark.parametrize(
    ("dgd", "rg", "word"),
    [(0.35, 0.35, "holds"), (0.6, 0.6, "does not hold"), (0.6, 0.1, "holds in part"), (0.45, 0.45, "holds in part")],
)
def test_a_lead_is_compared_with_that_of_another_experiment(dgd, rg, word):
    """There DSpodFL is 0.2 ahead of the best other and 0.3 of their mean."""
    here = swept({"dspodfl": [0.7] * 3, "dgd": [dgd] * 3, "rg": [rg] * 3})
    there = swept({"dspodfl": [0.7] * 3, "dgd": [0.5] * 3, "rg": [0.3] * 3})
    made = experiment(kind="sweep", check=[Check(kind="lead", algorithm="dspodfl", baseline="there")], at_delay=10.0)
    (alone,) = check_claims(Evidence(here, read(made, here), ["x"], made))
    assert alone.status == "cannot be told" and "There must have been reproduced" in alone.sentence
    other = Evidence(there, read(made, there), ["x"], made)
    (found,) = check_claims(Evidence(here, read(made, here), ["x"], made, {"there": other}))
    assert found.status == word
    assert f"{0.7 - max(dgd, rg):.3f} and 0.200 ahead of the best other" in found.sentence


def test_what_varies_least_is_steadier_than_the_others():
    metrics = swept({"dspodfl": [0.5, 0.6, 0.5], "dgd": [0.5, 0.9, 0.5], "rg": [0.5, 0.55, 0.5]})
    found = judged(Check(kind="steadier", algorithm="dspodfl"), metrics, at_delay=10.0)
    assert found.status == "holds in part"
    assert "varies by 0.100 over x, less than 1 of 2 others: RG by 0.050 (difference −0.050" in found.sentence
    assert judged(Check(kind="steadier", algorithm="rg"), metrics, at_delay=10.0).status == "holds"
    assert judged(Check(kind="steadier", algorithm="dgd"), metrics, at_delay=10.0).status == "does not hold"


# --- tables of grids ------------------------------------------------------------------------------------------


def grid_outcome(metrics, kind="sweep", config="", **how):
    made = experiment(kind=kind, over=() if kind != "sweep" else ("x",), **how)
    return ExperimentResult(made.name, made.title, kind, made.axes, metrics, read(made, metrics), {}, config=config)


def test_a_table_of_a_sweep_says_what_its_numbers_are():
    metrics = swept({"dspodfl": [0.6, 0.7], "dgd": [0.4, 0.5]}, seeds=3)
    found = outcome_table(grid_outcome(metrics, at_delay=10.0))
    assert found.caption == "Accuracy: mean ± std over 3 seeds, where the raw total delay first reaches 10."
    assert [row.cells for row in found.rows] == [
        ("1", "0.600 ± 0.000", "0.400 ± 0.000"), ("2", "0.700 ± 0.000", "0.500 ± 0.000"),
    ]  # fmt: skip
    end = outcome_table(grid_outcome(metrics))
    assert end.caption == "Accuracy: mean ± std over 3 seeds, after 2 iterations."


def test_a_table_says_what_n_of_m_means_only_where_it_has_one():
    metrics = swept({"dspodfl": [0.6, 0.7], "dgd": [0.4, 0.5]}, seeds=3)
    slow = (metrics["algorithm"] == "dgd") & (metrics["x"] == 2) & (metrics["seed"] == 0)
    metrics.loc[slow, "delay_total"] /= 100
    found = outcome_table(grid_outcome(metrics, at_delay=10.0))
    assert found.rows[1].cells[2] == "0.500 ± 0.000 2/3"
    assert found.caption.endswith("n/m: n of m seeds got there without diverging, and the mean is over those.")


def test_a_table_counts_the_runs_that_diverged():
    metrics = swept({"dspodfl": [0.6, 0.7]}, seeds=3)
    metrics.loc[(metrics["x"] == 2) & (metrics["seed"] == 0) & (metrics["iteration"] > 0), "diverged"] = True
    found = outcome_table(grid_outcome(metrics, at_delay=10.0))
    assert found.rows[1].cells[1] == "0.700 ± 0.000 2/3" and found.notes == ("diverged: DSpodFL 1/3 at x: 2",)


def test_a_table_of_delays_says_what_its_numbers_are():
    metrics = pd.DataFrame([*timed("dspodfl", 0.4, [9.0, 9.0]), *timed("dgd", 0.9, [5.0, 5.0])])
    found = outcome_table(grid_outcome(metrics, "delay_table", targets=[0.5]))
    assert found.rows[0].cells == ("0.5", "> 9 0/2", "5")
    assert found.caption == (
        "Raw total delay until the target accuracy is first reached: median over 2 seeds. n/m: n of m seeds reached "
        "it, the others count as infinitely late (>: at least)."
    )


def test_a_table_of_printed_accuracies_says_what_is_in_brackets():
    metrics = pd.DataFrame([*rows("dgd", 0, [0.1, 0.7]), *rows("dgd", 1, [0.1, 0.9])])
    printed = [Printed(algorithm="dgd", iteration=1, accuracy=0.75)]
    found = outcome_table(grid_outcome(metrics, "accuracy_table", iterations=[1], printed=printed))
    assert found.rows[0].cells == ("1", "0.800 ± 0.141\n(paper 0.75: +0.050)")
    assert found.caption.endswith("after numbers of iterations. in brackets: the paper's number, and ours less that.")


def test_a_sweep_can_be_read_at_another_cost():
    metrics = swept({"dspodfl": [0.6, 0.7]}).assign(bytes=lambda t: 100 * t["iteration"])
    outcome = grid_outcome(metrics, at_delay=10.0)
    assert [row.cells[1] for row in outcome_table(outcome, Cost("delay", 5.0)).rows] == [
        "0.300 ± 0.000",
        "0.350 ± 0.000",
    ]
    sent = outcome_table(outcome, Cost("bytes", 100.0))
    assert [row.cells[1] for row in sent.rows] == ["0.300 ± 0.000", "0.350 ± 0.000"]
    assert "where the number of bytes sent first reaches 100 B" in sent.caption
    assert at_cost(metrics, ["x"], Cost("bytes", 900.0))["reached"].tolist() == [0, 0]


def test_a_table_of_the_paper_is_not_read_at_another_cost():
    metrics = pd.DataFrame(timed("dgd", 0.9, [5.0, 5.0]))
    with pytest.raises(InputError, match="--at"):
        outcome_table(grid_outcome(metrics, "delay_table", targets=[0.5]), Cost("delay", 5.0))


def test_curves_are_compared_at_their_budget():
    metrics = pd.DataFrame([*timed("dspodfl", 0.9, [9.0, 9.5]), *timed("dgd", 0.4, [9.0, 9.1])])
    found = outcome_table(grid_outcome(metrics, "curves", config="[train]\nuntil = { delay = 9.0 }\n"))
    assert found.sentence == "At delay 9 DSpodFL is ahead of DGD by 0.500 ± 0.000; it wins in 2 of 2 seeds."


def test_a_sweep_of_a_regression_shows_its_error():
    metrics = swept({"dspodfl": [0.6, 0.7]}).assign(accuracy=np.nan, optimality_error=0.25, loss=0.5)
    found = outcome_table(grid_outcome(metrics, at_delay=10.0))
    assert found.rows[0].cells[1] == "0.250 ± 0.000" and found.caption.startswith("‖θ̄ − θ*‖²: mean ± std")


# --- the registry ---------------------------------------------------------------------------------------------


def test_a_claim_kind_is_added_by_registering_a_function(monkeypatch):
    monkeypatch.setattr("dspodfl.experiments.claims.base._KINDS", dict(kinds()))

    @claim_kind("never_below")
    def never_below(check, evidence):
        return ClaimCheck("holds", f"{check.algorithm} is never below.", check.kind)

    metrics = swept({"dspodfl": [0.5, 0.6]})
    made = experiment(check=[Check(kind="never_below", algorithm="dspodfl")], at_delay=10.0)
    (found,) = check_claims(Evidence(metrics, read(made, metrics), ["x"], made))
    assert found == ClaimCheck("holds", "dspodfl is never below.", "never_below")
    assert ClaimCheck.from_record(found.record()) == found


def test_a_claim_kind_is_registered_once():
    with pytest.raises(ValueError, match="'best': must be registered once"):
        claim_kind("best")(lambda check, evidence: None)


def test_an_unknown_claim_kind_is_refused_with_those_there_are():
    with pytest.raises(InputError, match=r"check.kind = 'bets': must be one of ahead, best, .*did you mean 'best'"):
        check_kinds([Check(kind="bets")])


def test_every_module_of_the_package_is_looked_into():
    assert set(kinds()) == {
        "ahead", "best", "exact", "falls", "flat", "gap", "lead", "ratio", "rises", "sooner", "steadier", "tuned",
        "within",
    }  # fmt: skip


# --- distance to the minimizer ----------------------------------------------------------------------------------


def _distances(ends, diverged=()):
    """Rows of runs that end at these distances: algorithm -> a value for each seed."""
    rows = [
        {"algorithm": a, "seed": seed, "iteration": k, "optimality_error": 1.0 if k == 0 else end,
         "diverged": k > 0 and (a, seed) in diverged}
        for a, some in ends.items() for seed, end in enumerate(some) for k in (0, 10)
    ]  # fmt: skip
    return pd.DataFrame(rows)


@pytest.mark.parametrize(
    ("ends", "diverged", "status"),
    [
        ({"extra": [1e-12, 1e-14], "dspodfl": [1e-3, 1e-2]}, (), "holds"),
        ({"extra": [1e-12, 1e-9], "dspodfl": [1e-3, 1e-2]}, (), "holds in part"),  # one seed is enough
        ({"extra": [1e-12, 1e-14], "dspodfl": [1e-3, 1e-12]}, (), "holds in part"),
        ({"extra": [1e-12, 1e-14], "dspodfl": [1e-3, 1e-2]}, {("extra", 1)}, "holds in part"),
        ({"extra": [1e-9, 1e-9], "dspodfl": [1e-12, 1e-2]}, (), "does not hold"),
        ({"extra": [1e-12, 1e-14]}, (), "cannot be told"),
        ({"extra": [float("nan")] * 2, "dspodfl": [float("nan")] * 2}, (), "holds in part"),
    ],
)
def test_exact_methods_end_below_the_distance_in_every_seed_and_the_others_above(ends, diverged, status):
    check = Check(kind="exact", among=["extra"], than=["dspodfl"], within=1e-10)
    evidence = Evidence(_distances(ends, diverged), pd.DataFrame(), [], experiment("curves", over=()))
    found = kinds()["exact"](check, evidence)
    assert found.status == status
    if status == "holds":
        assert found.sentence == (
            "1 of 1 end below 1e-10 in each of 2 seeds (largest: EXTRA 1.0e-12); "
            "1 of 1 others stall above it (least: DSpodFL 1.0e-03)."
        )
