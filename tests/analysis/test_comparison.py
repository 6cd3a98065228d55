"""The comparison of a study: what its table says of budgets, targets, runs that ended early, and who is ahead."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dspodfl.analysis.comparison import compare, sentence, table
from dspodfl.analysis.costs import Cost
from dspodfl.analysis.measures import ACCURACY, ERROR
from dspodfl.analysis.metrics import METRICS
from dspodfl.analysis.targets import choose_targets
from dspodfl.ui.console.results import print_table

BUDGET = {"train": {"until": {"delay": 100.0}}}


def run(algorithm, seed, points, *, diverged=False, cost=1.0, **more):
    """Rows of a run: (delay, accuracy) at iterations that cost some delay each; it may diverge in its last row."""
    rows = []
    for n, (delay, accuracy) in enumerate(points):
        row = dict.fromkeys(METRICS, np.nan) | {"algorithm": algorithm, "seed": seed, "iteration": round(delay / cost)}
        row |= {"accuracy": accuracy, "loss": 1.0, "delay_total": float(delay), "delay_total_normalized": delay / 10}
        row |= {"bytes": int(1000 * delay), "diverged": diverged and n == len(points) - 1}
        rows.append(row | more)
    return rows


def frame(*runs):
    return pd.DataFrame([row for some in runs for row in some])


def straight(algorithm, finals, **more):
    """A run a seed that goes straight to its final accuracy at delay 100."""
    return [
        row
        for seed, final in enumerate(finals)
        for row in run(algorithm, seed, [(d, 0.1 + (final - 0.1) * d / 100) for d in range(0, 101, 10)], **more)
    ]


def shown(metrics, config=BUDGET, study=None, at=None):
    return table(compare(metrics, config, study, at), "a study", config)


def cells(metrics, *more, **given):
    return {row.cells[0]: row.cells[1:] for row in shown(metrics, *more, **given).rows}


# --- who is ahead ---------------------------------------------------------------------------------------------


def test_the_sentence_gives_the_paired_difference_its_interval_and_the_wins():
    ours, theirs = [0.60, 0.66, 0.63], [0.61, 0.64, 0.60]
    metrics = frame(straight("dspodfl", ours), straight("sporadic_sgd", theirs))
    gaps = np.subtract(ours, theirs)
    interval = stats.ttest_rel(ours, theirs).confidence_interval(0.95)
    half = (interval.high - interval.low) / 2
    assert shown(metrics).sentence == (
        f"At delay 100 DSpodFL leads by {gaps.mean():.3f} ± {half:.3f} over Sporadic SGDs; it wins in 2 of 3 seeds, "
        "which does not decide it."
    )


def test_ahead_is_said_where_the_interval_is_on_one_side():
    metrics = frame(straight("dspodfl", [0.60, 0.71, 0.65]), straight("dgd", [0.50, 0.60, 0.55]))
    assert shown(metrics).sentence.startswith("At delay 100 DSpodFL is ahead of DGD by 0.103 ± 0.014; it wins in 3 of")


def test_seeds_that_differ_much_do_not_hide_a_steady_lead():
    """Unpaired, the spread of the seeds is ten times the difference."""
    levels = [0.3, 0.5, 0.7, 0.9]
    metrics = frame(straight("dspodfl", [x + 0.02 for x in levels]), straight("dgd", levels))
    assert "is ahead of DGD by 0.020 ± 0.000" in shown(metrics).sentence


def test_others_that_the_leader_is_ahead_of_are_named():
    metrics = frame(
        straight("rg", [0.30, 0.31, 0.32]),
        straight("dspodfl", [0.60, 0.66, 0.63]),
        straight("dgd", [0.61, 0.64, 0.60]),
        straight("dfedavg", [0.20, 0.22, 0.21]),
    )
    assert shown(metrics).sentence.endswith("It is ahead of RG and DFedAvg.")


def test_one_seed_has_no_interval_and_no_deviation_and_says_so():
    metrics = frame(straight("dspodfl", [0.6]), straight("dgd", [0.5]))
    found = shown(metrics)
    assert "leads by 0.100 over DGD; with one seed there is no interval" in found.sentence
    assert "±" not in found.caption and all("±" not in cell for row in found.rows for cell in row.cells)


def test_equal_algorithms_are_level():
    metrics = frame(straight("dspodfl", [0.6, 0.7]), straight("dgd", [0.6, 0.7]))
    assert shown(metrics).sentence == "At delay 100 DSpodFL and DGD are level."


def test_one_algorithm_is_compared_with_nothing():
    assert shown(frame(straight("dspodfl", [0.6, 0.7]))).sentence == ""


@given(st.lists(st.lists(st.floats(0, 1).map(lambda x: round(x, 3)), min_size=3, max_size=3), min_size=2, max_size=5))
def test_the_leader_is_never_behind_on_average(finals):
    names = ["dspodfl", "dgd", "rg", "sporadic_sgd", "dfedavg"]
    metrics = frame(*(run(name, s, [(0, 0.1), (100, v)]) for name, vs in zip(names, finals, strict=False)
                      for s, v in enumerate(vs)))  # fmt: skip
    found = compare(metrics, BUDGET)
    assert found.leads[0].first.mean == pytest.approx(max(np.mean(vs) for vs in finals))
    assert all(lead.difference.mean >= 0 for lead in found.leads)


# --- accuracy at the common budget ----------------------------------------------------------------------------


def test_every_run_is_read_at_its_first_row_that_has_spent_the_budget():
    metrics = frame(run("dspodfl", 0, [(0, 0.1), (99, 0.5), (101, 0.6)]), run("dgd", 0, [(0, 0.1), (140, 0.4)]))
    assert cells(metrics)["DSpodFL"][0] == "0.600" and cells(metrics)["DGD"][0] == "0.400"
    assert shown(metrics).columns[1].line == "accuracy at delay 100"


def test_a_run_that_ended_by_its_cap_is_counted_named_with_its_cost_and_left_out():
    metrics = frame(
        straight("dspodfl", [0.6, 0.7, 0.8]),
        straight("dgd", [0.5, 0.5]),
        run("dgd", 2, [(0, 0.1), (81.2, 0.99)]),
    )
    found = shown(metrics)
    assert cells(metrics)["DGD"][0] == "0.500 ± 0.000 2/3"
    assert "DGD seed 2 ended at delay 81.2 of 100 (cap)" in found.notes
    assert "wins in 2 of 2 seeds" in found.sentence


def test_a_run_that_diverged_is_counted_in_its_row_and_named():
    metrics = frame(
        straight("dspodfl", [0.6, 0.7]),
        straight("dgd", [0.5]),
        run("dgd", 1, [(0, 0.1), (40, np.nan)], diverged=True),
    )
    found = shown(metrics)
    row = next(row for row in found.rows if row.cells[0] == "DGD")
    assert (row.cells[1], row.remark) == ("0.500 1/2", "1 diverged")
    assert "DGD seed 1 diverged at iteration 40, delay 40" in found.notes


def test_a_diverged_run_that_had_spent_the_budget_is_no_value_either():
    metrics = frame(straight("dspodfl", [0.6, 0.7]), run("dspodfl", 2, [(0, 0.1), (120, np.nan)], diverged=True))
    assert cells(metrics)["DSpodFL"][0].endswith(" 2/3")


def test_a_run_whose_loss_overflowed_without_a_flag_counts_as_diverged():
    rows = [{**row, "accuracy": np.nan} for row in straight("dgd", [0.5, 0.5])]
    metrics = frame(rows)
    metrics.loc[(metrics["seed"] == 1) & (metrics["delay_total"] > 50), "loss"] = np.inf
    (row,) = shown(metrics).rows
    assert row.cells[1] == "1.000 1/2" and row.remark == "1 diverged"


def test_where_all_diverged_the_table_says_so():
    metrics = frame(*(run("dgd", s, [(0, 0.1), (40, np.nan)], diverged=True) for s in (0, 1)))
    found = shown(metrics)
    assert found.rows[0].cells[1] == "– 0/2" and found.sentence == "Every run diverged."


def test_rows_that_0_1_wrote_after_a_run_had_ended_are_not_its_last():
    """0.1 went on writing rows with the same counters until the last iteration of the study."""
    resting = [(0, 0.1), (50, 0.4), (102, 0.6)]
    rows = run("dspodfl", 0, resting)
    rows += [{**rows[-1], "iteration": k, "diverged": False} for k in (300, 400)]
    found = compare(frame(rows), {"train": {"until_delay": 100.0, "iterations": 400}})
    assert found.at == Cost("delay", 100.0)
    assert found.standings[0].values == {0: 0.6}


def test_an_algorithm_read_in_less_than_half_of_its_seeds_is_not_ranked():
    metrics = frame(
        straight("dspodfl", [0.6, 0.7, 0.8]),
        straight("rg", [0.5, 0.6, 0.7]),
        run("dgd", 0, [(0, 0.1), (100, 0.99)]),
        run("dgd", 1, [(0, 0.1), (10, 0.2)]),
        run("dgd", 2, [(0, 0.1), (10, 0.2)]),
    )
    assert "DSpodFL is ahead of RG" in shown(metrics).sentence and "DGD" not in shown(metrics).sentence


def test_the_budget_may_be_bytes_or_a_normalized_delay():
    metrics = frame(straight("dspodfl", [0.6, 0.7]), straight("dgd", [0.5, 0.6]))
    sent = shown(metrics, {"train": {"until": {"bytes": 50_000}}})
    assert sent.columns[1].line == "accuracy at 50 kB sent" and "At 50 kB sent DSpodFL" in sent.sentence
    assert sent.columns[2].line.startswith("bytes to 0.")
    normalized = shown(metrics, {"train": {"until": {"normalized_delay": 5.0}}})
    assert normalized.columns[1].line == "accuracy at normalized delay 5"
    assert "the normalized total delay first reaches 5" in normalized.caption


def test_the_budget_of_the_summary_comes_first():
    metrics = frame(straight("dspodfl", [0.6, 0.7]))
    found = compare(metrics, {"train": {"iterations": 100}}, {"budget": {"kind": "delay", "value": 50.0}})
    assert found.at == Cost("delay", 50.0)


# --- iterations alone, and other costs ------------------------------------------------------------------------


def test_without_a_budget_the_table_is_read_at_the_end_of_the_iterations_and_says_so():
    metrics = frame(straight("dspodfl", [0.6, 0.7]), straight("dgd", [0.7, 0.8], cost=1.0))
    found = shown(metrics, {"train": {"iterations": 100}}, {"iterations": 100, "iterations_done": 100})
    assert found.columns[1].line == "accuracy at iteration 100" and found.columns[-1].line == "delay in all"
    assert "after 100 of 100 iterations" in found.caption
    assert any("equal iterations cost the algorithms different delays" in note for note in found.notes)
    assert not any("(cap)" in note for note in found.notes)


def test_a_budget_of_iterations_is_told_as_iterations_alone_are():
    """A configuration with iterations alone has a budget of that kind."""
    budget = {"kind": "iterations", "value": 100}
    study = {"budget": budget, "iterations": 100, "iterations_done": 40, "complete": False}
    some = [(d, 0.1) for d in range(0, 41, 10)]
    metrics = frame(run("dspodfl", 0, some), run("dgd", 0, some, diverged=True), run("dgd", 1, some, diverged=True))
    found = shown(metrics, {"train": {"iterations": 100}}, study)
    assert "after 40 of 100 iterations" in found.caption
    assert "DGD seeds 0 and 1 diverged from iteration 40 on" in found.notes
    assert any("equal iterations cost the algorithms different delays" in note for note in found.notes)


def test_a_table_is_read_at_the_cost_that_is_asked_for():
    metrics = frame(straight("dspodfl", [0.6, 0.7]), straight("dgd", [0.5, 0.6]))
    found = cells(metrics, at=Cost("delay", 40.0))
    assert found["DSpodFL"][0].startswith(f"{0.1 + 0.55 * 0.4:.3f} ±")
    assert "At delay 40 DSpodFL" in shown(metrics, at=Cost("delay", 40.0)).sentence


def test_runs_that_do_not_get_to_the_cost_that_is_asked_for_are_counted():
    metrics = frame(straight("dspodfl", [0.6, 0.7]), run("dspodfl", 2, [(0, 0.1), (30, 0.3)]))
    found = shown(metrics, at=Cost("delay", 60.0))
    assert found.rows[0].cells[1].endswith(" 2/3")
    assert "DSpodFL seed 2 ended at delay 30 of 60 (cap)" in found.notes
    far = shown(metrics, at=Cost("delay", 5000.0))
    assert far.sentence == "No run gets to delay 5,000." and far.rows[0].cells[1] == "– 0/3"
    assert "DSpodFL seeds 0 and 1 ended at delay 100 of 5,000 (budget)" in far.notes


def test_an_algorithm_without_a_row_near_the_cost_is_not_ranked_and_named():
    """It would be read much later than the others, and win by that."""
    metrics = frame(
        *(run("dgd", s, [(0, 0.1), (100, 0.9)]) for s in (0, 1)),
        straight("dspodfl", [0.6, 0.7]),
        straight("rg", [0.5, 0.6]),
    )
    found = shown(metrics, at=Cost("delay", 20.0))
    assert "DSpodFL is ahead of RG" in found.sentence and "DGD" not in found.sentence
    assert "DGD was not evaluated between delay 20 and delay 100, where it is read: not ranked" in found.notes
    assert "DGD leads by 0.250" in shown(metrics).sentence  # at the budget every run has a row


def test_an_unfinished_study_is_read_at_what_every_run_has_spent():
    metrics = frame(straight("dspodfl", [0.6, 0.7]), *(run("dgd", s, [(0, 0.1), (30, 0.2)]) for s in (0, 1)))
    found = compare(metrics, BUDGET, {"complete": False})
    assert found.at == Cost("delay", 30.0)
    assert sentence(found).startswith("So far, at delay 30 DSpodFL")


# --- targets --------------------------------------------------------------------------------------------------


def test_targets_are_chosen_among_those_that_somebody_reaches_in_most_seeds():
    metrics = frame(
        straight("dspodfl", [0.63, 0.64, 0.62]), straight("dgd", [0.48, 0.47, 0.48]), straight("rg", [0.31, 0.9, 0.3])
    )
    assert compare(metrics, BUDGET).targets == [0.3, 0.45, 0.6]
    assert not compare(metrics, BUDGET).missed


def test_the_default_targets_of_the_configuration_do_not_stop_the_choice():
    metrics = frame(straight("dspodfl", [0.35, 0.36]), straight("dgd", [0.2, 0.21]))
    config = BUDGET | {"eval": {"targets": [0.4, 0.6, 0.75]}}
    assert max(compare(metrics, config).targets) == 0.35


def test_targets_that_were_given_stay_and_those_nobody_reaches_are_named():
    metrics = frame(straight("dspodfl", [0.6, 0.7]), straight("dgd", [0.5, 0.6]))
    config = BUDGET | {"eval": {"targets": [0.33, 0.95]}}
    found = compare(metrics, config)
    assert (found.targets, found.missed) == ([0.33], [0.95])
    assert "no run reaches 0.95" in table(found, "", config).notes


def test_the_cost_of_a_target_is_a_multiple_of_the_best():
    metrics = frame(
        *(run("dspodfl", s, [(0, 0.1), (20, 0.5), (100, 0.6)]) for s in (0, 1)),
        *(run("dgd", s, [(0, 0.1), (50, 0.5), (100, 0.6)]) for s in (0, 1)),
        *(run("rg", s, [(0, 0.1), (100, 0.4)]) for s in (0, 1)),
    )
    config = BUDGET | {"eval": {"targets": [0.5]}}
    found = cells(metrics, config)
    assert [found[name][1] for name in ("DSpodFL", "DGD", "RG")] == ["1.00×", "2.50×", "> 5.00× 0/2"]
    assert shown(metrics, config).columns[2].line == "delay to 0.5 1× = 20"


def test_nobody_reaches_a_target_and_the_table_has_none():
    metrics = frame(straight("dspodfl", [0.1, 0.1]), straight("dgd", [0.1, 0.1]))
    found = shown(metrics)
    assert len(found.columns) == 2


def test_a_target_that_the_initial_model_meets_is_not_chosen_and_has_no_multiple_where_it_is_given():
    metrics = frame(straight("dspodfl", [0.6, 0.7]), straight("dgd", [0.5, 0.6]))
    assert min(compare(metrics, BUDGET).targets) > 0.1
    assert cells(metrics, BUDGET | {"eval": {"targets": [0.05]}})["DGD"][1] == "0"


@given(st.lists(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=4), min_size=1, max_size=5), st.floats(0, 0.5))
def test_every_chosen_target_is_round_and_reached_by_somebody_in_most_seeds(finals, start):
    runs = {
        str(n): {
            s: pd.DataFrame({"accuracy": [start, max(v, start)], "delay_total": [0.0, 1.0]}) for s, v in enumerate(vs)
        }
        for n, vs in enumerate(finals)
    }
    targets = choose_targets(runs, ACCURACY)
    assert len(targets) <= 3 and targets == sorted(set(targets))
    for target in targets:
        assert target > start and round(100 * target) == pytest.approx(100 * target)
        reached = [np.mean([max(v, start) >= target for v in vs]) for vs in finals]
        assert max(reached) >= 0.5


# --- regression -----------------------------------------------------------------------------------------------


def regression(algorithm, finals):
    rows = [row for seed, final in enumerate(finals)
            for row in run(algorithm, seed, [(d, np.nan) for d in (0, 50, 100)])]  # fmt: skip
    for n, row in enumerate(rows):
        final = finals[n // 3]
        row["optimality_error"] = [2.0, (2 * final) ** 0.5, final][n % 3]
        row["loss"] = row["optimality_error"] + 1
    return rows


def test_regression_is_compared_by_its_error_and_the_smaller_is_better():
    metrics = frame(regression("dspodfl", [0.011, 0.012, 0.010]), regression("dgd", [0.11, 0.12, 0.10]))
    found = compare(metrics, BUDGET)
    assert found.measure is ERROR and found.leads[0].first.algorithm == "dspodfl"
    assert found.targets == sorted(found.targets, reverse=True) and 0.1 >= found.targets[-1] >= 0.01
    text = shown(metrics)
    assert text.sentence.startswith("At delay 100 DSpodFL is ahead of DGD by 0.099 ± 0.022 in ‖θ̄ − θ*‖²")
    assert [column.line for column in text.columns[1:3]] == ["‖θ̄ − θ*‖² at delay 100", "loss"]


def test_regression_without_a_known_optimum_is_compared_by_its_loss():
    metrics = frame(regression("dspodfl", [0.01, 0.01]), regression("dgd", [0.1, 0.1])).assign(optimality_error=np.nan)
    assert compare(metrics, BUDGET).measure.column == "loss"
    assert shown(metrics).sentence.startswith("At delay 100 DSpodFL is ahead of DGD by 0.090 ± 0.000 in loss")


# --- how it looks ---------------------------------------------------------------------------------------------


def test_a_thinned_evaluation_is_said():
    metrics = frame(straight("dspodfl", [0.6, 0.7]))
    config = BUDGET | {"eval": {"samples": 500, "clients": 20}}
    assert shown(metrics, config).notes == (
        "evaluated on 500 test samples and 20 clients only (eval.samples, eval.clients)",
    )
    assert not shown(metrics, BUDGET | {"eval": {"samples": None}}).notes


def test_an_evaluation_of_more_samples_than_there_are_is_one_of_all():
    config, metrics = BUDGET | {"eval": {"samples": 9999, "clients": 20}}, frame(straight("dspodfl", [0.6, 0.7]))
    study = {"evaluated": {"samples": 60, "clients": 20, "note": None}}
    assert not table(compare(metrics, config, study), "", config).notes
    study["evaluated"]["note"] = "accuracies and losses are those of 20 of 30 clients"
    notes = table(compare(metrics, config, study), "", config).notes
    assert notes == ("evaluated on 60 test samples and 20 clients only (eval.samples, eval.clients)",)


def five(spoiled):
    names = {"dspodfl": 0.634, "dgd": 0.568, "rg": 0.486, "sporadic_sgd": 0.625, "dfedavg": 0.302}
    metrics = frame(*(straight(name, [level - 0.03, level, level + 0.03]) for name, level in names.items()))
    metrics["delay_total"] *= 100
    if spoiled:
        metrics = metrics[(metrics["seed"] != 2) | (metrics["delay_total"] < 8200)]
        lost = (metrics["seed"] == 1) & (metrics["delay_total"] > 5000) & (metrics["algorithm"] == "sporadic_sgd")
        metrics.loc[lost, ["diverged", "accuracy"]] = [True, np.nan]
    return metrics


@pytest.mark.parametrize("spoiled", [False, True])
@pytest.mark.parametrize("config", [{"train": {"until": {"delay": 10000}}}, {"train": {"iterations": 100}}])
def test_five_algorithms_and_three_targets_fit_80_columns(config, spoiled, monkeypatch, capsys):
    from dspodfl.study import terminal
    from dspodfl.ui.console import results as display

    found = shown(five(spoiled), config)
    assert len(found.rows) == 5 and sum("to\n" in column.head for column in found.columns) == 3
    monkeypatch.setattr(display, "OUT", terminal.Console(terminal.OUT.stream, width=80))
    print_table(found)
    lines = capsys.readouterr().out.splitlines()
    assert max(len(line) for line in lines) <= 80
    assert not any("…" in line for line in lines if "=…" not in line)


def test_one_table_is_shown_alike_as_html_and_csv():
    found = shown(five(True), {"train": {"until": {"delay": 10000}}})
    html, csv = found.to_html(), found.to_csv()
    for row in found.rows:
        assert all(cell.replace(">", "&gt;") in html for cell in row.cells)
        assert ",".join(row.cells) in csv
    assert found.sentence in html and "1 diverged" in html and "1 diverged" in csv


def test_html_of_a_table_is_escaped():
    metrics = frame(straight("<script>alert(1)</script>", [0.6, 0.7]))
    html = table(compare(metrics, BUDGET), "<b>", BUDGET).to_html()
    assert "<script>" not in html and "<b>" not in html
