"""Figures: fixed colours, mean and band, and that whatever a study comes to can be drawn."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex
from tests.edge import tiny

from dspodfl import plots, readings, run
from dspodfl.judging import COLUMNS
from dspodfl.plots import COLOURS, NAMES, accuracy_vs_delay, colour, network, picture
from dspodfl.schedule import SCHEDULES

OKABE_ITO = {"#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7", "#000000"}


def made_up(runs):
    """Metrics of runs {(algorithm, seed): {delay: accuracy}}; the normalized delay is a tenth of the raw one."""
    rows = []
    for (algorithm, seed), points in runs.items():
        for iteration, (delay, accuracy) in enumerate(points.items()):
            row = dict.fromkeys(COLUMNS, np.nan) | {"algorithm": algorithm, "seed": seed, "iteration": iteration}
            row |= {"accuracy": accuracy, "delay_total": delay, "delay_total_normalized": delay / 10}
            rows.append(row | {"diverged": accuracy is None or bool(np.isnan(accuracy))})
    return pd.DataFrame(rows).astype({"accuracy": float})


def lines(figure, panel=0):
    """Label -> (x, y) of each curve."""
    return {line.get_label(): line.get_xydata().T for line in figure.axes[panel].lines}


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
    assert set(COLOURS) == set(NAMES) == set(SCHEDULES)


def test_algorithms_of_ones_own_have_further_colours_all_different():
    others = [f"own {n}" for n in range(6)]
    found = [colour(name, others) for name in [*COLOURS, *others]]
    assert len(set(found)) == 11
    assert colour("one too many", [*others, "one too many"]) == found[5]  # then from the beginning


@pytest.mark.parametrize("algorithms", [["dgd"], ["mine", "dgd", "dspodfl"], ["dspodfl", "rg", "dgd"]])
def test_an_algorithm_keeps_its_colour_in_every_company(algorithms):
    metrics = made_up({(name, 0): {0: 0.1, 5: 0.2} for name in algorithms})
    for axis in accuracy_vs_delay(metrics).axes:
        drawn = {line.get_label(): to_hex(line.get_color()).upper() for line in axis.lines}
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
        assert low == pytest.approx(np.mean(values) - np.std(values), abs=2e-3)
        assert high == pytest.approx(np.mean(values) + np.std(values), abs=2e-3)


def test_raw_delays_are_on_a_logarithmic_axis_and_normalized_ones_on_a_linear_one():
    figure = accuracy_vs_delay(made_up(THREE), "some study")
    raw, normalized = figure.axes
    assert (raw.get_xscale(), normalized.get_xscale()) == ("log", "linear")
    assert "raw" in raw.get_xlabel() and "normalized" in normalized.get_xlabel()
    assert raw.get_ylabel() == "test accuracy, mean over clients"
    assert raw.get_title("left") == "some study"
    assert lines(figure, 0)["DSpodFL"][0][0] == pytest.approx(10)  # the first delay that such an axis can show
    assert lines(figure, 1)["DSpodFL"][0][0] == 0


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
    assert x[-1] == pytest.approx(100) and y[-1] == pytest.approx(0.6)


def test_runs_that_all_diverged_are_drawn_as_far_as_they_came():
    runs = {("dgd", seed): {0: 0.1, 10: 0.3, 20: 0.2, 40: np.nan} for seed in range(2)}
    x, y = lines(accuracy_vs_delay(made_up(runs)))["DGD (2 of 2 diverged)"]
    assert x[-1] == pytest.approx(20) and y[-1] == pytest.approx(0.2)


def test_one_seed_has_a_band_without_width():
    figure = accuracy_vs_delay(made_up({("rg", 0): THREE["dspodfl", 0]}))
    low, high = band(figure, 50)
    assert low == pytest.approx(high)


def test_the_legend_names_the_algorithms_once():
    metrics = made_up({(name, 0): {0: 0.1, 5: 0.2} for name in [*SCHEDULES, "mine"]})
    (legend,) = accuracy_vs_delay(metrics).legends
    assert [text.get_text() for text in legend.get_texts()] == [*NAMES.values(), "mine"]


def regression(values, column="optimality_error"):
    metrics = made_up({("dgd", 0): dict.fromkeys(range(len(values)), np.nan)})
    return metrics.assign(diverged=False, **{column: values})


def test_regression_shows_the_distance_to_the_optimum_on_a_logarithmic_axis():
    figure = accuracy_vs_delay(regression([1.0, 0.1, 0.01]))
    assert figure.axes[0].get_yscale() == "log"
    assert figure.axes[0].get_ylabel() == "‖θ̄ − θ*‖²"
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
    places = plots._places(8, star)
    radius = np.linalg.norm(places - places[0], axis=1)[1:]
    assert radius.min() > 0.5 * radius.max()  # client 0 in the middle
    ring = plots._places(6, np.array([[0, 1], [1, 2], [2, 3], [3, 4], [4, 5], [0, 5]]))
    sides = np.linalg.norm(ring - np.roll(ring, 1, axis=0), axis=1)
    assert sides.min() > 0.9 * sides.max()
    apart = plots._places(5, np.array([[0, 1]]))
    assert np.isfinite(apart).all() and len(np.unique(apart.round(6), axis=0)) == 5
    assert plots._places(1, np.zeros((0, 2), dtype=int)).shape == (1, 2)


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
    assert b"$x_$" in picture(figure, "svg")


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
    before = dict(plots.mpl.rcParams)
    picture(accuracy_vs_delay(made_up(THREE)), "svg")
    picture(network(setting()), "svg")
    assert dict(plots.mpl.rcParams) == before


def test_a_study_with_algorithms_of_ones_own_draws_them():
    result = run(tiny(algorithms=["dgd"]), schedules={"mine": plots_schedule})
    assert list(lines(result.plot())) == ["DGD", "mine"]
    assert len(result.plot_network().axes[0].texts) == 4


def plots_schedule(k, part, rates):
    from dspodfl import Events

    return Events(np.ones((len(k), len(part.client)), bool), np.zeros((len(k), len(part.link)), bool))


def test_a_delay_that_was_not_waited_for_has_an_arrow_where_runs_ended():
    table = made_up({("dspodfl", 0): {1.0: 0.1, 9.0: 0.4}, ("dgd", 0): {2.0: 0.1, 30.0: 0.9}})
    table = table.assign(delay_processing=table["delay_total"] / 2, delay_transmission=table["delay_total"] / 2)
    reading = readings.to_targets(table, [], [0.5])
    figure = plots.delays(reading, [])
    arrows = [line for line in figure.axes[0].lines if line.get_marker() == ">"]
    assert [tuple(line.get_xydata()[0]) for line in arrows] == [(9.0, 0.0)]
    assert "total, at least" in [text.get_text() for text in figure.legends[0].get_texts()]
    both = plots.delays(readings.to_targets(table, [], [0.1]), [])
    assert "total, at least" not in [text.get_text() for text in both.legends[0].get_texts()]
