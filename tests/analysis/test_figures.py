"""Figures: fixed styles, mean and band, axes that span the budget, texts that fit, and nothing that cannot be drawn."""

import itertools
import warnings
from types import SimpleNamespace

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from tests.edge import tiny

from dspodfl import run
from dspodfl.algorithms import ALGORITHMS, PAPER
from dspodfl.analysis import aggregates as readings
from dspodfl.analysis import figures as plots
from dspodfl.analysis import median_run
from dspodfl.analysis.costs import from_config
from dspodfl.analysis.figures import COLOURS, NAMES, accuracy_vs_delay, colour, network, picture, style
from dspodfl.analysis.figures.graphs import node_places
from dspodfl.analysis.metrics import METRICS

OKABE_ITO = {"#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7", "#000000"}


def made_up(runs):
    """Metrics of runs {(algorithm, seed): {delay: accuracy}}; the normalized delay is a tenth of the raw one."""
    rows = []
    for (algorithm, seed), points in runs.items():
        for iteration, (delay, accuracy) in enumerate(points.items()):
            row = dict.fromkeys(METRICS, np.nan) | {"algorithm": algorithm, "seed": seed, "iteration": iteration}
            row |= {"accuracy": accuracy, "delay_total": delay, "delay_total_normalized": delay / 10}
            rows.append(row | {"diverged": accuracy is None or bool(np.isnan(accuracy))})
    return pd.DataFrame(rows).astype({"accuracy": float})


def lines(figure, panel=0):
    """Label -> (x, y) of each curve; without the thin rest and the marks of single runs."""
    return {
        line.get_label(): line.get_xydata().T
        for line in figure.axes[panel].lines
        if not line.get_label().startswith("_")
    }


def marks(figure, marker, panel=0):
    """Where single runs are marked."""
    return [tuple(line.get_xydata()[0]) for line in figure.axes[panel].lines if line.get_marker() == marker]


def note(figure):
    """What the foot of a figure says."""
    return " ".join(figure.get_supxlabel().split())


def delay_budget(value):
    return SimpleNamespace(column="delay_total", value=value)


def outside(figure):
    """The parts of a figure (panels with their labels, legends, notes) that are not wholly inside it."""
    canvas = FigureCanvasAgg(figure)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a font has not every sign
        canvas.draw()
        notes = [text for text in (figure._supxlabel, figure._suptitle) if text is not None]
        parts = [*figure.axes, *figure.legends, *notes]
        boxes = {str(part): part.get_tightbbox(canvas.get_renderer()) for part in parts}
    whole = figure.bbox.padded(1)
    return [name for name, at in boxes.items() if at and not all(whole.contains(*corner) for corner in at.corners())]


def band(figure, at, panel=0, which=0):
    """The lowest and the highest point of a band near x = at."""
    corners = figure.axes[panel].collections[which].get_paths()[0].vertices
    x = corners[np.argmin(np.abs(corners[:, 0] - at)), 0]
    y = corners[corners[:, 0] == x, 1]
    return y.min(), y.max()


THREE = {
    ("dspodfl", 0): {0: 0.1, 10: 0.2, 100: 0.5},
    ("dspodfl", 1): {0: 0.1, 10: 0.4, 100: 0.7},
    ("dspodfl", 2): {0: 0.1, 10: 0.3, 100: 0.9},
}


# --- colours --------------------------------------------------------------------------------------------------


def test_every_algorithm_has_its_fixed_colour_that_the_colour_blind_can_tell():
    assert COLOURS == {
        "dspodfl": "#D55E00",
        "dgd": "#0072B2",
        "rg": "#009E73",
        "sporadic_sgd": "#CC79A7",
        "dfedavg": "#56B4E9",
    }
    assert set(COLOURS.values()) < OKABE_ITO and len(set(COLOURS.values())) == 5
    assert set(COLOURS) == set(PAPER) and set(NAMES) == set(ALGORITHMS)


def test_algorithms_of_ones_own_have_further_colours_all_different():
    others = [f"own {n}" for n in range(6)]
    found = [colour(name, others) for name in [*COLOURS, *others]]
    assert len(set(found)) == 11
    assert colour("one too many", [*others, "one too many"]) == found[5]  # then from the beginning


