"""Changing any key of the configuration changes what it says it changes."""

import itertools
import shutil
from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tests.edge import TINY_TOML, CommandLine, keys, on_the_cpu, tables, tiny, walk

from dspodfl import Config, Dataset, InputError, Simulation, run
from dspodfl.engine import LocalTransport
from dspodfl.network import Part, generators
from dspodfl.nodes import Node, NodeOptions, approve, new_ca, new_keys, read_certificates, request
from dspodfl.nodes.job import Job
from dspodfl.problem.data import DATASETS
from dspodfl.problem.problem import Problem
from dspodfl.study import UserInputs, build
from dspodfl.study.store.checkpoint import CheckpointStore, load
from dspodfl.study.store.run_folder import RunFolder
from dspodfl.study.study import Study
from dspodfl.study.work_split import choose_split


@pytest.fixture(autouse=True)
def cpu(monkeypatch):
    on_the_cpu(monkeypatch)


COVERED = {}


def says(*names):
    """A test shows what these keys change."""

    def register(test):
        COVERED.update(dict.fromkeys(names))
        return test

    return register


def test_every_key_of_the_schema_has_a_test():
    assert sorted(keys()) == sorted(COVERED)


# --- what a configuration builds ------------------------------------------------------------------------------


def built(own=None, **changes) -> Study:
    return build(tiny(**changes), own)[1]


def setting(at=0, /, **changes):
    """What all algorithms of a seed share."""
    return next(s for s in build(tiny(**changes))[1].settings if s.seed == at)


def links(**changes):
    return [tuple(edge) for edge in setting(**changes).rates.graph.edges.tolist()]


def d(*k, **changes):
    return setting(**changes).rates.sgd(np.array(k or [0])).squeeze(0 if len(k) < 2 else ()).tolist()


def b(*k, **changes):
    return setting(**changes).rates.link(np.array(k or [0])).squeeze(0 if len(k) < 2 else ()).tolist()


def present(iterations, **changes):
    """Which links exist when. Shape: (iterations, links)."""
    return setting(**changes).topology.present(np.arange(iterations))


def events(algorithm, iterations, **changes):
    one = built(algorithms=[algorithm], **changes).runs[0]
    return one.schedule(np.arange(iterations), Part.whole(one.rates.graph, one.seed), one.rates)


def labels(**changes):
    """The set of labels of each client."""
    data = setting(**changes).data
    return [set(data.dataset.y_train[shard].tolist()) for shard in data.shards]


def rates_of(model, k):
    return model.runs[0].learning_rate(np.asarray(k)).tolist()


def final(algorithm="dspodfl", **changes):
    """The models of a run after the last iteration, one flat vector."""
    result = run(tiny(**changes), device="cpu")
    return torch.cat([values.flatten().double() for values in result.stacked[algorithm, 0].values()])


MANY = {
    "clients": {"count": 400},
    "data": {"samples": 400, "features": 1, "partition": {"kind": "iid"}},
}
"""So many clients that their rates show the law."""


# --- seeds ----------------------------------------------------------------------------------------------------


def draws(seed, /, **changes):
    """Everything that a seed draws."""
    changes = {"graph": {"kind": "geometric", "radius": 0.7}, "clients": {"count": 8}} | changes
    study, found = built(**changes), setting(seed, **changes)
    one = next(r for r in study.runs if r.seed == seed)
    fired = one.schedule(np.arange(40), Part.whole(found.rates.graph, seed), found.rates)
    problem = Problem(study.model, [(seed, found.data)], batch_size=4)
    return {
        "graph": found.rates.graph.edges.tolist(),
        "rates": found.rates.sgd(np.zeros(1, dtype=int)).tolist(),
        "data": found.data.dataset.x_train.tolist(),
        "partition": [shard.tolist() for shard in found.data.shards],
        "model": study.model.initial(seed).tolist(),
        "minibatches": problem.minibatches(np.arange(3)).tolist(),
        "events": fired.v.tolist(),
    }


def equal(one, other):
    return {name for name in one if one[name] == other[name]}


@says("Config.seed")
def test_another_seed_redraws_everything_and_the_same_seed_nothing():
    assert equal(draws(0), draws(7, seed=7)) == set()
    assert equal(draws(7, seed=7), draws(7, seed=6, seeds=2)) == set(draws(0))


@says("Config.seeds")
def test_seeds_are_counted_from_the_first():
    assert [run.seed for run in built(seed=5, seeds=3).runs] == [5, 6, 7, 5, 6, 7]


@pytest.mark.parametrize(
    ("table", "pinned"), [("graph", {"graph"}), ("rates", {"rates"}), ("data", {"data", "partition"})]
)
@says("GraphTable.seed", "Rates.seed", "DataTable.seed")
def test_the_seed_of_a_table_pins_what_the_table_draws_across_repetitions_and_nothing_else(table, pinned):
    base = {"graph": {"kind": "geometric", "radius": 0.7}, "rates": {"floor": 0.001}, "data": {"samples": 60}}
    changes = {"seeds": 2, table: base[table] | {"seed": 9}}
    one, other = draws(0, **changes), draws(1, **changes)
    assert equal(one, other) == pinned
    assert pinned <= equal(one, draws(9, seed=9))  # what seed 9 draws


@says("Config.algorithms")
def test_the_algorithms_named_are_run_in_their_order():
    found = run(tiny(algorithms=["rg", "dfedavg", "dspodfl"])).metrics["algorithm"]
    assert list(dict.fromkeys(found)) == ["rg", "dfedavg", "dspodfl"]


@says("AlgorithmTable.name", "AlgorithmTable.label", "AlgorithmTable.settings")
def test_a_method_by_name_runs_with_its_settings_under_its_label():
    table = {"name": "dfedavg", "label": "every other", "settings": {"period": 1}}
    one = run(tiny(algorithms=[table])).metrics
    other = run(tiny(algorithms=["dfedavg"], train={"dfedavg_period": 1, "iterations": 2})).metrics
    assert set(one["algorithm"]) == {"every other"}
    assert built(algorithms=[table]).runs[0].schedule.probabilities.period == 1
    assert one["sgd_steps"].tolist()[:2] == other["sgd_steps"].tolist()[:2]


@says("AlgorithmTable.schedule", "AlgorithmTable.rule")
def test_a_schedule_and_a_rule_make_an_algorithm():
    found = built(algorithms=[{"schedule": "dgd", "rule": "adapt_then_combine"}])
    assert [type(rule).__name__ for rule in found.rules] == ["AdaptThenCombine"] * len(found.runs)
    assert found.runs[0].schedule is built(algorithms=["dgd"]).runs[0].schedule


LOCAL = {
    "clip": ({"clip": 1e-3}, {"clip": 2e-3}),
    "proximal": ({"proximal": 0.5}, {"proximal": 5}),
    "momentum": ({"momentum": 0.5}, {"momentum": 0.9}),
    "nesterov": ({"nesterov": 0.5}, {"nesterov": 0.9}),
    "adam": ({"adam": True}, {"adam": {"beta1": 0.5}}, {"adam": {"beta2": 0.5}}, {"adam": {"epsilon": 0.5}}),
    "decay": ({"decay": 0.5}, {"decay": 5}),
}


