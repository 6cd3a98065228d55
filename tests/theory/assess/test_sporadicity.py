"""d_min, d_max and ρ̃ of a run are those of what its schedule and topology do."""

import numpy as np
import pytest
from tests.edge import tiny

from dspodfl.algorithms import Algorithm
from dspodfl.errors import InputError
from dspodfl.network import Graph
from dspodfl.network.events import Events
from dspodfl.network.weights import matrix
from dspodfl.study import UserInputs, build
from dspodfl.theory.assess import sporadicity
from dspodfl.theory.formulas.spectral import rho_tilde

HALF = {"law": "constant", "value": 0.5}


def runs(**changes):
    own = changes.pop("own", None)
    _, study = build(tiny(algorithms=["dspodfl", "dgd", "rg", "sporadic_sgd", "dfedavg"], **changes), own)
    return {run.algorithm: run for run in study.runs}, study.iterations


def by_draws(run, iterations):
    """The largest over k of the top eigenvalue of E[PᵀP] − 11ᵀ/m, from every combination of links that fire."""
    graph, found = run.rates.graph, 0.0
    for k in range(iterations):
        at = np.array([k])
        p = run.schedule.probabilities(at, run.rates)[1][0]
        present, r, _ = run.topology.at(at)
        p = p if present is None else p * present[0]
        square = np.zeros((graph.n, graph.n))
        for fired in np.ndindex(*(2,) * graph.links):
            chance = np.prod(np.where(fired, p, 1 - p))
            mix = matrix(graph.n, graph.edges, r[0] * np.array(fired))
            square += chance * mix.T @ mix
        found = max(found, np.linalg.eigvalsh(square - 1 / graph.n)[-1])
    return found


def test_each_algorithm_has_the_rates_it_fires_with():
    found, k = runs(rates={"sgd": {"law": "list", "values": [0.2, 0.9, 0.5, 0.7]}, "link": HALF})
    said = {name: sporadicity(run, k) for name, run in found.items()}
    ends = {name: (s.d_min, s.d_max) for name, s in said.items()}
    assert ends == {
        "dspodfl": (0.2, 0.9), "dgd": (1, 1), "rg": (1, 1), "sporadic_sgd": (0.2, 0.9), "dfedavg": (0, 1),
    }  # fmt: skip
    ring = found["dgd"].rates.graph
    third = np.full(4, 1 / 3)
    assert said["dgd"].rho_tilde == said["sporadic_sgd"].rho_tilde == pytest.approx(rho_tilde(ring, third, 1.0))
    assert said["rg"].rho_tilde == said["dspodfl"].rho_tilde == pytest.approx(rho_tilde(ring, third, 0.5))


def test_where_dfedavg_computes_without_exchange_mixing_contracts_nothing():
    found, k = runs(train={"iterations": 6, "dfedavg_period": 2})
    said = sporadicity(found["dfedavg"], k)
    assert said.rho_tilde == 1.0 and not said.contracts
    assert said.least.tolist() == said.largest.tolist() == [1, 1, 0, 1, 1, 0]


@pytest.mark.parametrize(
    "graph",
    [
        {"kind": "complete", "dynamics": {"kind": "switching", "period": 2, "graphs": [{"kind": "star"}]}},
        {"kind": "complete", "dynamics": {"kind": "markov", "up": 0.9, "down": 0.1}},
        {"kind": "geometric", "radius": 0.9, "dynamics": {"kind": "waypoint", "speed": [0.05, 0.1]}},
    ],
    ids=["switching", "markov", "waypoint"],
)
def test_the_graph_that_contracts_least_decides(graph):
    found, k = runs(graph=graph, rates={"link": HALF}, train={"iterations": 5})
    assert sporadicity(found["dspodfl"], k).rho_tilde == pytest.approx(by_draws(found["dspodfl"], k), abs=1e-9)


def test_links_that_flicker_fire_with_the_product_of_both_chances():
    graph = {"kind": "ring", "dynamics": {"kind": "bernoulli", "up": 0.6}}
    found, k = runs(graph=graph, rates={"link": HALF})
    ring = found["dspodfl"].rates.graph
    assert sporadicity(found["dspodfl"], k).rho_tilde == pytest.approx(rho_tilde(ring, np.full(4, 1 / 3), 0.3))


def test_links_drawn_at_both_ends_fire_more_often():
    found, k = runs(rates={"link": HALF, "link_draw": "two_sided"})
    ring = found["dspodfl"].rates.graph
    assert sporadicity(found["dspodfl"], k).rho_tilde == pytest.approx(rho_tilde(ring, np.full(4, 1 / 3), 0.75))


def test_rates_redrawn_or_growing_are_followed_through_time():
    found, k = runs(rates={"refresh": 2}, train={"iterations": 6})
    run = found["dspodfl"]
    d = run.rates.sgd(np.arange(6))
    said = sporadicity(run, k)
    assert np.array_equal(said.least, d.min(axis=1)) and len(set(said.least)) == 3
    each = [rho_tilde(run.rates.graph, np.full(4, 1 / 3), run.rates.link(np.array([t]))[0]) for t in (0, 2, 4)]
    assert said.rho_tilde == pytest.approx(max(each))
    rate = {"kind": "diminishing", "value": 0.1, "gamma": 1.0}
    found, k = runs(rates={"growth": "learning_rate"}, train={"learning_rate": rate})
    assert (np.diff(sporadicity(found["dspodfl"], k).least) > 0).all()


def always(k, part, rates):
    return Events(*(np.ones((len(k), n), bool) for n in (4, 4)))


def test_a_schedule_without_probabilities_is_refused_by_name():
    own = UserInputs(algorithms={"mine": Algorithm("mine", schedule=always)})
    _, study = build(tiny(algorithms=["mine:mine"]).model_copy(update={"algorithms": ["mine"]}), own)
    with pytest.raises(InputError, match="algorithms"):
        sporadicity(study.runs[0], study.iterations)


def test_one_client_needs_no_mixing():
    graph = Graph.from_edges(1, [])
    _, study = build(
        tiny(clients={"count": 1}, algorithms=["dspodfl"], graph={"kind": "complete", "allow_disconnected": True},
             data={"name": "ridge"}, model={"name": "linear"}),
        UserInputs(graph=graph),
    )  # fmt: skip
    assert sporadicity(study.runs[0], 4).rho_tilde == 0.0
