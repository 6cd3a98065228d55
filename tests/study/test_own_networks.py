"""Studies of algorithms on different graphs: [graph] for most, the complete graph or other weights for some."""

import numpy as np
import pytest
from tests.edge import on_the_cpu, tiny

from dspodfl import ConfigError, InputError, run
from dspodfl.algorithms import Algorithm
from dspodfl.config import footprint
from dspodfl.network import Events
from dspodfl.study import UserInputs, build

MIXED = ["dspodfl", "local_sgd", "gossip_pga", "pairwise_gossip", "matcha", "swift", "ad_psgd"]
BETA = {"sgd": {"law": "beta"}, "link": {"law": "beta"}}


@pytest.fixture(autouse=True)
def cpu(monkeypatch):
    on_the_cpu(monkeypatch)


def runs_of(**changes):
    study = build(tiny(algorithms=MIXED, seeds=2, clients={"count": 5}, rates=BETA, **changes))[1]
    return study, {(found.algorithm, found.seed): found for found in study.runs}


def by_ends(rates):
    return dict(zip(map(tuple, rates.graph.edges.tolist()), rates.link(np.arange(1))[0].tolist(), strict=True))


def test_links_that_both_graphs_have_keep_their_rates_and_clients_all_of_theirs():
    study, runs = runs_of()
    for seed in (0, 1):
        shared, whole = runs["dspodfl", seed].rates, runs["local_sgd", seed].rates
        assert shared.graph.links == 5 and whole.graph.links == 10
        assert whole is runs["gossip_pga", seed].rates  # one graph, one set of rates
        assert np.array_equal(whole.sgd(np.arange(1)), shared.sgd(np.arange(1)))
        here, there = by_ends(shared), by_ends(whole)
        assert here.items() <= there.items() and len(set(there.values())) == 10
        for name in ("pairwise_gossip", "matcha", "swift", "ad_psgd"):
            assert runs[name, seed].rates is shared and runs[name, seed].topology is not runs["dspodfl", seed].topology
    assert by_ends(runs["local_sgd", 0].rates) != by_ends(runs["local_sgd", 1].rates)
    assert [setting.rates.graph.links for setting in study.settings] == [5, 5]


def test_a_study_of_mixed_graphs_is_its_studies_apart_to_the_last_bit():
    changes = {"clients": {"count": 5}, "seeds": 2, "train": {"iterations": 12}, "rates": BETA}
    whole = run(tiny(algorithms=MIXED, **changes)).metrics
    for name in MIXED:
        alone = run(tiny(algorithms=[name], **changes)).metrics
        assert whole[whole["algorithm"] == name].reset_index(drop=True).equals(alone.reset_index(drop=True))


def test_tables_and_pictures_show_the_graph_of_the_study():
    found = run(tiny(algorithms=["dspodfl", "local_sgd"], clients={"count": 5}))
    assert (found.clients["degree"] == 2).all()
    assert len(found.settings[0]["edges"]) == 5


def test_link_uses_are_those_of_the_own_graph():
    found = run(tiny(algorithms=["local_sgd", "gossip_pga"], clients={"count": 5}, train={"iterations": 12}))
    last = found.metrics.groupby("algorithm").last()
    assert last.loc["local_sgd", "link_uses"] == 2 * 10
    assert last.loc["gossip_pga", "link_uses"] == 10 * 5 + 2 * 10


def test_events_are_recorded_with_the_own_graph():
    found = run(tiny(algorithms=["local_sgd"], clients={"count": 5}, train={"iterations": 10}), record_events=True)
    (events, edges), *_ = found.events.values()
    assert events.v_hat.shape == (10, 10) and len(edges) == 10 and events.v_hat.sum() == 20


def test_budgets_end_runs_on_their_own_graphs():
    found = run(
        tiny(algorithms=MIXED, clients={"count": 5}, rates=BETA, train={"until": {"delay": 30.0}, "iterations": None})
    )
    ends = found.metrics.groupby("algorithm").last()["delay_total"]
    assert (ends >= 30).all() and set(ends.index) == set(MIXED)