@says("AlgorithmTable.local", *(f"LocalTable.{key}" for key in LOCAL))
@says("AdamTable.beta1", "AdamTable.beta2", "AdamTable.epsilon")
@pytest.mark.parametrize("key", LOCAL)
def test_what_clients_do_with_their_gradients_changes_where_they_go(key):
    def ends(**table):
        given = {"name": "dspodfl", "label": "x", **table}
        return final(
            "x", algorithms=[given], train={"iterations": 12}, rates={"link": {"law": "constant", "value": 0.3}}
        )

    found = [ends(), *(ends(local=table) for table in LOCAL[key])]
    assert not any(torch.equal(one, other) for one, other in itertools.combinations(found, 2))


# --- graphs ---------------------------------------------------------------------------------------------------


@says("Clients.count")
def test_the_count_of_clients_is_that_of_graph_rates_and_shards():
    found = setting(clients={"count": 7})
    assert found.rates.graph.n == found.data.clients == len(d(clients={"count": 7})) == 7


@says("GraphTable.weights")
def test_weights_decide_how_much_neighbours_count():
    def weight(rule):
        return setting(graph={"kind": "ring", "weights": rule}).topology.at(np.zeros(1, dtype=int))[1][0, 0]

    assert weight("metropolis") == weight("equal_neighbour") == weight("max_degree") == 1 / 3
    assert weight("lazy_metropolis") == 1 / 4
    star = setting(clients={"count": 5}, graph={"kind": "star", "weights": "max_degree"})
    assert star.topology.at(np.zeros(1, dtype=int))[1].tolist() == [[1 / 5] * 4]
    assert not torch.equal(final("dgd"), final("dgd", graph={"kind": "ring", "weights": "lazy_metropolis"}))


@says("GraphTable.directed")
def test_directed_gives_each_direction_its_own_rate():
    study = built(algorithms=["push_sum"], graph={"kind": "ring", "directed": True})
    rates, start = study.settings[0].rates, np.zeros(1, dtype=np.int64)
    assert rates.graph.directed and (rates.link(start) != rates.back(start)).all()
    assert not setting(graph={"kind": "ring"}).rates.graph.directed


@says("GraphTable.allow_disconnected")
def test_a_disconnected_graph_is_taken_only_where_it_is_allowed(monkeypatch):
    monkeypatch.setattr(generators, "ATTEMPTS", 20)
    sparse = {"kind": "geometric", "radius": 0.01}
    assert links(graph=sparse | {"allow_disconnected": True}) == []
    with pytest.raises(InputError, match="allow_disconnected"):
        links(graph=sparse)


@says("Geometric.radius")
def test_clients_are_linked_within_the_radius():
    for radius in (0.5, 0.8):
        found = setting(clients={"count": 8}, graph={"kind": "geometric", "radius": radius}).rates.graph
        apart = np.linalg.norm(found.positions[:, None] - found.positions[None], axis=-1)
        assert found.links == (apart[np.triu_indices(8, 1)] <= radius).sum()
    assert links(graph={"kind": "geometric", "radius": 2.0}) == links(graph={"kind": "complete"})


@pytest.mark.parametrize("kind", ["grid", "torus"])
@says("Grid.rows", "Grid.columns", "Torus.rows", "Torus.columns")
def test_rows_and_columns_shape_a_lattice(kind):
    periodic = kind == "torus"

    def lattice(**shape):
        return nx.Graph(links(clients={"count": 12}, graph={"kind": kind, **shape}))

    for shape, rows, columns in (({"rows": 2}, 2, 6), ({"columns": 3}, 4, 3), ({}, 3, 4)):
        assert nx.is_isomorphic(lattice(**shape), nx.grid_2d_graph(rows, columns, periodic=periodic))


@says("ErdosRenyi.p")
def test_every_pair_is_linked_with_probability_p():
    share = {
        p: len(links(clients={"count": 60}, graph={"kind": "erdos_renyi", "p": p})) / (60 * 59 / 2)
        for p in (0.2, 0.7, 1)
    }
    assert share[1] == 1
    assert abs(share[0.2] - 0.2) < 5 * np.sqrt(0.2 * 0.8 / 1770)
    assert abs(share[0.7] - 0.7) < 5 * np.sqrt(0.7 * 0.3 / 1770)


@says("Regular.degree")
def test_every_client_of_a_regular_graph_has_the_degree():
    for degree in (2, 3):
        found = setting(clients={"count": 8}, graph={"kind": "regular", "degree": degree}).rates.graph
        assert found.degree.tolist() == [degree] * 8


@says("SmallWorld.neighbours", "SmallWorld.rewire")
def test_a_small_world_has_its_neighbours_and_rewires_some():
    def world(**parameters):
        return links(clients={"count": 20}, graph={"kind": "small_world", **parameters})

    assert nx.is_isomorphic(nx.Graph(world(neighbours=2, rewire=0)), nx.cycle_graph(20))
    assert len(world(neighbours=4, rewire=0)) == len(world(neighbours=4, rewire=0.9)) == 40
    kept = set(world(neighbours=4, rewire=0))
    assert len(kept & set(world(rewire=0.1))) > len(kept & set(world(rewire=0.9)))


@says("FileGraph.file")
def test_the_file_is_the_graph(tmp_path):
    for name, text in (("path.csv", "0,1\n1,2\n2,3"), ("star.csv", "0,1\n0,2\n0,3")):
        (tmp_path / name).write_text(text)
    assert links(graph={"kind": "file", "file": tmp_path / "path.csv"}) == links(graph={"kind": "path"})
    assert links(graph={"kind": "file", "file": tmp_path / "star.csv"}) == links(graph={"kind": "star"})


@says("GraphTable.dynamics", "SwitchingDynamics.graphs", "SwitchingDynamics.period", "SwitchingDynamics.times")
def test_graphs_take_turns_as_period_or_times_say():
    def turns(graphs=({"kind": "star"},), **rhythm):
        kind = {"kind": "switching", "graphs": list(graphs), **rhythm}
        edges = np.array(links(graph={"kind": "path", "dynamics": kind}))
        there = present(8, graph={"kind": "path", "dynamics": kind})
        return [[tuple(edge) for edge in edges[row].tolist()] for row in there]

    path, star, ring = ([(0, 1), (1, 2), (2, 3)], [(0, 1), (0, 2), (0, 3)], [(0, 1), (0, 3), (1, 2), (2, 3)])
    assert present(8) is None
    assert turns(period=2) == [path, path, star, star, path, path, star, star]
    assert turns(period=3) == [path, path, path, star, star, star, path, path]
    assert turns(times=[0, 5]) == [path] * 5 + [star] * 3
    assert turns(graphs=[{"kind": "ring"}], times=[0, 5]) == [path] * 5 + [ring] * 3


@says("BernoulliDynamics.up")
def test_links_are_up_with_their_probability():
    for up in (0.2, 0.9):
        share = present(4000, graph={"kind": "ring", "dynamics": {"kind": "bernoulli", "up": up}}).mean()
        assert abs(share - up) < 5 * np.sqrt(up * (1 - up) / 16_000)


@says("MarkovDynamics.up", "MarkovDynamics.down")
def test_links_appear_and_fail_with_their_probabilities():
    for up, down in ((0.1, 0.3), (0.1, 0.6), (0.4, 0.3)):
        there = present(4000, graph={"kind": "ring", "dynamics": {"kind": "markov", "up": up, "down": down}})
        before, after = there[:-1], there[1:]
        for state, rate in ((False, up), (True, 1 - down)):
            follows = after[before == state]
            assert abs(follows.mean() - rate) < 5 * np.sqrt(rate * (1 - rate) / len(follows))


