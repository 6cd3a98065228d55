"""Methods with a server in a study: beside others, under all processes of clients, on ranks, resumed and recorded."""

import numpy as np
import pandas as pd
import pytest
import torch
from tests.edge import CommandLine, on_the_cpu, tiny
from tests.teams import together

from dspodfl import InputError, Result, run
from dspodfl.engine.counters import costs_of
from dspodfl.study import Simulation, build

MIXED = ["dspodfl", "fedavg", {"name": "scaffold", "settings": {"share": 0.5, "steps": 2}}, "anarchic"]
SERVED = ["fedavg", "scaffold", "anarchic"]
BETA = {"sgd": {"law": "beta"}, "link": {"law": "beta"}}


@pytest.fixture(autouse=True)
def cpu(monkeypatch):
    on_the_cpu(monkeypatch)


@pytest.fixture
def line(monkeypatch, capsys, tmp_path):
    return CommandLine(monkeypatch, capsys, tmp_path)


def test_a_study_of_all_is_its_studies_apart_to_the_last_bit():
    changes = {"seeds": 2, "train": {"iterations": 12}, "rates": BETA}
    whole = run(tiny(algorithms=MIXED, **changes)).metrics
    for given in MIXED:
        alone = run(tiny(algorithms=[given], **changes)).metrics
        name = alone["algorithm"][0]
        assert whole[whole["algorithm"] == name].reset_index(drop=True).equals(alone.reset_index(drop=True))


def test_the_model_of_the_server_is_evaluated_and_the_server_is_no_client():
    found = run(tiny(algorithms=MIXED, rates=BETA, train={"iterations": 12}))
    rows = found.metrics[found.metrics["algorithm"].isin(SERVED)]
    assert (rows["accuracy"] == rows["accuracy_average_model"]).all()
    assert (rows["accuracy_std"] == 0).all() and (rows["consensus_error"] == 0).all()
    assert (found.clients.groupby("algorithm").size() == 4).all()
    for name in SERVED:
        last = rows[rows["algorithm"] == name].iloc[-1]
        assert (found.clients.query("algorithm == @name")["final_accuracy"] == last["accuracy"]).all()
        assert last["loss"] != rows[rows["algorithm"] == name].iloc[0]["loss"]
        assert len(found.models(name, 0)) == 5  # the server is the last row


def test_clients_have_the_same_steps_and_rates_as_under_other_methods():
    study = build(tiny(algorithms=MIXED, rates=BETA))[1]
    runs = {found.algorithm: found for found in study.runs}
    start = np.arange(1)
    for name in SERVED:
        served = runs[name].rates
        assert np.array_equal(served.sgd(start)[:, :4], runs["dspodfl"].rates.sgd(start))
        assert served.graph.edges.tolist() == [[0, 4], [1, 4], [2, 4], [3, 4]]
        assert served is runs["fedavg"].rates and len(set(served.link(start)[0].tolist())) == 4
    found = run(tiny(algorithms=["dspodfl", "anarchic"], rates=BETA, train={"iterations": 40})).metrics
    steps = found.groupby("algorithm")["sgd_steps"].last()
    assert steps["dspodfl"] == steps["anarchic"] > 0


def test_steps_cost_the_mean_over_clients_and_links_that_of_the_star():
    (served,) = build(tiny(algorithms=["fedavg"], rates={"sgd": {"law": "list", "values": [0.5, 1.0, 0.25, 1.0]}}))[
        1
    ].runs
    step, use = costs_of(served, np.arange(1), served.topology.at(np.arange(1))[2])
    b = served.rates.link(np.arange(1))
    assert step[0] == pytest.approx(np.array([2.0, 1.0, 4.0, 1.0, 0.0]) / 4)
    assert use == pytest.approx(0.5 * (1 + 1 / 4) / b / 5)  # one model in one direction


def test_bytes_are_those_of_the_messages():
    found = run(tiny(algorithms=MIXED, train={"iterations": 12}, rates=BETA))
    last, p = found.metrics.groupby("algorithm").last(), found.summary["study"]["parameters"]
    assert last.loc["fedavg", "bytes"] == 2 * 4 * 2 * 4 * p  # rounds, clients, a model each way
    assert last.loc["scaffold", "bytes"] == 4 * 2 * 2 * 2 * 4 * p  # rounds, clients, two models each way
    assert last.loc["anarchic", "bytes"] == last.loc["anarchic", "link_uses"] * 2 * 4 * p