def test_any_two_algorithms_differ_in_dashes_or_marker_as_well_as_in_colour():
    others = [f"own {n}" for n in range(35)]
    looks = [style.line(name, others) for name in [*COLOURS, *others]]
    pairs = [(str(line["linestyle"]), line["marker"]) for line in looks]
    assert len(set(pairs)) == len(pairs)
    assert len({str(line["linestyle"]) for line in looks[:5]}) == len({line["marker"] for line in looks[:5]}) == 5
    drawn = accuracy_vs_delay(made_up({(name, 0): {0: 0.1, 5: 0.2} for name in COLOURS})).axes[0].lines
    for one, other in itertools.combinations([line for line in drawn if line.get_label()[0] != "_"], 2):
        assert one._unscaled_dash_pattern != other._unscaled_dash_pattern
        assert one.get_marker() != other.get_marker()


@pytest.mark.parametrize("algorithms", [["dgd"], ["mine", "dgd", "dspodfl"], ["dspodfl", "rg", "dgd"]])
def test_an_algorithm_keeps_its_colour_in_every_company(algorithms):
    metrics = made_up({(name, 0): {0: 0.1, 5: 0.2} for name in algorithms})
    for axis in accuracy_vs_delay(metrics).axes:
        drawn = {
            line.get_label(): to_hex(line.get_color()).upper() for line in axis.lines if line.get_label()[0] != "_"
        }
        assert drawn["DGD"] == COLOURS["dgd"]
        assert len(set(drawn.values())) == len(algorithms)


# --- curves ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("panel", [0, 1])
def test_a_curve_is_the_mean_over_seeds_and_its_band_one_standard_deviation(panel):
    figure = accuracy_vs_delay(made_up(THREE))
    scale = (1, 10)[panel]
    x, y = lines(figure, panel)["DSpodFL"]
    assert x[-1] == pytest.approx(100 / scale)
    for delay, values in ((10, (0.2, 0.4, 0.3)), (100, (0.5, 0.7, 0.9)), (55, (0.35, 0.55, 0.6))):
        near = np.argmin(np.abs(x - delay / scale))
        exact = x[near] * scale
        values = [np.interp(exact, (10, 100), (run[10], run[100])) for run in THREE.values()] if exact > 10 else values
        assert y[near] == pytest.approx(np.mean(values), abs=1e-3)
        low, high = band(figure, x[near], panel)
        std = np.std(values, ddof=1)
        assert low == pytest.approx(np.mean(values) - std, abs=3e-3)
        assert high == pytest.approx(np.mean(values) + std, abs=3e-3)
    assert note(figure) == "Mean over 3 seeds; band: ±1 standard deviation over seeds."


def test_axes_are_named_and_say_in_few_words_what_raw_and_normalized_mean():
    figure = accuracy_vs_delay(made_up(THREE), "some study")
    raw, normalized = figure.axes
    assert raw.get_xlabel() == "total delay, raw\n(an event takes 1/its rate; mean over clients)"
    assert normalized.get_xlabel() == "total delay, normalized\n(2 per iteration in which everything fires)"
    assert raw.get_ylabel() == "test accuracy, mean over clients"
    assert figure.legends[0].get_title().get_text() == "some study"


UNEVEN = {
    (name, seed): {delay * cost * (1 + 0.1 * seed): 0.1 + 0.6 * delay / 100 for delay in range(0, 101, 5)}
    for name, cost in (("dspodfl", 1.0), ("dgd", 14.0), ("rg", 900.0))
    for seed in range(3)
}
"""All have one number of iterations, of which some cost 900 times as much."""


def widths(figure, panel):
    """The part of a panel's width that each curve, and its thin rest, spans."""
    axis = figure.axes[panel]
    (left, right), wide = axis.get_xlim(), axis.bbox.width
    found = {}
    for line in axis.lines:
        x = np.clip(line.get_xdata(), left, right)
        if len(x) > 2:
            pixels = axis.transData.transform([(value, 0.5) for value in (x[0], x[-1])])[:, 0]
            found[line.get_label()] = (pixels[1] - pixels[0]) / wide
    return found


@pytest.mark.parametrize("panel", [0, 1])
def test_no_curve_is_a_vertical_line_where_iterations_cost_very_different_delays(panel):
    figure = accuracy_vs_delay(made_up(UNEVEN))
    assert figure.axes[panel].get_xscale() == "log"
    found = widths(figure, panel)
    assert all(found[NAMES[name]] > 0.2 for name in ("dspodfl", "dgd", "rg"))