@says("WaypointDynamics.speed", "WaypointDynamics.pause")
def test_clients_walk_at_their_speed_and_rest_for_the_pause():
    def steps(**walk):
        kind = {"kind": "geometric", "radius": 0.5, "dynamics": {"kind": "waypoint", **walk}}
        where = setting(graph=kind, train={"iterations": 300}).topology.unweighted.positions(np.arange(300))
        return np.linalg.norm(np.diff(where, axis=0), axis=-1).ravel()

    slow, fast, resting = steps(speed=[0.01, 0.02]), steps(speed=[0.1, 0.2]), steps(speed=[0.1, 0.2], pause=20.0)
    assert 0.01 < np.median(slow) < 0.02 and slow.max() < 0.02 + 1e-9
    assert 0.1 < np.median(fast) < 0.2
    assert (fast < 1e-9).mean() < 0.01 and (resting < 1e-9).mean() > 0.4


# --- rates ----------------------------------------------------------------------------------------------------


@says("Rates.sgd", "Rates.link")
def test_each_law_decides_its_own_rates():
    half = {"law": "constant", "value": 0.5}
    assert d(rates={"sgd": half}) == [0.5] * 4 and b(rates={"sgd": half}) == b()
    assert b(rates={"link": half}) == [0.5] * 4 and d(rates={"link": half}) == d()


@says("Rates.refresh")
def test_rates_are_redrawn_every_so_many_iterations():
    for of in (d, b):
        fixed = of(0)
        assert of(9) == fixed
        assert of(4, rates={"refresh": 5}) == fixed
        assert of(5, rates={"refresh": 5}) == of(9, rates={"refresh": 5}) != fixed
        assert of(9, rates={"refresh": 3}) != of(9, rates={"refresh": 5})


@says("Rates.floor")
def test_drawn_rates_are_at_least_the_floor_and_the_clipped_are_counted():
    free, held = d(**MANY), d(**MANY, rates={"floor": 0.3})
    assert min(free) < 0.3 == min(held)
    assert held == [max(value, 0.3) for value in free]
    found = run(tiny(clients={"count": 8}, rates={"floor": 0.3}, train={"iterations": 1})).summary["study"]["seeds"][
        "0"
    ]
    below = [value for value in d(clients={"count": 8}) if value < 0.3]
    assert found["clipped_sgd_rates"] == len(below) > 0


@says("Rates.growth")
def test_clients_compute_more_often_as_the_learning_rate_falls():
    falling = {"learning_rate": {"kind": "diminishing", "value": 0.1, "gamma": 2.0}}
    start, later = (d(k, rates={"growth": "learning_rate"}, train=falling) for k in (0, 6))
    assert start == pytest.approx(d())
    assert later == pytest.approx([1 - (1 - value) / 2 for value in start])  # √(1 + 6/2) = 2
    assert d(6, train=falling) == d()


@says("Rates.link_draw")
def test_two_sided_links_fire_unless_both_ends_fail_and_keep_their_rates():
    link = {"law": "constant", "value": 0.3}
    for draw, chance in (("symmetric", 0.3), ("two_sided", 1 - 0.7**2)):
        fired = events("dspodfl", 4000, rates={"link": link, "link_draw": draw}).v_hat
        assert abs(fired.mean() - chance) < 5 * np.sqrt(chance * (1 - chance) / fired.size)
        assert b(rates={"link": link, "link_draw": draw}) == [0.3] * 4


@says("BetaLaw.a", "BetaLaw.b")
def test_a_beta_law_has_its_mean():
    for shape in ({"a": 0.5, "b": 0.5}, {"a": 4.0, "b": 0.5}, {"a": 0.5, "b": 4.0}):
        law = {"law": "beta", **shape}
        mean, size = shape["a"] / (shape["a"] + shape["b"]), shape["a"] + shape["b"]
        spread = np.sqrt(mean * (1 - mean) / (size + 1) / 400)
        assert abs(np.mean(d(**MANY, rates={"sgd": law})) - mean) < 5 * spread


@says("TruncnormLaw.mean", "TruncnormLaw.std")
def test_a_truncated_normal_law_has_its_mean_and_deviation():
    for mean, std in ((0.3, 0.05), (0.6, 0.05), (0.6, 0.01)):
        found = d(**MANY, rates={"sgd": {"law": "truncnorm", "mean": mean, "std": std}})
        assert abs(np.mean(found) - mean) < 5 * std / 20
        assert np.std(found) == pytest.approx(std, rel=0.2)


@says("BimodalLaw.mean1", "BimodalLaw.std1", "BimodalLaw.mean2", "BimodalLaw.std2")
def test_a_bimodal_law_has_two_normal_halves():
    base = {"mean1": 0.2, "std1": 0.02, "mean2": 0.8, "std2": 0.02}
    for change in ({}, {"mean1": 0.3}, {"std1": 0.04}, {"mean2": 0.7}, {"std2": 0.04}):
        law = base | change
        found = np.array(d(**MANY, rates={"sgd": {"law": "bimodal", **law}}))
        low, high = found[found < 0.5], found[found >= 0.5]
        assert abs(len(low) - 200) < 5 * 10
        for half, mean, std in ((low, law["mean1"], law["std1"]), (high, law["mean2"], law["std2"])):
            assert abs(half.mean() - mean) < 5 * std / np.sqrt(len(half))
            assert half.std() == pytest.approx(std, rel=0.25)


@says("ConstantLaw.value", "ListLaw.values", "CsvLaw.file")
def test_rates_given_outright_are_the_rates(tmp_path):
    values = [0.1, 0.25, 0.5, 1.0]
    assert d(rates={"sgd": {"law": "constant", "value": 0.25}}) == [0.25] * 4
    assert d(rates={"sgd": {"law": "list", "values": values}}) == values
    assert b(rates={"link": {"law": "list", "values": values}}) == values
    clients, ends = tmp_path / "clients.csv", tmp_path / "links.csv"
    clients.write_text("client,rate\n3,1.0\n2,0.5\n1,0.25\n0,0.1\n")
    ends.write_text("source,target,rate\n2,3,1.0\n1,0,0.1\n1,2,0.5\n3,0,0.25\n")
    assert d(rates={"sgd": {"law": "csv", "file": str(clients)}}) == values
    assert b(rates={"link": {"law": "csv", "file": str(ends)}}) == values


CAPACITIES = "client,compute,bandwidth\n0,1,8\n1,2,4\n2,4,2\n3,8,1\n"


@says("PoissonLaw.rate", "DeadlineLaw.deadline", "DeadlineLaw.shift", "DeadlineLaw.rate")
def test_clocks_and_deadlines_make_rates():
    assert d(rates={"sgd": {"law": "poisson", "rate": 0.5}}) == pytest.approx([1 - np.exp(-0.5)] * 4)
    for time, shift, rate in ((3.0, 1.0, 0.5), (4.0, 1.0, 0.5), (3.0, 2.0, 0.5), (3.0, 1.0, 0.7)):
        law = {"law": "deadline", "deadline": time, "shift": shift, "rate": rate}
        assert d(rates={"sgd": law}) == pytest.approx([1 - np.exp(-rate * (time - shift))] * 4)


