"""What a study takes is estimated before it is built: what cannot fit is refused, what is large is said."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
from tests.edge import tiny

from dspodfl import Config
from dspodfl.config import footprint
from dspodfl.config.footprint import check, check_model, estimate, expected_links
from dspodfl.errors import ConfigError, Entry, InputError, memory
from dspodfl.network import GRAPHS, generate
from dspodfl.problem.models import build as build_model
from dspodfl.study.builder import LargeStudyWarning, build

KINDS = [
    {"kind": "geometric", "radius": 0.3},
    {"kind": "geometric", "radius": 1.2},
    {"kind": "erdos_renyi", "p": 0.2},
    {"kind": "regular", "degree": 4},
    {"kind": "small_world", "neighbours": 4},
    *({"kind": kind} for kind in ("ring", "path", "star", "complete", "grid", "torus", "exponential")),
]


@pytest.mark.parametrize("table", KINDS, ids=str)
def test_the_links_of_a_graph_are_known_before_it_is_drawn(table):
    n = 144
    expected = expected_links(tiny(graph=table).graph, n)
    parameters = {"rewire": 0.1} if table["kind"] == "small_world" else {}
    parameters |= {key: value for key, value in table.items() if key != "kind"}
    found = generate(table["kind"], n, 0, allow_disconnected=True, **parameters).links
    assert 0.8 * found <= expected <= 2.1 * found


@pytest.mark.parametrize("kind", ["geometric", "complete", "ring", "erdos_renyi", "regular"])
@pytest.mark.parametrize("count", [100_000_000, 2**31, 2**32 - 1])
def test_more_clients_than_memory_holds_are_refused_with_both_numbers(kind, count):
    with pytest.raises(InputError) as caught:
        build(tiny(clients={"count": count}, graph={"kind": kind}))
    assert caught.value.field == "clients.count" and caught.value.value == count
    assert "GiB of memory" in str(caught.value) and "are free" in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"data": {"name": "synthetic", "samples": 2**27, "features": 2**10}}, "data.samples"),
        ({"data": {"name": "synthetic", "features": 2**27, "samples": 1000}}, "data.features"),
        ({"data": {"name": "ridge", "dimension": 2**26}, "model": {"name": "linear"}}, "data.dimension"),
        ({"data": {"name": "ridge", "samples": 2**27, "dimension": 10}, "model": {"name": "linear"}}, "data.samples"),
        ({"model": {"name": "mlp", "hidden": [2**27, 2**27]}}, "model.hidden"),
        ({"seeds": 2**31}, "seeds"),
        (
            {
                "clients": {"count": 10_000_000},
                "data": {"name": "synthetic", "partition": {"kind": "shared", "samples": 5000}},
            },
            "clients.count",
        ),
    ],
)
def test_sizes_that_memory_does_not_hold_are_refused_by_their_key(changes, field):
    with pytest.raises(InputError, match="smaller") as caught:
        build(tiny(**changes))
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"data": {"name": "synthetic", "samples": 2**31}}, r"data\.samples = 2147483648"),
        ({"data": {"name": "synthetic", "classes": 2**31}}, r"data\.classes = 2147483648"),
        ({"data": {"name": "synthetic", "features": 2**31}}, r"data\.features = 2147483648"),
        ({"model": {"name": "mlp", "hidden": [2**31]}}, r"model\.hidden\[0\] = 2147483648"),
        ({"model": {"name": "cnn", "channels": [2**31]}}, r"model\.channels\[0\] = 2147483648"),
        ({"data": {"name": "synthetic", "partition": {"kind": "dirichlet", "alpha": 1e308}}}, r"partition\.alpha"),
        ({"train": {"learning_rate": {"value": 1e308}}}, r"train\.learning_rate\.value = 1e\+308"),
        ({"rates": {"floor": 1e-308}}, r"rates\.floor = 1e-308"),
        (
            {"graph": {"kind": "geometric", "dynamics": {"kind": "waypoint", "speed": [10.0, 10.0]}}},
            r"graph\.dynamics\.speed\[0\] = 10\.0",
        ),
        ({"scale": {"timeout": 1e300}}, r"scale\.timeout"),
    ],
)
def test_numbers_beyond_what_can_be_drawn_are_refused_by_their_key(changes, says):
    with pytest.raises(ConfigError, match=says):
        tiny(**changes)


@pytest.mark.parametrize("law", [{"law": "constant", "value": 1e-308}, {"law": "list", "values": [1e-11] * 4}])
@pytest.mark.parametrize("which", ["sgd", "link"])
def test_rates_of_which_nothing_is_ever_drawn_are_refused(which, law):
    with pytest.raises(InputError, match=f"rates.{which} = .*at least 2⁻³²"):
        build(tiny(algorithms=["dfedavg"], rates={which: law}))


def test_what_is_large_is_a_warning_with_numbers_or_told_to_whoever_shows_progress(monkeypatch):
    monkeypatch.setattr(footprint, "LARGE_SECONDS", 0.0)
    with pytest.warns(LargeStudyWarning, match=r"a large study: building it takes about .* of memory and .* free"):
        build(tiny())
    heard = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        build(tiny(), on_progress=lambda what, share: heard.append((what, share)))
    assert heard[0][0].startswith("a large study")


def test_progress_names_the_parts_of_each_seed_and_never_goes_back():
    heard = []
    walking = {"kind": "geometric", "radius": 0.9, "dynamics": {"kind": "waypoint"}}
    build(tiny(seeds=2, graph=walking), on_progress=lambda what, share: heard.append((what, share)))
    shares = [share for _, share in heard]
    assert shares == sorted(shares) and 0 <= shares[0] and shares[-1] < 1
    for seed in (0, 1):
        assert {f"seed {seed}: {what}" for what in ("graph", "rates", "data", "walks of the clients")} <= {
            what for what, _ in heard
        }
    assert [what for what, _ in heard if what.startswith("seed")][:2] == ["seed 0: data", "seed 1: data"]


def test_a_draw_that_is_not_connected_is_told():
    heard = []
    build(
        tiny(clients={"count": 12}, graph={"kind": "geometric", "radius": 0.3}),
        on_progress=lambda what, share: heard.append(what),
    )
    assert any("draw 2 (those before are not connected)" in what for what in heard)


def test_graphs_that_would_never_be_connected_are_refused_before_any_is_drawn(monkeypatch):
    def never(*args, **kwargs):
        raise AssertionError("a graph was drawn")

    monkeypatch.setattr(GRAPHS, "_entries", {kind: replace(entry, maker=never) for kind, entry in GRAPHS.items()})
    monkeypatch.setattr(Entry, "takes", lambda self, name: True)
    for kind, n, parameters in (
        ("geometric", 4, {"radius": 1e-8}),
        ("geometric", 10_000, {"radius": 0.005}),
        ("erdos_renyi", 1000, {"p": 1e-3}),
        ("regular", 4, {"degree": 1}),
    ):
        with pytest.raises(InputError, match="none of 100,000 draws would be"):
            generate(kind, n, 0, **parameters)


def test_models_of_all_clients_must_fit_where_there_is_one_process_and_no_other_device(monkeypatch):
    model = build_model("mlp", (1000,), 10, hidden=[1000])
    config = tiny(clients={"count": 1000})
    monkeypatch.setattr(memory, "available", lambda: 2**30)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(InputError, match=r"1,011,010 parameters for 1,000 clients.* about 13\.2 GiB"):
        check_model(config, model)
    small = build_model("mlp", (3,), 4, hidden=[2])
    check_model(config, small, links=1000)
    with pytest.raises(InputError, match=r"clients\.count = 1000: .* with 10,000,000 links would take about 1\.9 GiB"):
        check_model(config, small, links=10_000_000)
    with pytest.raises(InputError, match=r"clients\.count = 1000: .* about 1\.9 GiB"):
        check_model(config, small, state=500_000_000)
    monkeypatch.setenv("WORLD_SIZE", "8")
    check_model(config, model)
    with pytest.raises(InputError, match="for one client"):
        check_model(config, model, state=1000 * 2**29)


def test_the_default_study_is_small():
    found = estimate(Config())
    assert found.bytes < 2**28 and found.seconds < 5
    assert check(Config()) is None


def test_a_dense_regular_graph_that_is_hardly_ever_found_is_given_up(monkeypatch):
    monkeypatch.setattr("dspodfl.network.generators._MOST_SHUFFLED", 1000)
    with pytest.raises(InputError, match=r"graph\.degree = 90: must be smaller \(or graph\.kind = 'complete'\)"):
        generate("regular", 100, 0, degree=90)


def test_large_graphs_are_built_as_arrays():
    graph = generate("geometric", 2000, 0, radius=0.4)
    assert graph.edges.dtype == np.int64 and 600_000 < graph.links < 800_000 and graph.connected