@pytest.mark.parametrize("name", ["local_sgd", "post_local", "gossip_pga"])
def test_a_graph_of_its_own_is_refused_where_links_come_and_go_or_rates_are_listed(name):
    bernoulli = {"kind": "ring", "dynamics": {"kind": "bernoulli", "up": 0.5}}
    with pytest.raises(
        InputError, match=rf"algorithms = '{name}': must be another .* graph.dynamics.kind = 'bernoulli'"
    ):
        build(tiny(algorithms=[name], graph=bernoulli))
    listed = {"link": {"law": "list", "values": [1.0, 0.5, 0.25, 1.0]}}
    with pytest.raises(InputError, match=rf"algorithms = '{name}': must be another .* rates.link.law = 'list'"):
        build(tiny(algorithms=[name], rates=listed))
    if name != "gossip_pga":
        near = {"name": name, "settings": {"average": "neighbours"}}
        assert build(tiny(algorithms=[near], rates=listed, graph=bernoulli))[1].runs


def test_weights_of_its_own_are_fine_there():
    bernoulli = {"kind": "ring", "dynamics": {"kind": "bernoulli", "up": 0.5}}
    found = run(tiny(algorithms=["pairwise_gossip", "matcha", "swift"], graph=bernoulli, train={"iterations": 30}))
    assert np.isfinite(found.metrics["loss"]).all()


def test_complete_graphs_count_before_anything_is_built():
    large = {"clients": {"count": 10**6}, "graph": {"kind": "ring"}}
    assert footprint.estimate(tiny(algorithms=["dspodfl"], **large)).bytes < 1e10
    for given in ("local_sgd", "gossip_pga", {"schedule": "local_sgd", "rule": "simultaneous", "label": "mine"}):
        assert footprint.estimate(tiny(algorithms=[given], **large)).bytes > 1e13
    near = {"name": "local_sgd", "settings": {"average": "neighbours"}}
    assert footprint.estimate(tiny(algorithms=[near], **large)).bytes < 1e10
    with pytest.raises(InputError, match=r"clients.count = 1000000: must be smaller: complete graphs of"):
        build(tiny(algorithms=["gossip_pga"], **large))


class Broken:
    """A schedule of a user's own, whose graph cannot be made."""

    def __call__(self, k, part, rates):
        return Events(np.ones((len(k), len(part.client)), bool), np.zeros((len(k), len(part.link)), bool))

    def graph(self, base):
        raise KeyError("hub")


def test_errors_in_the_graph_of_a_users_schedule_name_the_algorithm():
    config = tiny(algorithms=[{"schedule": "mine:Broken", "label": "mine"}])
    inputs = UserInputs(algorithms={"mine": Algorithm("mine", schedule=Broken())})
    with pytest.raises(InputError, match=r"algorithms = 'mine': must be run on a graph .* raised KeyError"):
        build(config, inputs)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"name": "local_sgd", "settings": {"period": 0}}, "period"),
        ({"name": "local_sgd", "settings": {"average": "some"}}, "average"),
        ({"name": "ldsgd", "settings": {"local_steps": -1}}, "local_steps"),
        ({"name": "ldsgd", "settings": {"gossip_steps": 0}}, "gossip_steps"),
        ({"name": "post_local", "settings": {"start": 1.5}}, "start"),
        ({"name": "gossip_pga", "settings": {"period": True}}, "period"),
        ({"name": "pairwise_gossip", "settings": {"clocks": "fast"}}, "clocks"),
        ({"name": "pairwise_gossip", "settings": {"steps": "all"}}, "steps"),
        ({"name": "matcha", "settings": {"budget": 0}}, "budget"),
        ({"name": "matcha", "settings": {"budget": 1.1}}, "budget"),
        ({"name": "swift", "settings": {"every": 0}}, "every"),
        ({"name": "ad_psgd", "settings": {"steps": "both"}}, "steps"),
    ],
)
def test_bad_settings_are_refused_with_field_value_and_what_is_allowed(given, field):
    with pytest.raises(ConfigError, match=rf"algorithms.settings.{field} = .*must be"):
        tiny(algorithms=[given])


def test_models_of_a_global_average_are_equal():
    found = run(tiny(algorithms=["gossip_pga"], clients={"count": 5}, train={"iterations": 6}, eval={"every": 3}))
    apart = found.metrics.set_index("iteration")["consensus_error"]
    assert apart[6] < 1e-9 < apart[3]
