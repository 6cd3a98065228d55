"""One number has one text, wherever it is shown."""

import doctest
import io
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspodfl.analysis import formatting
from dspodfl.analysis.formatting import accuracy, count, delay, difference, quartiles, seconds, size, spread, to_csv

FUNCTIONS = (accuracy, count, delay, difference, formatting.measure, formatting.rate, formatting.times, seconds, size)


def test_the_examples_in_the_documentation_are_right():
    found = doctest.testmod(formatting)
    assert found.failed == 0 and found.attempted >= 15


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("value", [None, math.nan, math.inf, -math.inf, "text", True, np.nan, pd.NA])
def test_what_is_no_number_is_a_dash(function, value):
    assert function(value) == "–"


@pytest.mark.parametrize("function", [delay, formatting.measure, formatting.rate, seconds, size, formatting.times])
@given(value=st.floats(0, 1e300))
def test_any_number_has_a_short_text(function, value):
    assert 0 < len(function(min(value, 1e12) if function in (seconds, size) else value)) <= 15


@given(st.floats(1e-3, 9e5))
def test_a_delay_is_shown_to_half_a_percent(value):
    assert float(delay(value).replace(",", "")) == pytest.approx(value, rel=6e-3)


def test_numbers_of_numpy_are_numbers():
    assert (
        accuracy(np.float32(0.5)) == "0.500"
        and count(np.int64(1234)) == "1,234"
        and delay(np.float64(2e7)) == "2.0e+07"
    )


def test_a_deviation_that_there_is_not_is_not_shown_as_zero():
    assert spread(0.5, math.nan) == "0.500"
    assert spread(0.5, 0.0) == "0.500 ± 0.000"


def test_quartiles_that_were_never_reached_are_infinite():
    assert quartiles({"median": 5.0, "quartile1": 4.0, "quartile3": None}, 2) == "5 [4, ∞]"


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_a_number_read_back_from_csv_is_shown_as_before(values):
    text = to_csv(pd.DataFrame({"accuracy_mean": values}))
    again = pd.read_csv(io.BytesIO(text))["accuracy_mean"]
    assert [accuracy(v) for v in again] == [accuracy(v) for v in values]