def test_with_a_budget_the_raw_panel_spans_it_for_every_algorithm():
    runs = {key: {d: a for d, a in points.items() if d <= 130} for key, points in UNEVEN.items()}
    runs = {key: points | {140.0 + key[1]: 0.5 + 0.1 * key[1]} for key, points in runs.items()}
    figure = accuracy_vs_delay(made_up(runs), budget=delay_budget(120.0))
    assert figure.axes[0].get_xlim() == (0.0, 120.0)
    curves = lines(figure)
    assert list(curves) == ["DSpodFL", "DGD", "RG"]
    for x, _ in curves.values():
        assert x[0] == 0.0 and x[-1] == pytest.approx(120.0)
    for x, _ in lines(figure, 1).values():
        assert x[0] == 0.0 or figure.axes[1].get_xscale() == "log"
    assert "Runs end where they reach the budget (total delay, raw: 120)." in note(figure)


def test_a_curve_ends_at_the_budget_with_what_tables_call_final():
    runs = {("dgd", seed): {0: 0.1, 60: 0.3, 100 * (1 + seed): 0.5 + 0.1 * seed, 500: 0.0} for seed in range(3)}
    figure = accuracy_vs_delay(made_up(runs), budget=delay_budget(100.0))
    x, y = lines(figure)["DGD"]
    assert (x[-1], y[-1]) == pytest.approx((100.0, 0.6))  # rows after the first beyond the budget do not count
    assert "the farthest: DGD, 3.00× the budget" in note(figure)


def test_runs_that_end_before_the_budget_are_counted_marked_and_not_averaged():
    runs = {("dgd", seed): {0: 0.1, 60: 0.3, 100: 0.5} for seed in range(2)} | {("dgd", 2): {0: 0.1, 40: 0.9}}
    figure = accuracy_vs_delay(made_up(runs), budget=delay_budget(100.0))
    x, y = lines(figure)["DGD (1 of 3 ended before the budget)"]
    assert (x[-1], y[-1]) == pytest.approx((100.0, 0.5))
    assert marks(figure, "x") == [(40.0, 0.9)]
    assert "Crosses: ends of runs that diverged or ended early" in note(figure)


@pytest.mark.parametrize(
    ("column", "label", "panels"),
    [
        ("bytes", "bytes sent\n(both directions of all links)", 3),
        ("iteration", "iterations", 3),
        ("delay_total_normalized", "total delay, raw\n(an event takes 1/its rate; mean over clients)", 2),
    ],
)
def test_another_budget_has_its_own_panel(column, label, panels):
    metrics = made_up(THREE).assign(bytes=lambda t: t["iteration"] * 1e6)
    figure = accuracy_vs_delay(metrics, budget=SimpleNamespace(column=column, value=2.0))
    assert figure.axes[0].get_xlabel() == label and len(figure.axes) == panels
    own = figure.axes[1 if column == "delay_total_normalized" else 0]
    assert own.get_xlim() == (0.0, 2.0)


def test_the_budget_is_found_in_the_configuration():
    assert from_config({"train": {"until": {"delay": 5000}}}).column == "delay_total"
    assert from_config({"train": {"until": {"bytes": 1e9, "delay": None}}}).value == 1e9
    assert from_config({"train": {"until_delay": 7.0}}).value == 7.0
    assert from_config({"train": {"iterations": 10}}) is None and from_config({}) is None


def test_one_huge_delay_does_not_take_the_whole_axis():
    runs = UNEVEN | {("dfedavg", seed): {0: 0.1, 1e3: 0.2, 1e14: 0.3} for seed in range(3)}
    figure = accuracy_vs_delay(made_up(runs))
    for panel in (0, 1):
        found = widths(figure, panel)
        assert all(found[NAMES[name]] > 0.15 for name in ("dspodfl", "dgd", "rg"))
    assert len(marks(figure, ">")) > 0 and "Arrows at the edge: runs that end beyond the axis." in note(figure)
    alone = {("dgd", seed): {0: 0.1, 10: 0.2, 20 * 10 ** (6 * (seed == 2)): 0.4} for seed in range(3)}
    assert accuracy_vs_delay(made_up(alone)).axes[0].get_xlim()[1] < 100