@says("CapacitiesLaw.file", "CapacitiesLaw.reference")
def test_capacities_make_rates(tmp_path):
    (tmp_path / "c.csv").write_text(CAPACITIES)
    law = {"law": "capacities", "file": str(tmp_path / "c.csv")}
    assert d(rates={"sgd": law}) == [0.125, 0.25, 0.5, 1.0]
    assert b(rates={"link": law}) == [0.5, 0.125, 0.25, 0.125]  # links (0,1), (0,3), (1,2), (2,3): the lesser end
    assert d(rates={"sgd": law | {"reference": 16.0}}) == [0.0625, 0.125, 0.25, 0.5]


@says("Rates.diurnal", "Diurnal.period", "Diurnal.amplitude", "Diurnal.phases")
def test_rates_of_clients_rise_and_fall_over_their_period():
    half, phases = {"law": "constant", "value": 0.5}, [0.0, 0.25, 0.5, 0.75]
    for period, amplitude in ((8.0, 0.5), (8.0, 0.2), (4.0, 0.5)):
        table = {"period": period, "amplitude": amplitude, "phases": phases}
        found = d(1, rates={"sgd": half, "diurnal": table})
        assert found == pytest.approx(
            [0.5 + 0.5 * amplitude * np.sin(2 * np.pi * (1 / period + one)) for one in phases]
        )


# --- who is on ------------------------------------------------------------------------------------------------


def on(iterations, **rates):
    """Which clients can step and which links can carry models. Shapes: (iterations, clients), (iterations, links)."""
    clients, links = setting(rates=rates).rates.activation.on(np.arange(iterations))
    return np.broadcast_to(clients, (iterations, 4)), np.broadcast_to(links, (iterations, 4))


def follows(there, up, down):
    before, after = there[:-1], there[1:]
    for state, rate in ((False, up), (True, 1 - down)):
        some = after[before == state]
        assert abs(some.mean() - rate) < 5 * np.sqrt(rate * (1 - rate) / len(some))


@says("Rates.availability", "MarkovAvailability.up", "MarkovAvailability.down")
def test_clients_come_and_go_with_their_probabilities():
    assert setting().rates.activation is None
    for up, down in ((0.1, 0.3), (0.1, 0.6), (0.4, 0.3)):
        clients, links = on(4000, availability={"kind": "markov", "up": up, "down": down})
        follows(clients, up, down)
        assert links.all()


@says("Rates.churn", "MarkovChurn.up", "MarkovChurn.down")
def test_absent_clients_have_no_links():
    for up, down in ((0.1, 0.3), (0.1, 0.6), (0.4, 0.3)):
        clients, links = on(4000, churn={"kind": "markov", "up": up, "down": down})
        follows(clients, up, down)
        i, j = setting().rates.graph.edges.T
        assert np.array_equal(links, clients[:, i] & clients[:, j])


@says("Rates.channel", *(f"GilbertElliottChannel.{key}" for key in ("up", "down", "loss_good", "loss_bad")))
def test_links_carry_models_by_their_state():
    for up, down, good, bad in (
        (0.1, 0.3, 0, 1),
        (0.1, 0.6, 0, 1),
        (0.4, 0.3, 0, 1),
        (0.4, 0.3, 0.5, 1),
        (0.4, 0.3, 0, 0.2),
    ):
        table = {"kind": "gilbert_elliott", "up": up, "down": down, "loss_good": float(good), "loss_bad": float(bad)}
        clients, links = on(20_000, channel=table)
        assert clients.all()
        share = up / (up + down)
        assert links.mean() == pytest.approx(share * (1 - good) + (1 - share) * (1 - bad), abs=0.02)


@says(*(f"Cyclic{of}.{key}" for of in ("Availability", "Channel", "Churn") for key in ("period", "share", "phases")))
@pytest.mark.parametrize("of", ["availability", "channel", "churn"])
def test_clients_and_links_are_on_for_their_part_of_the_period(of):
    for period, share, phases in (
        (10, 0.5, [0, 1, 2, 3]),
        (8, 0.5, [0, 1, 2, 3]),
        (10, 0.2, [0, 1, 2, 3]),
        (10, 0.5, [4] * 4),
    ):
        found = on(40, **{of: {"kind": "cyclic", "period": period, "share": share, "phases": phases}})
        wanted = (np.arange(40)[:, None] + phases) % period < share * period
        assert np.array_equal(found[of == "channel"], wanted)
    drawn = on(40, **{of: {"kind": "cyclic", "period": 10, "share": 0.5}})[of == "channel"]
    assert (drawn.mean(axis=0) == 0.5).all()


@says("ClocksAvailability.rate")
def test_clocks_tick_by_their_rates():
    clients, _ = on(8000, availability={"kind": "clocks", "rate": [1.0, 1.0, 2.0, 4.0]})
    assert (clients.sum(axis=1) == 1).all()
    assert clients.mean(axis=0) == pytest.approx([1 / 8, 1 / 8, 1 / 4, 1 / 2], abs=0.03)


@says("StragglersAvailability.shift", "StragglersAvailability.rate")
def test_stragglers_step_when_their_jobs_end():
    for shift, rate in ((2.0, 0.5), (4.0, 0.5), (2.0, 2.0)):
        clients, _ = on(8000, availability={"kind": "stragglers", "shift": shift, "rate": rate})
        assert clients.mean() == pytest.approx(1 / (shift + 1 / rate), rel=0.05)


@says(*(f"Trace{of}.{key}" for of in ("Availability", "Churn") for key in ("file", "seconds", "length")))
@pytest.mark.parametrize("of", ["availability", "churn"])
def test_clients_are_on_when_their_trace_says_so(of, tmp_path):
    (tmp_path / "t.csv").write_text("client,start,end\n" + "".join(f"{i},{i},{2 * i + 2}\n" for i in range(4)))
    for seconds, length in ((1.0, None), (0.5, None), (1.0, 10.0)):
        table = {"kind": "trace", "file": str(tmp_path / "t.csv"), "seconds": seconds}
        clients, _ = on(30, **{of: table if length is None else table | {"length": length}})
        time = np.arange(30) * seconds % (length or 8.0)
        assert np.array_equal(clients, np.stack([(time >= i) & (time < 2 * i + 2) for i in range(4)], axis=1))


# --- data -----------------------------------------------------------------------------------------------------


def sizes(**partition):
    return [len(shard) for shard in setting(data={"partition": partition}).data.shards]


@says("Partitioned.partition", "Labels.per_client")
def test_every_client_holds_as_many_labels_as_the_partition_says():
    for count in (1, 2, 3):
        assert [len(held) for held in labels(data={"partition": {"kind": "labels", "per_client": count}})] == [
            count
        ] * 4
    assert min(len(held) for held in labels(data={"partition": {"kind": "iid"}})) > 2


@says("Labels.allow_unused")
def test_classes_without_a_holder_are_allowed_only_where_the_partition_says_so():
    few = {"clients": {"count": 3}, "data": {"partition": {"kind": "labels", "allow_unused": True}}}
    unused = set(range(4)) - set().union(*labels(**few))
    assert setting(**few).data.report["unused_classes"] == tuple(unused) and len(unused) == 1
    with pytest.raises(InputError, match="allow_unused"):
        setting(clients={"count": 3})


