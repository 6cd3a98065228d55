"""The pictures of docs/algorithms.md: one of every method, small; and what they show of DSpodFL's bias is so."""

import numpy as np
import pandas as pd
import pytest
from scripts import algorithms_pictures, bias
from tests.edge import on_the_cpu

from dspodfl.algorithms import ALGORITHMS


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_method_has_a_small_picture(name):
    content = (algorithms_pictures.FOLDER / f"{name}.png").read_bytes()
    assert content[:4] == b"\x89PNG" and len(content) < 25_000, "run python -m scripts.algorithms_pictures"


def test_a_picture_has_one_curve_of_a_method_that_does_not_depend_on_the_rates_and_else_two():
    falling = pd.Series(np.geomspace(1, 1e-20, 5), index=range(0, 2000, 400))
    flat = pd.Series(0.1, index=falling.index)
    found = {("dspodfl", True): flat, ("dgd", False): flat / 10, ("d2", True): falling, ("d2", False): falling}
    one = algorithms_pictures.picture("d2", found)
    two = algorithms_pictures.picture("d2", found | {("d2", False): falling**0.5})
    assert one[:4] == b"\x89PNG" and one != two and len(two) < 25_000


def test_the_figure_of_the_bias_shows_what_is_measured():
    table = pd.read_csv(bias.CSV).set_index(["algorithm", "minimizer", "alpha"])["distance"]
    apart = float(table[table.index.get_level_values("minimizer") == "apart"].iloc[0])
    last = min(bias.RATES)
    assert table["dspodfl", "mean", last] == pytest.approx(apart, rel=0.05)
    assert max(table["dspodfl", "weighted", last], table[bias.INVERSE, "mean", last]) < 0.15 * apart
    for name in ("gradient_tracking", "sporadic_scaffnew"):
        assert table[name, "mean", last] < 1e-5 * apart
    for name, end in (("dspodfl", "weighted"), (bias.INVERSE, "mean")):
        falls = [table[name, end, alpha] for alpha in bias.RATES]
        assert falls == sorted(falls, reverse=True)


def test_a_short_run_of_it_gives_the_same_minimizers_and_the_exact_methods_are_ahead(monkeypatch):
    on_the_cpu(monkeypatch)
    found = bias.measured((0.05,), seeds=2, time=10.0).set_index(["algorithm", "minimizer"])["distance"]
    kept = pd.read_csv(bias.CSV)
    assert found["", "apart"] == pytest.approx(float(kept["distance"].iloc[-1]), rel=1e-3)
    assert found["gradient_tracking", "mean"] < 0.1 * found["dspodfl", "mean"]
    assert found["dspodfl", "weighted"] < found["dspodfl", "mean"]
    assert len(bias.drawn(kept).axes[0].lines) == 6