def test_beyond_what_all_seeds_cover_a_thin_line_goes_on_as_far_as_half_of_them():
    runs = {("dgd", seed): {0: 0.1, 10 * (1 + seed): 0.1 + 0.1 * seed} for seed in range(5)}
    figure = accuracy_vs_delay(made_up(runs))
    thin = [line.get_xdata() for line in figure.axes[0].lines if line.get_label() == "_rest"]
    assert thin[0][0] == 10 and thin[0][-1] == 30
    assert "thin: the mean over those that go on" in note(figure)


def test_a_curve_goes_as_far_as_every_run_does():
    runs = THREE | {("dspodfl", 2): {0: 0.1, 10: 0.3, 40: 0.9}}
    x, y = lines(accuracy_vs_delay(made_up(runs)))["DSpodFL"]
    assert x[-1] == pytest.approx(40)
    assert y[-1] == pytest.approx(
        np.mean([np.interp(40, (10, 100), (0.2, 0.5)), np.interp(40, (10, 100), (0.4, 0.7)), 0.9])
    )


def test_a_run_that_diverged_is_counted_and_does_not_cut_the_others_short():
    runs = THREE | {("dspodfl", 2): {0: 0.1, 10: np.nan, 40: np.nan}}
    curves = lines(accuracy_vs_delay(made_up(runs)))
    assert list(curves) == ["DSpodFL (1 of 3 diverged)"]
    x, y = curves["DSpodFL (1 of 3 diverged)"]
    assert marks(accuracy_vs_delay(made_up(runs)), "x") == [(0.0, 0.1)]
    assert x[-1] == pytest.approx(100) and y[-1] == pytest.approx(0.6)


def test_runs_that_all_diverged_are_drawn_as_far_as_they_came():
    runs = {("dgd", seed): {0: 0.1, 10: 0.3, 20: 0.2, 40: np.nan} for seed in range(2)}
    x, y = lines(accuracy_vs_delay(made_up(runs)))["DGD (2 of 2 diverged)"]
    assert x[-1] == pytest.approx(20) and y[-1] == pytest.approx(0.2)


def test_one_seed_has_a_band_without_width():
    figure = accuracy_vs_delay(made_up({("rg", 0): THREE["dspodfl", 0]}))
    low, high = band(figure, 50)
    assert low == pytest.approx(high)
    assert note(figure) == "One seed: no band."


def test_the_legend_names_the_algorithms_once():
    metrics = made_up({(name, 0): {0: 0.1, 5: 0.2} for name in [*ALGORITHMS, "mine"]})
    (legend,) = accuracy_vs_delay(metrics).legends
    assert sorted(text.get_text() for text in legend.get_texts()) == sorted([*NAMES.values(), "mine"])


LONG = [f"a custom algorithm of name {n:03}" for n in range(40)]


@pytest.mark.parametrize(
    ("names", "title"),
    [
        (["dspodfl"], "t"),
        (list(COLOURS), "fmnist-mini (labels per_client=1), svm, 10 clients, 3 seeds"),
        ([*COLOURS, *LONG[:3]], "eight algorithms"),
        ([*COLOURS, *LONG], "forty-five algorithms"),
        (["x" * 5000, "_hidden", "$a_$", "a\nb\x1b[31m", "名前" * 30], "long title " * 40),
    ],
)
@pytest.mark.parametrize("budget", [None, delay_budget(50.0)])
def test_legend_title_labels_and_note_are_inside_the_figure(names, title, budget):
    metrics = made_up({(name, seed): {0: 0.1, 5: 0.2, 60 + seed: 0.3} for name in names for seed in range(2)})
    figure = accuracy_vs_delay(metrics, title, budget)
    picture(figure, "png")
    assert outside(figure) == []
    (legend,) = figure.legends
    assert len(legend.get_texts()) == len(names)
    axes = [axis.get_window_extent() for axis in figure.axes]
    assert not any(legend.get_window_extent().overlaps(box) for box in axes)
    assert min(box.height for box in axes) > 250  # pixels, of 150 an inch


def test_two_long_names_that_are_cut_alike_are_two_entries():
    names = ["n" * 100 + str(k) + "n" * 100 for k in range(3)]
    (legend,) = accuracy_vs_delay(made_up({(name, 0): {0: 0.1, 5: 0.2} for name in names})).legends
    assert len(legend.get_texts()) == 3


def test_an_algorithm_without_a_value_is_in_the_legend():
    runs = {("dgd", 0): {0: np.nan, 1: np.nan}, ("rg", 0): {0: 0.1, 5: 0.2}}
    (legend,) = accuracy_vs_delay(made_up(runs)).legends
    assert [text.get_text() for text in legend.get_texts()] == ["DGD (1 of 1 diverged)", "RG"]


