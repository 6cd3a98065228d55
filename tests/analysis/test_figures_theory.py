"""Figures of the theory show what there is and nothing else."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex
from tests.analysis.test_figures import outside

from dspodfl.analysis.figures import COLOURS, NAMES, picture
from dspodfl.analysis.figures.theory import LINES, bound_sweep, bound_trajectory
from dspodfl.theory.assess import BOUND_PANELS as PANELS


def shown(figure):
    return [axis.get_ylabel() for axis in figure.axes if axis.has_data()]


def table(**columns):
    base = {"rho_tilde": 0.5, "largest_rate": 0.1, "radius": 0.9, "gap_optimality": 1.0, "gap_consensus": 2.0}
    return pd.DataFrame({"algorithm": "dgd", "x": [1.0, 2.0, 3.0], **base, **columns})


def test_a_sweep_shows_the_quantities_that_move():
    assert shown(bound_sweep(table(radius=[0.9, 0.8, 0.7]), ["x"], PANELS)) == ["ρ(Φ), linear rate"]
    moving = table(rho_tilde=[0.5, 0.4, 0.3], gap_consensus=[1.0, np.nan, 3.0])
    assert shown(bound_sweep(moving, ["x"], PANELS)) == ["ρ̃, contraction of mixing", "gap of ‖Θ − 1θ̄‖²"]
    assert shown(bound_sweep(table(), ["x"], PANELS)) == [
        "ρ̃, contraction of mixing"
    ]  # nothing moves: something is shown


def test_a_sweep_has_a_line_for_each_algorithm_and_value_of_the_other_axes():
    both = pd.concat([table(y="a", radius=[0.9, 0.8, 0.7]), table(y="b", radius=[0.8, 0.7, 0.6])])
    figure = bound_sweep(both, ["x", "y"], PANELS)
    (axis,) = figure.axes
    assert len(axis.lines) == 2
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["DGD", "y: a", "y: b"]
    assert len({line.get_linestyle() + str(line._unscaled_dash_pattern) for line in axis.lines}) == 2
    words = bound_sweep(table(x=["ring", "star", "path"], radius=[0.9, 0.8, 0.7]), ["x"], PANELS)
    assert [tick.get_text() for tick in words.axes[0].get_xticklabels()] == ["ring", "star", "path"]
    assert all(line.get_linestyle() == "None" for line in words.axes[0].lines)  # categories are not joined


@pytest.mark.parametrize("axes", [["x"], ["x", "rates.sgd.a"], ["x", "rates.sgd.a", "graph.kind"]])
def test_a_sweep_keeps_the_colours_of_the_algorithms_and_its_legend_inside(axes):
    rows = [
        table(algorithm=name, radius=[0.9, 0.8, 0.7], gap_optimality=[1.0, 2.0, 30.0]).assign(
            **{"rates.sgd.a": a, "graph.kind": g}
        )
        for name in (*COLOURS, "a custom algorithm of thirty ch")
        for a, g in ((0.5, "ring"), (2.0, "a very long name of a kind of graph"), (4.0, "star"))[
            : 1 if len(axes) < 2 else 3
        ]
    ]
    figure = bound_sweep(pd.concat(rows, ignore_index=True), axes, PANELS, "ridge, linear, 10 clients")
    entries = {
        t.get_text(): h for t, h in zip(figure.legends[0].get_texts(), figure.legends[0].legend_handles, strict=True)
    }
    for name, paint in COLOURS.items():
        assert to_hex(entries[NAMES[name]].get_color()).upper() == paint
    for axis in figure.axes:
        if axis.has_data():
            drawn = {to_hex(line.get_color()).upper() for line in axis.lines}
            assert set(COLOURS.values()) < drawn and axis.get_ylabel() and axis.get_xlabel() == "x"
    assert outside(figure) == []


def test_a_trajectory_shows_bounds_and_what_was_measured_and_says_so_where_there_is_neither():
    k = np.arange(4)
    told = pd.DataFrame({"algorithm": "dgd", "iteration": k})
    for name in ("optimality_error", "consensus_error"):
        for line in LINES:
            told[f"{name}_{line}"] = 0.5**k
    alone = bound_trajectory(told)
    assert [len(axis.lines) for axis in alone.axes] == [3, 3]
    told["consensus_error"], told["consensus_error_error"] = np.array([0.0, 0.2, 0.1, 0.05]), 0.01
    assert [len(axis.lines) for axis in bound_trajectory(told).axes] == [3, 4]
    empty = bound_trajectory(pd.DataFrame({"algorithm": "dfedavg", "iteration": k}))
    assert all("nothing measured" in axis.texts[0].get_text() for axis in empty.axes)
    assert picture(bound_trajectory(told), "svg") == picture(bound_trajectory(told), "svg")