@says("Dirichlet.alpha", "Quantity.alpha")
def test_a_smaller_alpha_is_more_uneven():
    assert np.mean([len(held) for held in labels(data={"partition": {"kind": "dirichlet", "alpha": 0.1}})]) < 3
    assert labels(data={"partition": {"kind": "dirichlet", "alpha": 100.0}}) == [{0, 1, 2, 3}] * 4
    assert max(sizes(kind="quantity", alpha=0.1)) > 30 > 20 > max(sizes(kind="quantity", alpha=1000.0))


@says("Shards.per_client")
def test_fewer_shards_are_fewer_labels():
    assert [len(held) for held in labels(data={"partition": {"kind": "shards", "per_client": 1}})] == [1] * 4
    assert sum(len(held) for held in labels(data={"partition": {"kind": "shards", "per_client": 5}})) > 8


@says("Shared.samples")
def test_every_client_draws_as_many_shared_samples():
    assert sizes(kind="shared", samples=7) == [7] * 4
    assert sizes(kind="shared", samples=60) == [60] * 4


@says("Synthetic.samples", "Synthetic.test_samples", "Synthetic.features", "Synthetic.classes")
def test_synthetic_data_have_their_shape():
    shape = {"samples": 50, "test_samples": 7, "features": 5, "classes": 3}
    data = setting(data=shape | {"partition": {"kind": "iid"}}).data.dataset
    assert (data.x_train.shape, data.x_test.shape, data.classes) == ((50, 5), (7, 5), 3)
    assert set(data.y_train.tolist()) == {0, 1, 2}


@says("Synthetic.separation", "Synthetic.noise")
def test_classes_are_apart_by_the_separation_and_spread_by_the_noise():
    def means_and_spread(**change):
        data = setting(data={"samples": 4000, "features": 8, **change}).data.dataset
        classes = [data.x_train[data.y_train == c] for c in range(4)]
        return np.linalg.norm([c.mean(axis=0) for c in classes], axis=1), np.mean([c.std(axis=0) for c in classes])

    for change in (
        {"separation": 2.0, "noise": 1.0},
        {"separation": 6.0, "noise": 1.0},
        {"separation": 2.0, "noise": 0.2},
    ):
        norms, spread = means_and_spread(**change)
        assert norms == pytest.approx([change["separation"]] * 4, rel=0.1)
        assert spread == pytest.approx(change["noise"], rel=0.05)


def ridge(**parameters):
    return setting(data={"name": "ridge", **parameters}, model={"name": "linear"}).data


def local(**parameters):
    """The least-squares solution of each client, and the mean square residual."""
    data = ridge(samples=100, dimension=4, l2=0.0, **parameters)
    found = [np.linalg.lstsq(data.dataset.x_train[s], data.dataset.y_train[s]) for s in data.shards]
    return np.array([each[0] for each in found]), np.mean([each[1] for each in found]) / 100


@says("Ridge.samples", "Ridge.test_samples", "Ridge.dimension")
def test_ridge_data_have_their_shape():
    data = ridge(samples=30, test_samples=8, dimension=5)
    assert data.sizes.tolist() == [30] * 4
    assert (data.dataset.x_train.shape, data.dataset.x_test.shape) == ((120, 5), (8, 5))


@says("Ridge.heterogeneity", "Ridge.noise")
def test_clients_of_ridge_differ_by_heterogeneity_and_noise():
    same, clean = local(heterogeneity=0.0, noise=0.0)
    assert same == pytest.approx(np.tile(same[0], (4, 1)), abs=1e-4)
    assert clean < 1e-6
    other, _ = local(heterogeneity=1.0, noise=0.0)
    assert np.std(other, axis=0).min() > 0.05
    for noise in (0.1, 0.5):
        assert local(noise=noise)[1] == pytest.approx(noise**2, rel=0.4)


@says("Ridge.l2")
def test_the_penalty_of_ridge_shrinks_its_optimum_and_is_that_of_the_model():
    assert np.linalg.norm(ridge(l2=1.0).optimum) < np.linalg.norm(ridge(l2=0.01).optimum)
    assert built(data={"name": "ridge", "l2": 0.25}, model={"name": "linear"}).model.l2 == 0.25


def shards_in(folder, shape=(3,), fill=0):
    """A folder of four clients with random data of two classes."""
    folder.mkdir()
    random = np.random.default_rng(fill)
    for name in ("a", "b", "c", "d", "test"):
        np.savez(folder / f"{name}.npz", x=random.normal(size=(4, *shape)).astype(np.float32), y=np.arange(4) % 2)
    return str(folder)


@says("Npz.path")
def test_the_path_is_where_the_samples_come_from(tmp_path):
    one, other = (
        setting(data={"name": "npz", "path": shards_in(tmp_path / str(n), fill=n)}).data.dataset.x_train
        for n in range(2)
    )
    assert one.shape == other.shape == (16, 3)
    assert not np.array_equal(one, other)
    assert np.array_equal(one[:4], np.load(tmp_path / "0" / "a.npz")["x"])


ARRAYS = (np.eye(8, dtype=np.float32), np.arange(8) % 4, np.eye(8, dtype=np.float32), np.arange(8) % 4)


@says("CustomData.partition")
def test_own_data_are_dealt_as_the_partition_says():
    for partition, expected in (({"kind": "labels"}, 1), ({"kind": "labels", "per_client": 2}, 2)):
        config = tiny(data={"name": "custom", "partition": partition})
        clients = run(config, data=ARRAYS).clients
        assert [len(held) for held in clients["labels"]] == [expected] * 8


# --- models ---------------------------------------------------------------------------------------------------


@says("Logistic.l2", "Linear.l2", "Factory.l2")
def test_a_penalty_shrinks_the_model():
    def shrinks(config, **own):
        plain, held = (run(config(l2), **own, device="cpu") for l2 in (0.0, 0.9))
        sums = [sum(v.double().square().sum() for v in r.stacked["dgd", 0].values()) for r in (plain, held)]
        return sums[1] < 0.9 * sums[0]

    quick = {"iterations": 30, "batch_size": 2, "learning_rate": {"kind": "constant", "value": 0.1}}
    network = {"factory": "torch.nn:Linear", "arguments": {"in_features": 3, "out_features": 4}}
    assert shrinks(lambda l2: tiny(model={"name": "logistic", "l2": l2}, train=quick))
    assert shrinks(lambda l2: tiny(model=network | {"l2": l2}, train=quick))
    regression = (ARRAYS[0], ARRAYS[1].astype(np.float32), ARRAYS[2], ARRAYS[3].astype(np.float32))
    own = {"name": "custom", "partition": {"kind": "iid"}}
    assert shrinks(lambda l2: tiny(model={"name": "linear", "l2": l2}, train=quick, data=own), data=regression)


@says("Mlp.hidden")
def test_hidden_layers_have_their_widths():
    for hidden in ([5], [5, 7]):
        shapes = built(model={"name": "mlp", "hidden": hidden}).model.shapes
        assert [shape[0] for name, shape in shapes.items() if "weight" in name] == [*hidden, 4]


def images(side):
    x = np.zeros((8, 3, side, side), dtype=np.uint8)
    return Dataset.from_arrays(x, np.arange(8) % 4, x, np.arange(8) % 4)


@says("Cnn.channels")
def test_convolutions_have_their_channels():
    for channels in ([2], [2, 5]):
        shapes = built(UserInputs(data=images(8)), model={"name": "cnn", "channels": channels}).model.shapes
        assert [shape[0] for name, shape in shapes.items() if "conv" in name and "weight" in name] == channels