def regression(values, column="optimality_error"):
    metrics = made_up({("dgd", 0): dict.fromkeys(range(len(values)), np.nan)})
    return metrics.assign(diverged=False, **{column: values})


def test_regression_shows_the_distance_to_the_optimum_on_a_logarithmic_axis():
    figure = accuracy_vs_delay(regression([1.0, 0.1, 0.01]))
    assert figure.axes[0].get_yscale() == "log"
    assert figure.axes[0].get_ylabel() == "distance to the optimum ‖θ̄ − θ*‖²"
    assert lines(figure)["DGD"][1][-1] == pytest.approx(0.01)


def test_regression_without_a_known_optimum_shows_the_loss():
    figure = accuracy_vs_delay(regression([1.0, 0.1, 0.01], "loss"))
    assert figure.axes[0].get_yscale() == "linear"
    assert figure.axes[0].get_ylabel() == "test loss, mean over clients"


@pytest.mark.parametrize(
    "metrics",
    [
        pytest.param(regression([1.0, 1e200, 1e300]), id="errors so large that their squares overflow"),
        pytest.param(regression([1.0, 10.0, np.inf], "loss"), id="a loss that overflowed"),
        pytest.param(made_up({("dspodfl", 0): {0: 0.1}}), id="one point"),
        pytest.param(made_up({("dgd", 0): {0: 0.1, 1: 0.2}}).assign(delay_total=0.0), id="nothing ever fired"),
        pytest.param(made_up({("dgd", 0): {0: np.nan}}), id="nothing but divergence"),
        pytest.param(made_up({("dgd", 0): {0: 0.1, 1e-12: 0.2, 1e30: 0.3}}), id="delays of all sizes"),
        pytest.param(made_up({("dgd", 0): {0: 0.1, 5: 0.2}, ("rg", 0): {0: 0.1}}), id="one that has only begun"),
        pytest.param(made_up({("$x_$ <&", 0): {0: 0.1, 5: 0.2}}), id="a name with signs in it"),
    ],
)
def test_whatever_a_study_comes_to_can_be_drawn_without_a_warning(metrics):
    figure = accuracy_vs_delay(metrics)
    for form in ("png", "svg"):
        assert len(picture(figure, form)) > 1000


# --- networks -------------------------------------------------------------------------------------------------


def setting(n=4, **more):
    edges = np.array([(i, i + 1) for i in range(n - 1)]).reshape(-1, 2)
    return {"d": np.linspace(0.1, 1.0, n), "b": np.linspace(1.0, 0.1, n - 1), "edges": edges, **more}


def parts(figure):
    """Lines and nodes of a drawn network."""
    links, nodes = figure.axes[0].collections
    return links, nodes


def test_a_client_that_computes_more_often_is_larger_and_a_better_link_is_thicker():
    links, nodes = parts(network(setting(6)))
    sizes, widths = nodes.get_sizes(), links.get_linewidths()
    assert len(sizes) == 6 and (np.diff(sizes) > 0).all() and min(sizes) > 0
    assert len(widths) == 5 and (np.diff(widths) < 0).all() and min(widths) > 0


def test_links_join_the_places_of_their_clients():
    places = np.array([[0.1, 0.2], [0.5, 0.9], [0.8, 0.3], [0.4, 0.4]])
    links, nodes = parts(network(setting(positions=places)))
    assert np.array_equal(nodes.get_offsets(), places)
    assert [segment.tolist() for segment in links.get_segments()] == [places[i : i + 2].tolist() for i in range(3)]


def test_clients_without_places_stand_near_their_neighbours():
    star = np.array([[0, i] for i in range(1, 8)])
    places = node_places(8, star)
    radius = np.linalg.norm(places - places[0], axis=1)[1:]
    assert radius.min() > 0.5 * radius.max()  # client 0 in the middle
    ring = node_places(6, np.array([[0, 1], [1, 2], [2, 3], [3, 4], [4, 5], [0, 5]]))
    sides = np.linalg.norm(ring - np.roll(ring, 1, axis=0), axis=1)
    assert sides.min() > 0.9 * sides.max()
    apart = node_places(5, np.array([[0, 1]]))
    assert np.isfinite(apart).all() and len(np.unique(apart.round(6), axis=0)) == 5
    assert node_places(1, np.zeros((0, 2), dtype=int)).shape == (1, 2)


