"""Figures of the theory show what there is and nothing else."""

import numpy as np
import pandas as pd

from dspodfl.plots import picture
from dspodfl.plots.theory import LINES, course, sweep


def shown(figure):
    return [axis.get_title(loc="left") for axis in figure.axes if axis.has_data()]


def table(**columns):
    base = {"rho_tilde": 0.5, "largest_rate": 0.1, "radius": 0.9, "gap_optimality": 1.0, "gap_consensus": 2.0}
    return pd.DataFrame({"algorithm": "dgd", "x": [1.0, 2.0, 3.0], **base, **columns})


def test_a_sweep_shows_the_quantities_that_move():
    assert shown(sweep(table(radius=[0.9, 0.8, 0.7]), ["x"])) == ["ρ(Φ), linear rate"]
    moving = table(rho_tilde=[0.5, 0.4, 0.3], gap_consensus=[1.0, np.nan, 3.0])
    assert shown(sweep(moving, ["x"])) == ["ρ̃, contraction of mixing", "gap of ‖Θ − 1θ̄‖²"]
    assert shown(sweep(table(), ["x"])) == ["ρ̃, contraction of mixing"]  # nothing moves: something is shown


def test_a_sweep_has_a_line_for_each_algorithm_and_value_of_the_other_axes():
    both = pd.concat([table(y="a", radius=[0.9, 0.8, 0.7]), table(y="b", radius=[0.8, 0.7, 0.6])])
    (axis,) = sweep(both, ["x", "y"]).axes
    assert [line.get_label() for line in axis.lines] == ["y = a", "y = b"]
    words = sweep(table(x=["ring", "star", "path"], radius=[0.9, 0.8, 0.7]), ["x"])
    assert [tick.get_text() for tick in words.axes[0].get_xticklabels()] == ["ring", "star", "path"]


def test_a_course_shows_bounds_and_what_was_measured_and_says_so_where_there_is_neither():
    k = np.arange(4)
    told = pd.DataFrame({"algorithm": "dgd", "iteration": k})
    for name in ("optimality_error", "consensus_error"):
        for line in LINES:
            told[f"{name}_{line}"] = 0.5**k
    alone = course(told)
    assert [len(axis.lines) for axis in alone.axes] == [3, 3]
    told["consensus_error"], told["consensus_error_error"] = np.array([0.0, 0.2, 0.1, 0.05]), 0.01
    assert [len(axis.lines) for axis in course(told).axes] == [3, 4]
    empty = course(pd.DataFrame({"algorithm": "dfedavg", "iteration": k}))
    assert all("nothing measured" in axis.texts[0].get_text() for axis in empty.axes)
    assert picture(course(told), "svg") == picture(course(told), "svg")