@says("Vgg11.norm", "Vgg11.head", "Vgg11.weights")
def test_vgg11_has_its_norm_its_head_and_its_weights(tmp_path):
    def vgg(**parameters):
        return built(UserInputs(data=images(32)), model={"name": "vgg11", **parameters}).model

    plain = vgg()
    assert plain.parameters < vgg(norm="group").parameters < vgg(head="imagenet").parameters
    given = {name: torch.full(tuple(s), 0.5) for name, s in plain.shapes.items() if name.startswith("features.")}
    save_file(given, tmp_path / "w.safetensors")
    held = vgg(weights=str(tmp_path / "w.safetensors")).initial(0)
    count = sum(value.numel() for value in given.values())
    assert bool((held[:count] == 0.5).all())
    assert torch.equal(held[count:], plain.initial(0)[count:])


@says("Factory.factory", "Factory.arguments", "Factory.loss")
def test_a_factory_is_called_with_its_arguments_and_judged_by_its_loss(tmp_path, monkeypatch):
    (tmp_path / "every_key_network.py").write_text(
        "from torch import nn\ndef deep(outputs, width=2):\n"
        "    return nn.Sequential(nn.Linear(3, width), nn.Tanh(), nn.Linear(width, outputs))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    network = {"factory": "torch.nn:Linear", "arguments": {"in_features": 3, "out_features": 4}}
    assert built(model=network).model.parameters == 16
    own = {"factory": "every_key_network:deep"}
    assert built(model=own).model.parameters == 3 * 2 + 2 + 2 * 4 + 4
    assert built(model=own | {"arguments": {"width": 5}}).model.parameters == 3 * 5 + 5 + 5 * 4 + 4
    assert built(model=own).model.loss == "cross_entropy"
    assert built(model=own | {"loss": "hinge"}).model.loss == "hinge"
    assert not torch.equal(final(model=network), final(model=network | {"loss": "hinge"}))


# --- training and evaluation ----------------------------------------------------------------------------------


def evaluated(algorithm="dgd", **changes):
    metrics = run(tiny(**changes), device="cpu").metrics
    return metrics.loc[metrics["algorithm"] == algorithm, "iteration"].tolist()


@says("Train.iterations", "Eval.every")
def test_a_study_ends_after_its_iterations_and_looks_every_so_often_and_at_the_end():
    assert evaluated(train={"iterations": 5}) == [0, 2, 4, 5]
    assert evaluated(train={"iterations": 7}, eval={"every": 3}) == [0, 3, 6, 7]
    assert evaluated(eval={"every": 100}) == [0, 4]


@says("Train.batch_size")
def test_minibatches_have_their_size():
    for size in (1, 5):
        study = built(train={"batch_size": size})
        problem = Problem(study.model, [(0, study.runs[0].data)], batch_size=study.batch_size)
        assert problem.minibatches(np.arange(2)).shape == (2, 4, size)
    assert not torch.equal(final(train={"batch_size": 1}), final(train={"batch_size": 5}))
    assert built(train={"batch_size": "full"}).batch_size == 0
    assert not torch.equal(final(train={"batch_size": "full"}), final(train={"batch_size": 60}))


@says("Train.learning_rate", "ConstantRate.value")
def test_a_constant_learning_rate_scales_the_first_step():
    def step(value):
        rate = {"kind": "constant", "value": value}
        after, before = (final("dgd", train={"iterations": 1, "learning_rate": rate, "precision": "fp64"}), first)
        return after - before

    first = built().model.initial(0).double().repeat(4, 1)
    first = torch.cat([first[:, :12].flatten(), first[:, 12:].flatten()])  # weights of all clients, then biases
    assert torch.allclose(step(0.2), 2 * step(0.1))
    assert rates_of(built(train={"learning_rate": {"kind": "constant", "value": 0.2}}), [0, 9]) == [0.2, 0.2]


@says("DiminishingRate.value", "DiminishingRate.gamma")
def test_a_diminishing_learning_rate_falls_as_gamma_says():
    for value, gamma in ((0.2, 3.0), (0.4, 3.0), (0.2, 1.0)):
        study = built(train={"learning_rate": {"kind": "diminishing", "value": value, "gamma": gamma}})
        assert rates_of(study, [0, 9]) == pytest.approx([value, value / np.sqrt(1 + 9 / gamma)])


@says("StepRate.value", "StepRate.every", "StepRate.factor")
def test_a_stepped_learning_rate_falls_in_steps():
    for value, every, factor in ((0.2, 5, 0.5), (0.4, 5, 0.5), (0.2, 3, 0.5), (0.2, 5, 0.1)):
        study = built(train={"learning_rate": {"kind": "step", "value": value, "every": every, "factor": factor}})
        assert rates_of(study, range(10)) == pytest.approx([value * factor ** (k // every) for k in range(10)])


@says("Train.order")
def test_every_order_of_update_gives_other_parameters():
    orders = ("simultaneous", "combine_then_adapt", "adapt_then_combine")
    found = [final("dgd", model={"name": "logistic"}, train={"order": order}) for order in orders]
    assert not any(torch.equal(found[i], found[j]) for i, j in ((0, 1), (0, 2), (1, 2)))


@says("Train.dfedavg_period")
def test_dfedavg_exchanges_after_its_period():
    for period in (1, 3):
        fired = events("dfedavg", 12, train={"dfedavg_period": period})
        assert fired.v_hat.all(axis=1).tolist() == [k % (period + 1) == period for k in range(12)]
        assert fired.v.all(axis=1).tolist() == [k % (period + 1) != period for k in range(12)]
    rates = {"sgd": {"law": "constant", "value": 0.3}}  # D = ⌈1/0.3⌉ = 4
    assert events("dfedavg", 10, rates=rates).v_hat.all(axis=1).nonzero()[0].tolist() == [4, 9]


@says("Train.until", "Until.delay", "Until.normalized_delay", "Until.bytes", "Until.iterations")
def test_a_run_ends_once_it_has_spent_its_budget():
    rates = {"sgd": {"law": "constant", "value": 0.5}, "link": {"law": "constant", "value": 0.5}}
    base = {"algorithms": ["dgd"], "rates": rates, "eval": {"every": 1}}  # a delay of 4 an iteration, normalized 2
    carried = 8 * 16 * 4  # bytes an iteration: 16 parameters both ways over four links
    for until, last in (
        ({"delay": 10.0}, 3),
        ({"delay": 12.0}, 3),
        ({"delay": 12.5}, 4),
        ({"normalized_delay": 3.9}, 2),
        ({"normalized_delay": 4.1}, 3),
        ({"bytes": 2.0 * carried}, 2),
        ({"bytes": 2.0 * carried + 1}, 3),
        ({"iterations": 2}, 2),
    ):
        found = run(tiny(**base, train={"iterations": 5, "until": until}), device="cpu").metrics
        assert found["iteration"].tolist() == list(range(last + 1))


@says("Eval.points")
def test_points_are_equal_parts_of_the_budget():
    rates = {"sgd": {"law": "constant", "value": 0.5}, "link": {"law": "constant", "value": 0.5}}  # 4 an iteration
    train = {"iterations": None, "until": {"delay": 40.0}}
    for points, at in ((1, [0, 10]), (2, [0, 5, 10]), (4, [0, 3, 5, 8, 10])):
        assert evaluated(rates=rates, train=train, eval={"every": None, "points": points}) == at


@says("Train.precision")
def test_precision_decides_how_exactly_gradients_are_computed():
    exact, single, half, auto = (final(train={"precision": name}) for name in ("fp64", "fp32", "bf16", "auto"))
    assert torch.equal(auto, single)
    assert 0 < (single - exact).abs().max() < 1e-5
    assert 1e-5 < (half - exact).abs().max() < 1e-1


@says("Eval.at_delay")
def test_models_are_looked_at_exactly_where_the_delay_first_reaches_the_values():
    rates = {"sgd": {"law": "constant", "value": 0.5}, "link": {"law": "constant", "value": 0.5}}  # 4 an iteration
    base = {"rates": rates, "train": {"iterations": 9}}
    assert evaluated(**base, eval={"every": 100}) == [0, 9]
    assert evaluated(**base, eval={"every": 100, "at_delay": [12.0, 12.5, 1000.0]}) == [0, 3, 4, 9]
    assert evaluated("dspodfl", **base, eval={"every": 100, "at_delay": [1.0]}) == [0, 1, 9]


@says("Eval.samples")
def test_accuracies_are_shares_of_the_samples_that_are_evaluated():
    found = run(tiny(eval={"samples": 3}), device="cpu").metrics
    assert (found["accuracy_average_model"] * 3 % 1).abs().max() < 1e-9


@says("Eval.clients")
def test_as_many_clients_of_a_run_have_an_accuracy_as_are_evaluated():
    found = run(tiny(eval={"clients": 3}), device="cpu").clients
    assert found.groupby("algorithm")["final_accuracy"].count().tolist() == [3, 3]


@says("AttackTable.clients")
def test_attackers_are_the_clients_that_are_named():
    found = run(tiny(attack={"kind": "sign_flip", "clients": [0, 2]}), device="cpu").clients
    assert found["attacker"].tolist() == [True, False, True, False] * 2


def moved(**attack):
    """How far an attack moves the models."""
    own = {"clients": [1], **attack}
    return float((final(attack=own, train={"iterations": 20}) - final(train={"iterations": 20})).norm())


@says("AlieAttack.z", "NoiseAttack.std", "IpmAttack.epsilon", "DissensusAttack.epsilon")
def test_attacks_do_more_with_larger_numbers():
    for kind, key in (("alie", "z"), ("noise", "std"), ("ipm", "epsilon"), ("dissensus", "epsilon")):
        little, much = (moved(kind=kind, **{key: value}) for value in (0.5, 5.0))
        assert 0 < little < much, kind


@says("Eval.targets")
def test_the_summary_reports_the_delays_to_the_targets():
    for targets in ([0.1, 0.9], [0.5]):
        found = run(tiny(eval={"targets": targets})).summary["algorithms"]["dgd"]["targets"]
        assert [target["accuracy"] for target in found] == targets


def kept(folder, seconds=0.0, **table):
    """Iterations of the checkpoints that a run leaves, the oldest first; every look at its clock takes a while."""
    clock = itertools.count(0.0, seconds)
    with RunFolder(folder, {}, lambda: next(clock)) as run_folder:
        simulation = Simulation(tiny(train={"iterations": 8}, checkpoint=table), device="cpu")
        simulation.open(run_folder, lambda: False)
        for _ in simulation:
            pass
    return [load(path).iteration for path in CheckpointStore(folder).committed()][::-1]


@says("Checkpoint.every_iterations", "Checkpoint.keep")
def test_checkpoints_are_written_at_multiples_and_the_newest_are_kept(tmp_path):
    assert kept(tmp_path / "a", every_iterations=3) == [3, 6]
    assert kept(tmp_path / "b", every_iterations=2, keep=5) == [2, 4, 6]
    assert kept(tmp_path / "c", every_iterations=2, keep=1) == [6]
    assert kept(tmp_path / "d", every_iterations=0) == []


@says("Checkpoint.every_minutes")
def test_checkpoints_are_written_after_so_many_minutes(tmp_path):
    often = kept(tmp_path / "a", 10.0, every_minutes=0.5, keep=100)
    seldom = kept(tmp_path / "b", 10.0, every_minutes=1.5, keep=100)
    assert len(often) > len(seldom) > 0
    assert kept(tmp_path / "c", 10.0, every_minutes=0.0) == []
    assert kept(tmp_path / "d", 10.0, every_minutes=60.0) == []


# --- kinds ----------------------------------------------------------------------------------------------------


def kinds(field, table=Config):
    """The names of the tables that a field can hold."""
    names = []
    for inner in tables(table.model_fields[field].annotation):
        tag = next((key for key in ("kind", "law", "name") if key in inner.model_fields), None)
        names.append(inner.model_fields[tag].annotation.__args__[0] if tag else "factory")
    return names


def named(name):
    return next(table for table in walk() if table.__name__ == name)


def different(found):
    """Whether all values are different."""
    texts = [repr(value) for value in found.values()]
    return len(set(texts)) == len(texts)


def test_every_kind_of_graph_is_another_graph(tmp_path):
    (tmp_path / "links.csv").write_text("\n".join(f"{i // 2},{i + 1}" for i in range(11)))  # a tree
    found = {}
    for kind in set(kinds("graph")) - {"custom"}:
        own = {"file": {"file": tmp_path / "links.csv"}, "geometric": {"radius": 0.6}}.get(kind, {})
        found[kind] = links(clients={"count": 12}, graph={"kind": kind, **own})
    assert different(found)


def test_every_kind_of_dynamics_shows_other_links():
    own = {
        "switching": {"graphs": [{"kind": "path"}], "period": 3},
        "bernoulli": {"up": 0.5},
        "markov": {"up": 0.5, "down": 0.4},
        "waypoint": {"speed": [0.05, 0.1]},
    }
    found = {}
    for kind in kinds("dynamics", named("Geometric")):
        table = {"kind": "geometric", "radius": 0.6, "dynamics": {"kind": kind, **own.get(kind, {})}}
        there = present(30, clients={"count": 6}, graph=table, train={"iterations": 30})
        found[kind] = None if there is None else there.tolist()
    assert different(found)


def test_every_law_draws_other_rates(tmp_path):
    (tmp_path / "rates.csv").write_text("client,rate\n" + "".join(f"{i},0.{i + 1}\n" for i in range(4)))
    (tmp_path / "capacities.csv").write_text(CAPACITIES)
    own = {
        "truncnorm": {"mean": 0.5, "std": 0.2},
        "bimodal": {"mean1": 0.1, "std1": 0.1, "mean2": 0.9, "std2": 0.1},
        "constant": {"value": 0.3},
        "list": {"values": [0.3, 0.4, 0.5, 0.6]},
        "csv": {"file": str(tmp_path / "rates.csv")},
        "poisson": {"rate": 0.7},
        "deadline": {"deadline": 3.0, "shift": 1.0, "rate": 0.2},
        "capacities": {"file": str(tmp_path / "capacities.csv")},
    }
    assert different({law: d(rates={"sgd": {"law": law, **own.get(law, {})}}) for law in kinds("sgd", named("Rates"))})


def test_every_dataset_is_the_one_of_its_name(monkeypatch, tmp_path):
    kind, made = type(DATASETS["fmnist"]), Dataset.from_arrays(*ARRAYS)
    real, files = kind.make, ("fmnist-mini", "fmnist", "mnist", "cifar10")
    fake = lambda self, *a: replace(made, name=self.name) if self.name in files else real(self, *a)  # noqa: E731
    monkeypatch.setattr(kind, "make", fake)
    own = {"npz": {"path": shards_in(tmp_path / "shards")}, "synthetic": {"partition": {"kind": "iid"}}}
    for name in kinds("data"):
        model = {"name": "linear"} if name == "ridge" else {"name": "svm"}
        given = UserInputs(data=Dataset.from_arrays(*ARRAYS, name="custom")) if name == "custom" else None
        found = built(given, data={"name": name, **own.get(name, {})}, model=model).runs[0].data.dataset.name
        assert found == own.get(name, {}).get("path", name)


def test_every_partition_deals_otherwise():
    own = {"dirichlet": {"alpha": 0.5}, "quantity": {"alpha": 0.5}, "shared": {"samples": 15}}
    found = {}
    for kind in kinds("partition", named("Synthetic")):
        dealt = setting(data={"partition": {"kind": kind, **own.get(kind, {})}}).data.shards
        found[kind] = [shard.tolist() for shard in dealt]
    assert different(found)


def test_every_model_is_another_model():
    found = {}
    for name in kinds("model"):
        table = {"name": name} if name != "factory" else {"factory": "tests.config.test_every_key_counts:flat"}
        if name == "linear":
            study = built(data={"name": "ridge"}, model=table)
        else:
            study = built(UserInputs(data=images(32)), model=table)
        found[name] = (study.model.name, study.model.loss, study.model.parameters)
    assert different(found)


def flat(input_shape, outputs):
    """A factory: the mean colours, and a linear layer."""
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(int(np.prod(input_shape)), outputs, bias=False))


def test_every_kind_of_learning_rate_falls_otherwise():
    own = {"diminishing": {"gamma": 3.0}, "step": {"every": 2, "factor": 0.5}}
    found = {}
    for kind in kinds("learning_rate", named("Train")):
        study = built(train={"learning_rate": {"kind": kind, "value": 0.1, **own.get(kind, {})}})
        found[kind] = rates_of(study, range(5))
    assert different(found)


# --- several processes ----------------------------------------------------------------------------------------


@says("Scale.split")
def test_the_split_says_whether_runs_or_clients_are_divided():
    runs = built(seeds=2).runs
    assert choose_split("auto", runs, 4)[0] == "runs" and choose_split("auto", runs[:3], 4)[0] == "clients"
    assert [choose_split(wanted, runs, 2)[0] for wanted in ("runs", "clients")] == ["runs", "clients"]


@says("Scale.timeout")
def test_the_timeout_is_how_long_ranks_wait_for_each_other(monkeypatch, capsys, tmp_path):
    heard = []
    monkeypatch.setattr(LocalTransport, "set_timeout", lambda self, seconds: heard.append(seconds))
    (tmp_path / "study.toml").write_text(TINY_TOML)
    CommandLine(monkeypatch, capsys, tmp_path)("run", "study.toml", "--set", "scale.timeout=7.5")
    assert heard == [7.5]


# --- nodes ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def keys_of_nodes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    new_keys(folder, range(4))
    return folder


def fingerprint(path):
    return read_certificates(path, "certificate")[0].fingerprint


def node(folder, keep=range(4), mine=1, **nodes):
    """Node 1 of a ring of four, with the keys of a folder."""
    entries = [{"id": j, "address": f"host{j}:77{j}", "certificate": str(folder / f"{j}.crt")} for j in keep]
    tls = {"certificate": str(folder / f"{mine}.crt"), "key": str(folder / f"{mine}.key")}
    config, study = build(tiny(nodes={"peer": entries, "tls": tls, **nodes}))
    return Node(config, study, NodeOptions(1, folder / "out"))


def plan_of(**nodes):
    config, study = build(tiny(nodes=nodes))
    return Job(config, study, 0, 1).plan()


@says("Nodes.run_id", "Nodes.retain", "Nodes.patience")
def test_a_plan_of_nodes_has_the_name_of_the_run_its_bounds_and_its_patience():
    found = plan_of(run_id="seven", retain="3 kB", patience=2.5)
    assert (found.run_id, found.retain, found.patience) == ("seven/dspodfl/0", 3000, 2.5)
    assert plan_of().patience is None and plan_of().run_id == "run/dspodfl/0"
    with pytest.raises(InputError, match=r"nodes\.retain"):
        plan_of(retain="1 B")


@says("Nodes.listen", "Peer.address")
def test_a_node_listens_where_it_is_told_or_on_the_port_of_its_entry(keys_of_nodes):
    assert node(keys_of_nodes)._listen() == "0.0.0.0:771"
    assert node(keys_of_nodes, listen="127.0.0.1:5000")._listen() == "127.0.0.1:5000"


@says("Nodes.peer", "Peer.id", "Peer.certificate")
def test_the_entries_of_the_neighbours_are_whom_a_node_trusts(keys_of_nodes):
    found = node(keys_of_nodes)._identity()
    wanted = {j: fingerprint(keys_of_nodes / f"{j}.crt") for j in (0, 2)}
    assert {j: certificates[0].fingerprint for j, certificates in found.peers.items()} == wanted
    with pytest.raises(InputError, match="node 2 is a neighbour of node 1 and has none"):
        node(keys_of_nodes, keep=(0, 1, 3))._identity()


@says("Peer.key")
def test_a_fingerprint_that_is_given_must_be_that_of_the_certificate(keys_of_nodes):
    def with_key(text):
        entries = [{"id": j, "address": "here:1", "certificate": str(keys_of_nodes / f"{j}.crt")} for j in (0, 2)]
        return node(keys_of_nodes, peer=[{**entries[0], "key": text}, entries[1]])

    with_key(fingerprint(keys_of_nodes / "0.crt"))._identity()
    with pytest.raises(InputError, match=r"nodes\.peer\.0\.key"):
        with_key("sha256:" + "0" * 64)._identity()


@says("Nodes.tls", "Tls.certificate", "Tls.key")
def test_the_certificate_of_a_node_is_the_one_that_is_named_or_beside_the_configuration(keys_of_nodes, tmp_path):
    other = fingerprint(keys_of_nodes / "3.crt")
    assert node(keys_of_nodes, mine=3)._identity().own.fingerprint == other
    for name in ("crt", "key"):
        shutil.copy(keys_of_nodes / f"3.{name}", tmp_path / f"node.{name}")
    beside = node(keys_of_nodes, tls={})
    beside.options = replace(beside.options, beside=tmp_path)
    assert beside._identity().own.fingerprint == fingerprint(tmp_path / "node.crt")
    with pytest.raises(InputError, match=r"nodes\.tls\.key"):
        node(
            keys_of_nodes, tls={"certificate": str(keys_of_nodes / "1.crt"), "key": str(tmp_path / "none")}
        )._identity()


@says("Tls.ca")
def test_with_a_ca_a_node_is_who_its_certificate_says(tmp_path):
    ca = new_ca(tmp_path)
    asked = request(tmp_path, 1, "seven")
    mine = approve([asked.path], tmp_path)[0]
    entries = [{"id": j, "address": "here:1"} for j in range(4)]
    tls = {"certificate": str(mine.path), "key": str(asked.key), "ca": str(ca.path)}
    node(tmp_path, peer=entries, tls=tls, run_id="seven")._identity()
    with pytest.raises(InputError, match="a certificate for dspodfl:eight/1"):
        node(tmp_path, peer=entries, tls=tls, run_id="eight")._identity()