def test_clients_bear_their_names_or_numbers():
    def texts(**more):
        return [text.get_text() for text in network(setting(**more)).axes[0].texts]

    assert texts() == ["0", "1", "2", "3"]
    assert texts(labels=np.array(["ann", "bob", "cem", "dia"])) == ["ann", "bob", "cem", "dia"]
    assert texts(n=61) == []  # too many to read


@pytest.mark.parametrize("n", [1, 2, 3])
def test_small_networks_can_be_drawn(n):
    assert len(picture(network(setting(n), "seed 0; "), "png")) > 1000


def test_names_are_written_as_they_are():
    figure = network(setting(labels=np.array(["$x_$", "<&>", "a_b", "$"])))
    texts = figure.axes[0].texts
    assert [text.get_text() for text in texts] == ["$x_$", "<&>", "a_b", "$"]
    assert not any(text.get_parse_math() for text in texts)


def test_a_network_has_a_scale_for_the_sizes_and_the_widths_it_draws():
    sample = setting(6) | {"d": np.array([0.1, 0.5, 1.0, 0.5, 0.1, 1.0]), "b": np.array([0.1, 0.5, 1.0, 0.5, 0.1])}
    figure = network(sample, "seed 3; ")
    links, nodes = parts(figure)
    (legend,) = figure.legends
    entries = {t.get_text(): h for t, h in zip(legend.get_texts(), legend.legend_handles, strict=True)}
    assert sorted(entries) == ["b = 0.1", "b = 0.5", "b = 1", "d = 0.1", "d = 0.5", "d = 1"]
    for n, rate in enumerate(("0.1", "0.5", "1")):
        assert entries[f"d = {rate}"].get_markersize() ** 2 == pytest.approx(nodes.get_sizes()[n])
        assert entries[f"b = {rate}"].get_linewidth() == pytest.approx(links.get_linewidths()[n])
    assert legend.get_title().get_text() == "seed 3; 6 clients, 5 links"


@pytest.mark.parametrize("n", [2, 10, 30, 60])
def test_names_do_not_cover_their_nodes(n):
    figure = network(setting(n, positions=np.random.default_rng(0).random((n, 2))))
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    _, nodes = parts(figure)
    centres = figure.axes[0].transData.transform(nodes.get_offsets())
    for text, centre in zip(figure.axes[0].texts, centres, strict=True):
        assert not text.get_window_extent(canvas.get_renderer()).contains(*centre)
    assert outside(figure) == []


@pytest.mark.parametrize("n", [10, 60, 200, 2000])
def test_nodes_of_any_number_leave_room_between_them(n):
    figure = network(setting(n, positions=np.random.default_rng(0).random((n, 2))))
    nodes = next(c for c in figure.axes[0].collections if len(c.get_offsets()) == n)
    area = nodes.get_sizes().sum() / (72 * 72) / np.prod(figure.get_size_inches())
    assert area < 0.3
    assert (len(figure.axes) == 2) == (n > 60)  # a bar of colours where sizes are too small to read
    assert outside(figure) == []


def test_of_very_many_links_some_are_drawn_and_the_figure_says_how_many():
    edges = np.array(list(itertools.combinations(range(210), 2)))
    rates = {"d": np.full(210, 0.5), "b": np.full(len(edges), 0.5), "edges": edges}
    figure = network(rates | {"positions": np.random.default_rng(0).random((210, 2))})
    drawn = len(figure.axes[0].collections[0].get_segments())
    assert drawn == 20_000 < len(edges)
    assert figure.legends[0].get_title().get_text() == "210 clients, 21,945 links (20,000 of them drawn)"


def test_a_network_without_links_can_be_drawn():
    lonely = {"d": np.array([0.5, 0.5]), "b": np.array([]), "edges": np.zeros((0, 2), dtype=int)}
    assert len(picture(network(lonely), "png")) > 1000


# --- pictures -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["png", "svg"])
def test_the_same_figure_is_the_same_bytes(form):
    once, again = (picture(accuracy_vs_delay(made_up(THREE), "t"), form) for _ in range(2))
    assert once == again
    assert picture(accuracy_vs_delay(made_up(THREE), "u"), form) != once


