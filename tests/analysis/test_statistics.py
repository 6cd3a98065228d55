"""Paired differences over seeds: the interval is SciPy's, and censored costs never decide more than is known."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from dspodfl.analysis import statistics as paired
from dspodfl.analysis.statistics import Reached, compare, compare_costs, deviation, difference, quantiles, spread

numbers = st.floats(-1e3, 1e3, allow_nan=False).map(lambda x: round(x, 6))
some = st.lists(numbers, min_size=2, max_size=12)


@given(some)
def test_the_interval_is_the_t_interval_of_scipy(values):
    assume(np.std(values) > 1e-6)
    found, expected = difference(values), stats.ttest_1samp(values, 0).confidence_interval(paired.LEVEL)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), rel=1e-9, abs=1e-9)
    assert found.mean == pytest.approx(np.mean(values))


@given(some)
def test_a_side_is_taken_only_where_the_t_test_rejects(values):
    assume(np.std(values) > 1e-6)
    p = stats.ttest_1samp(values, 0).pvalue
    assume(abs(p - 0.05) > 1e-6)
    side = difference(values).side
    assert (side != "undecided") == (p < 0.05)
    if side != "undecided":
        assert (side == "ahead") == (np.mean(values) > 0)


@given(st.dictionaries(st.integers(0, 9), numbers, max_size=8), st.dictionaries(st.integers(0, 9), numbers, max_size=8))
def test_pairs_are_the_seeds_of_both_and_swapping_sides_turns_the_sign(ours, theirs):
    one, other = compare(ours, theirs), compare(theirs, ours)
    lower = compare(ours, theirs, lower_is_better=True)
    assert one.pairs == other.pairs == len(ours.keys() & theirs.keys())
    assert one.wins + other.wins + one.ties == one.pairs
    if one.pairs:
        assert one.mean == pytest.approx(-other.mean) and one.half == pytest.approx(other.half)
        assert lower.mean == pytest.approx(other.mean) and lower.wins == other.wins


@given(some, st.floats(-5, 5))
def test_what_seeds_have_in_common_falls_out(values, shift):
    """Two algorithms that differ by the same amount in every seed are told apart, however much seeds differ."""
    ours = {seed: value + shift for seed, value in enumerate(values)}
    found = compare(ours, dict(enumerate(values)))
    assert found.mean == pytest.approx(shift, abs=1e-9)
    assert found.half == pytest.approx(0, abs=1e-9)


def test_one_pair_has_no_interval_and_decides_nothing():
    found = compare({0: 0.9}, {0: 0.1})
    assert (found.pairs, found.wins, found.half, found.low, found.high) == (1, 1, None, None, None)
    assert found.side == "undecided"


def test_no_pair_is_nothing():
    found = compare({0: 0.9}, {1: 0.1})
    assert found.pairs == 0 and found.half is None and found.side == "undecided"


def test_values_that_are_not_finite_are_left_out():
    found = compare({0: 0.5, 1: np.nan, 2: 0.7}, {0: 0.4, 1: 0.4, 2: np.inf})
    assert (found.pairs, found.wins) == (1, 1)


def test_rounding_is_a_tie():
    found = compare({0: 0.1 + 0.2, 1: 0.1 + 0.2}, {0: 0.3, 1: 0.3})
    assert (found.ties, found.wins, found.mean, found.side) == (2, 0, 0.0, "undecided")


@given(some)
def test_the_deviation_has_ddof_1(values):
    assert deviation(np.array(values)) == pytest.approx(np.std(values, ddof=1))


def test_one_seed_has_no_deviation():
    assert deviation(np.array([0.5])) is None and deviation(np.array([])) is None


# --- costs to a target, censored ------------------------------------------------------------------------------


def costs(*values):
    """Numbers are costs at which a target was reached; strings, costs at which a run ended without it."""
    return {n: Reached(float(value), not isinstance(value, str)) for n, value in enumerate(values)}


@given(st.lists(st.tuples(st.floats(1, 1e4), st.floats(1, 1e4)), min_size=2, max_size=10))
def test_costs_that_are_all_known_are_compared_by_their_logarithms(pairs):
    logs = np.log([b / a for a, b in pairs])
    assume(np.std(logs) > 1e-6)
    found = compare_costs(costs(*(a for a, _ in pairs)), costs(*(b for _, b in pairs)))
    p = stats.ttest_1samp(logs, 0).pvalue
    assume(abs(p - 0.05) > 1e-6)
    if p < 0.05:
        assert found.side == ("ahead" if logs.mean() > 0 else "behind")
    assert found.wins + found.losses <= len(pairs) and found.open == 0


def test_a_run_that_ended_later_without_the_target_is_later_by_at_least_that():
    found = compare_costs(costs(1, 1.1, 0.9), costs("10", "11", 10))
    assert (found.side, found.wins, found.losses, found.open) == ("ahead", 3, 0, 0)
    assert compare_costs(costs("10", "11", 10), costs(1, 1.1, 0.9)).side == "behind"


def test_a_run_that_ended_earlier_without_the_target_says_nothing():
    found = compare_costs(costs(10, 10, 10), costs("1", "1", "1"))
    assert (found.side, found.wins, found.losses, found.open) == ("undecided", 0, 0, 3)
    assert compare_costs(costs("1", "1"), costs("1", "1")).side == "undecided"


def test_where_a_bound_is_infinite_a_sign_test_decides():
    ours, theirs = costs(*[1] * 11, "5"), costs(*[5] * 11, 1)
    found = compare_costs(ours, theirs)
    assert (found.side, found.wins, found.losses) == ("ahead", 11, 1)
    assert compare_costs(costs(1, 1, "5"), costs(5, 5, 1)).side == "undecided"


def test_one_seed_decides_no_cost():
    assert compare_costs(costs(1), costs(100)).side == "undecided"


@given(st.lists(st.tuples(st.floats(1, 1e3), st.floats(1, 1e3), st.booleans(), st.booleans()), min_size=2, max_size=8))
def test_waiting_longer_never_turns_a_known_order(pairs):
    """A seed that is won or lost stays so whatever the censored cost truly is."""
    ours = {n: Reached(a, r) for n, (a, _, r, _) in enumerate(pairs)}
    theirs = {n: Reached(b, r) for n, (_, b, _, r) in enumerate(pairs)}
    before = compare_costs(ours, theirs)
    late = [{n: each if each.reached else Reached(1e9, True) for n, each in some.items()} for some in (ours, theirs)]
    after = compare_costs(*late)
    assert after.wins >= before.wins and after.losses >= before.losses


@pytest.mark.parametrize(
    ("values", "mean", "std"),
    [
        ([], None, None),
        ([np.nan], None, None),
        ([2.0, np.nan], 2.0, None),
        ([1.0, 3.0], 2.0, 2**0.5),
        ([1.0, np.inf], None, None),
        ([1.7e308, 1.7e308], None, None),
    ],
)
def test_a_spread_leaves_out_what_is_missing_and_is_none_where_it_overflows(values, mean, std):
    assert spread(values) == {"mean": mean, "std": std if std is None else pytest.approx(std, rel=1e-15)}


def test_quartiles_count_what_is_missing_as_later_than_all_others():
    assert quantiles([1.0, np.nan, 3.0, 2.0]) == {"median": 2.5, "quartile1": 1.75, "quartile3": None, "mean": None}