@pytest.mark.parametrize(
    "rates",
    [
        {"availability": {"kind": "clocks", "rate": [1.0, 2.0, 1.0, 3.0]}},
        {"churn": {"kind": "markov", "up": 0.3, "down": 0.2}},
        {"channel": {"kind": "gilbert_elliott", "up": 0.5, "down": 0.1}},
        {"diurnal": {"period": 10, "amplitude": 0.5, "phases": [0.0, 0.1, 0.2, 0.3]}},
        {"sgd": {"law": "list", "values": [0.5, 1.0, 0.25, 1.0]}},
        {"refresh": 3, "link_draw": "two_sided", **BETA},
    ],
    ids=lambda table: next(iter(table)),
)
def test_lists_by_client_need_no_entry_for_the_server_and_it_is_always_there(rates):
    config = tiny(algorithms=MIXED, rates=rates, train={"iterations": 30})
    found = run(config).metrics
    assert np.isfinite(found["loss"]).all()
    served = build(config)[1].runs[-1].rates
    assert served.sgd(np.arange(3))[:, 4].tolist() in ([1.0], [1.0] * 3)
    if served.activation is not None:
        assert served.activation.on(np.arange(9))[0][:, 4].all() and served.activation.share[0][4] == 1.0


def test_it_does_not_matter_what_becomes_of_the_graph_of_the_study():
    moving = {"kind": "ring", "dynamics": {"kind": "bernoulli", "up": 0.5}}
    still, other = (
        run(tiny(algorithms=["fedavg", "anarchic"], graph=graph, train={"iterations": 12})).metrics
        for graph in ({"kind": "ring"}, moving)
    )
    assert still.equals(other)


def test_what_cannot_be_with_a_server_is_refused():
    listed = {"link": {"law": "list", "values": [1.0, 0.5, 0.25, 1.0]}}
    with pytest.raises(InputError, match=r"algorithms = 'fedavg': must be another .* rates.link.law = 'list'"):
        build(tiny(algorithms=["fedavg"], rates=listed))
    with pytest.raises(InputError, match=r"algorithms = 'scaffold': must be one of .* graph.directed = true"):
        build(tiny(algorithms=["scaffold"], graph={"kind": "ring", "directed": True}))
    with pytest.raises(InputError, match=r"attack.kind = 'noise': must be left out with 'fedavg'"):
        build(tiny(algorithms=["fedavg"], attack={"kind": "noise", "clients": [1]}))


@pytest.mark.parametrize("split", ["runs", "clients"])
def test_ranks_come_to_what_one_process_comes_to(split):
    config = tiny(algorithms=MIXED, train={"iterations": 13}, scale={"split": split}, seeds=2, rates=BETA)
    alone = run(config, record_events=True)

    def work(team):
        simulation = Simulation(config, device="cpu", team=team, record_events=True)
        for _ in simulation:
            pass
        return simulation.result()

    found = together(2, work)[0]
    exact = ["algorithm", "seed", "iteration", "sgd_steps", "link_uses", "delay_total"]
    assert found.metrics[exact].equals(alone.metrics[exact])
    assert np.allclose(found.metrics["loss"], alone.metrics["loss"], atol=1e-5)
    for key, tensors in alone.stacked.items():
        assert all(torch.allclose(values, found.stacked[key][name], atol=1e-6) for name, values in tensors.items())


def test_a_study_that_is_stopped_and_resumed_is_the_one_in_one_go(line):
    config = tiny(algorithms=MIXED, train={"iterations": 14}, rates=BETA)
    whole = run(config)
    run(config, out=line.folder / "out", callbacks=[lambda update: update.iteration == 6])
    assert line("run", "--resume", "out", "--quiet").code == 0
    found = Result.load(line.folder / "out")
    pd.testing.assert_frame_equal(found.metrics, whole.metrics, check_exact=True)
    assert found.clients["final_accuracy"].equals(whole.clients["final_accuracy"])


def test_events_are_recorded_with_the_server_as_the_last_client_that_never_steps():
    found = run(tiny(algorithms=SERVED, train={"iterations": 12}), record_events=True)
    for events, edges in found.events.values():
        assert events.v.shape == (12, 5) and not events.v[:, 4].any() and events.v[:, :4].any()
        assert edges.tolist() == [[0, 4], [1, 4], [2, 4], [3, 4]]


def test_budgets_end_runs_with_a_server():
    found = run(tiny(algorithms=MIXED, rates=BETA, train={"until": {"delay": 3000.0}, "iterations": None}))
    assert (found.metrics.groupby("algorithm").last()["delay_total"] >= 3000).all()


def test_with_local_steps_corrected_the_minimizer_is_reached_although_half_of_the_clients_take_part():
    ridge = {"name": "ridge", "samples": 20, "dimension": 3}
    found = run(
        tiny(
            algorithms=["dspodfl", "fedavg", {"name": "scaffold", "settings": {"share": 0.5}}],
            data=ridge,
            model={"name": "linear"},
            rates=BETA,
            train={"iterations": 3000, "batch_size": "full", "precision": "fp64", "learning_rate": 0.05},
            eval={"every": 1000},
        )
    )
    ends = found.metrics.groupby("algorithm").last()["optimality_error"]
    assert ends["scaffold"] < 1e-20 < ends["fedavg"]