def test_figures_leave_the_settings_of_matplotlib_alone():
    before = dict(mpl.rcParams)
    picture(accuracy_vs_delay(made_up(THREE)), "svg")
    picture(network(setting()), "svg")
    assert dict(mpl.rcParams) == before


def test_a_study_with_algorithms_of_ones_own_draws_them():
    result = run(tiny(algorithms=["dgd"]), schedules={"mine": plots_schedule})
    assert list(lines(result.plot())) == ["DGD", "mine"]
    assert len(result.plot_network().axes[0].texts) == 4


def plots_schedule(k, part, rates):
    from dspodfl import Events

    return Events(np.ones((len(k), len(part.client)), bool), np.zeros((len(k), len(part.link)), bool))


# --- grids ----------------------------------------------------------------------------------------------------


def swept(axis, values, **columns):
    rows = [
        {axis: value, "algorithm": name, "seeds": 3, "reached": 3, "accuracy_mean": 0.5 + 0.1 * n, "accuracy_std": 0.05}
        for value in values
        for n, name in enumerate(("dspodfl", "dgd", "mine"))
    ]
    return pd.DataFrame(rows).assign(**columns)


@pytest.mark.parametrize(("column", "label"), [("loss", "test loss"), ("optimality_error", "distance to the optimum")])
def test_a_sweep_of_regression_draws_what_its_table_shows_and_no_empty_panel(column, label):
    table = swept("graph.radius", [0.4, 0.6, 0.8], delay=10.0, normalized_delay=1.0, normalized_std=None)
    table = table.rename(columns={"accuracy_mean": f"{column}_mean", "accuracy_std": f"{column}_std"})
    figure = plots.sweep(table.assign(accuracy_mean=None, accuracy_std=None, normalized_mean=None), ["graph.radius"])
    (axis,) = figure.axes
    assert axis.get_ylabel().startswith(label)
    drawn = [line.get_ydata().tolist() for line in axis.get_lines() if len(line.get_ydata())]
    assert drawn == [pytest.approx([0.5 + 0.1 * n] * 3) for n in range(3)]
    assert not any("no values" in text.get_text() for text in figure.legends[0].get_texts())


def test_a_sweep_over_numbers_is_joined_by_lines_and_named_in_words():
    figure = plots.sweep(swept("graph.radius", [0.4, 0.6, 0.8], iteration=300), ["graph.radius"], "a title")
    (axis,) = figure.axes
    assert axis.get_xlabel() == "radius of the graph"
    assert len(lines(figure)) == 3 and all(len(x) == 3 for x, _ in lines(figure).values())
    assert figure.legends[0].get_title().get_text() == "a title"
    assert axis.get_title("left") == "after 300 iterations"
    assert note(figure) == "Mean over 3 seeds; band: ±1 standard deviation over seeds."


@pytest.mark.parametrize("values", [["ring", "star", "complete"], [True, False], ["0.1", "x"]])
def test_categories_of_a_sweep_are_not_joined(values):
    figure = plots.sweep(swept("graph.kind", values), ["graph.kind"], "a title")
    (axis,) = figure.axes
    assert axis.get_xlabel() == "graph"
    assert all(line.get_linestyle() == "None" for line in axis.lines)
    bars = [path for c in axis.collections for path in c.get_paths()]
    assert len(bars) == 3 * len(values)
    assert all(len(set(path.vertices[:, 0])) == 1 for path in bars)  # upright: from mean - std to mean + std
    assert note(figure) == "Mean over 3 seeds; bars: ±1 standard deviation over seeds."
    places = sorted(x for line in axis.lines for x in line.get_xdata())
    assert len(set(np.round(places, 6))) >= 3 * len(values)  # side by side


def test_a_wide_range_of_numbers_is_logarithmic():
    figure = plots.sweep(swept("train.learning_rate.value", [1e-4, 1e-2, 1.0]), ["train.learning_rate.value"])
    assert figure.axes[0].get_xscale() == "log" and figure.axes[0].get_xlabel() == "learning rate α"


def test_a_second_axis_has_a_row_of_panels_for_each_value():
    table = pd.concat([swept("graph.radius", [0.4, 0.6], labels=n) for n in (1, 5)], ignore_index=True)
    figure = plots.sweep(table, ["graph.radius", "labels"], budget=delay_budget(1e4))
    assert [axis.get_title("left").partition(";")[0] for axis in figure.axes] == [
        "labels per client: 1",
        "labels per client: 5",
    ]
    assert "budget (total delay, raw: 10,000)" in figure.axes[0].get_title("left").replace("\n", " ")
    assert outside(figure) == []


def test_points_that_not_all_seeds_reached_are_open_and_explained():
    table = swept("labels", [1, 5], delay=40.0, reached=2)
    figure = plots.sweep(table, ["labels"])
    assert [text.get_text() for text in figure.axes[0].texts] == ["2/3"] * 6
    assert "not all seeds got there (n/m)" in note(figure)


def test_unknown_keys_are_named_by_their_last_part():
    assert plots.axis_name("model.hidden_units") == "hidden units (model.hidden_units)"
    assert plots.axis_name("train.learning_rate") == "learning rate α"


def targets(runs, at):
    table = made_up(runs)
    table = table.assign(delay_processing=0.25 * table["delay_total"], delay_transmission=0.75 * table["delay_total"])
    return table, readings.to_targets(table, [], at)


def test_a_delay_that_was_not_waited_for_has_an_arrow_where_runs_ended():
    table, reading = targets({("dspodfl", 0): {1.0: 0.1, 9.0: 0.4}, ("dgd", 0): {2.0: 0.1, 30.0: 0.9}}, [0.5])
    figure = plots.delays(reading, [])
    assert marks(figure, ">") == [(9.0, 0.0)]
    assert "total, at least" in [text.get_text() for text in figure.legends[0].get_texts()]
    assert "> 9 (0/1 seeds)" in [text.get_text() for text in figure.axes[1].texts]
    both = plots.delays(readings.to_targets(table, [], [0.1]), [])
    assert "total, at least" not in [text.get_text() for text in both.legends[0].get_texts()]


def test_the_parts_of_a_delay_add_up_to_the_total_that_is_shown():
    rows = made_up({("dgd", seed): {0.0: 0.1, total: 0.9} for seed, total in enumerate((100.0, 200.0, 600.0))})
    shares = {0: 0.9, 1: 0.3, 2: 0.5}
    share = rows["seed"].map(shares)
    rows = rows.assign(
        delay_processing=share * rows["delay_total"], delay_transmission=(1 - share) * rows["delay_total"]
    )
    reading = readings.to_targets(rows, [], [0.5])
    found = median_run.parts(rows, [], reading)
    assert reading["processing_median"][0] + reading["transmission_median"][0] != reading["total_median"][0]
    assert found.iloc[0].tolist() == pytest.approx([60.0, 140.0, 200.0])
    figure = plots.delays(reading, [], "t", found)
    bars = figure.axes[1].patches
    assert [bar.get_width() for bar in bars] == pytest.approx([0.3, 0.7])
    assert [text.get_text() for text in figure.axes[1].texts] == ["200 = 30% + 70%"]
    assert "add up to it" in note(figure) and "over 3 seeds" in note(figure)
    assert outside(figure) == []


def test_the_parts_of_an_even_number_of_runs_are_those_of_the_two_in_the_middle():
    rows = made_up({("dgd", seed): {0.0: 0.1, total: 0.9} for seed, total in enumerate((100.0, 200.0, 400.0))})
    rows = rows.assign(delay_processing=rows["delay_total"] / 4, delay_transmission=rows["delay_total"] * 3 / 4)
    late = made_up({("dgd", 3): {0.0: 0.1, 50.0: 0.2}}).assign(delay_processing=1.0, delay_transmission=1.0)
    every = pd.concat([rows, late], ignore_index=True)
    reading = readings.to_targets(every, [], [0.5, 0.95])
    found = median_run.parts(every, [], reading)
    assert found["total"][0] == reading["total_median"][0] == 300.0
    assert found.iloc[0, :2].sum() == 300.0
    assert found.iloc[1].isna().all()  # half of the runs never got there


def test_accuracies_after_iterations_say_what_their_bars_are():
    table = swept("x", [0], iteration=1000).drop(columns="x")
    table = pd.concat([table, table.assign(iteration=2000)], ignore_index=True).assign(printed_accuracy=0.4)
    figure = plots.accuracies(table, [], "a title")
    assert note(figure) == "Mean over 3 seeds; bars: ±1 standard deviation over seeds."
    assert "printed in the paper" in [text.get_text() for text in figure.legends[0].get_texts()]
    assert [tick.get_text() for tick in figure.axes[0].get_xticklabels()] == ["1,000", "2,000"]
    assert outside(figure) == []
