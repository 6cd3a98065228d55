"""Studies on directed graphs: files of arcs, what is counted, recorded and drawn, and who is refused."""

import networkx as nx
import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.patches import FancyArrowPatch
from tests.edge import on_the_cpu, tiny
from tests.study.test_evaluator import on_ranks

from dspodfl import ConfigError, InputError, Result, Simulation, replay, run
from dspodfl.algorithms import ALGORITHMS, Algorithm
from dspodfl.algorithms.methods.push_sum import PushSum
from dspodfl.study.builder import build
from dspodfl.study.store.run_folder import RunFolder

ARCS = [(0, 1), (1, 2), (2, 3), (3, 0), (0, 2)]
DIRECTED = ["push_sum", "push_diging", "push_pull", "sporadic_tracking"]
RIDGE = {
    "data": {"name": "ridge", "dimension": 4, "heterogeneity": 0.5},
    "model": {"name": "linear"},
    "train": {"iterations": 40, "batch_size": 16, "learning_rate": {"kind": "constant", "value": 0.05}},
}


@pytest.fixture(autouse=True)
def _cpu(monkeypatch):
    on_the_cpu(monkeypatch)


@pytest.fixture
def arcs(tmp_path):
    """A file of arcs."""
    path = tmp_path / "arcs.csv"
    path.write_text("from,to\n" + "\n".join(f"{i},{j}" for i, j in ARCS))
    return str(path)


def on_arcs(arcs, **changes):
    graph = {"kind": "file", "file": arcs, "directed": True}
    return tiny(**({"algorithms": DIRECTED, "graph": graph, "seeds": 2} | changes))


def test_a_file_lists_arcs_and_the_same_study_can_be_given_in_python(arcs):
    from_file = run(on_arcs(arcs))
    for given in (ARCS, nx.DiGraph(ARCS), nx.to_numpy_array(nx.DiGraph(ARCS), nodelist=range(4))):
        found = run(tiny(algorithms=DIRECTED, seeds=2, graph={"kind": "geometric", "directed": True}), graph=given)
        pd.testing.assert_frame_equal(found.metrics, from_file.metrics)


def test_link_uses_are_of_arcs_and_bytes_of_one_way(arcs):
    result = run(on_arcs(arcs), record_events=True)
    assert len(result.events) == 2 * len(DIRECTED)
    for (algorithm, seed), (events, edges) in result.events.items():
        rows = result.metrics
        last = rows[(rows["algorithm"] == algorithm) & (rows["seed"] == seed)].iloc[-1]
        assert events.back.shape == events.v_hat.shape == (len(events.v), len(edges))
        assert last["link_uses"] == events.v_hat.sum() + events.back.sum()
        model = build(on_arcs(arcs))[1].model.parameters
        assert last["bytes"] % (4 * last["link_uses"]) == 0 and last["bytes"] >= last["link_uses"] * 4 * model
        fired = {tuple(edges[e]) for e in np.flatnonzero(events.v_hat.any(axis=0))}
        fired |= {tuple(edges[e][::-1]) for e in np.flatnonzero(events.back.any(axis=0))}
        assert fired <= set(ARCS)


def test_recorded_arcs_are_played_back(arcs, tmp_path):
    config = on_arcs(arcs, algorithms=["push_sum"], seeds=1)
    first = run(config, out=tmp_path / "out", record_events=True)
    loaded = Result.load(tmp_path / "out")
    (events, _), (before, _) = loaded.events["push_sum", 0], first.events["push_sum", 0]
    assert np.array_equal(events.back, before.back) and np.array_equal(events.v_hat, before.v_hat)
    again = Algorithm("again", schedule=replay(tmp_path / "out/events.npz", "push_sum", 0), rule=PushSum())
    second = run(config, algorithms=[again]).metrics
    pd.testing.assert_frame_equal(second.drop(columns="algorithm"), first.metrics.drop(columns="algorithm"))
    other = config.model_copy(update={"graph": config.graph.model_copy(update={"directed": False})})
    with pytest.raises(InputError, match="recorded on the same graph"):
        run(other, algorithms=[again])


def test_what_is_drawn_and_kept_of_a_digraph(arcs, tmp_path):
    result = run(on_arcs(arcs), out=tmp_path / "out")
    setting = Result.load(tmp_path / "out").settings[0]
    assert setting["arcs"].sum() == len(ARCS)
    assert ((setting["back"] > 0) == setting["arcs"][:, 1]).all() and (
        (setting["b"] > 0) == setting["arcs"][:, 0]
    ).all()
    assert result.summary["study"]["seeds"]["0"]["arcs"] == len(ARCS)
    (axis,) = result.plot_network().axes[:1]
    assert sum(isinstance(patch, FancyArrowPatch) for patch in axis.patches) == len(ARCS)


def test_a_stopped_study_is_resumed_to_the_last_bit(arcs, tmp_path, monkeypatch):
    monkeypatch.setattr(Result, "draw", lambda *_: set())
    changes = {"train": {"iterations": 12}, "checkpoint": {"every_iterations": 2, "every_minutes": 0.0}}
    with RunFolder(tmp_path / "out", {}) as folder:
        simulation = Simulation(on_arcs(arcs, **changes))
        simulation.open(folder, lambda: simulation.progress.iteration >= 8)
        for _ in simulation:
            pass
    assert run(resume=tmp_path / "out").metrics.equals(run(on_arcs(arcs, **changes)).metrics)


@pytest.mark.parametrize("name", [name for name, entry in ALGORITHMS.items() if not entry.directed])
def test_methods_that_mix_both_ways_are_refused_by_name(arcs, name):
    with pytest.raises(InputError, match=rf"algorithms = '{name}'.*push_sum.*graph\.directed = true.*symmetric"):
        build(on_arcs(arcs, algorithms=["push_sum", name]))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"graph": {"kind": "ring", "directed": True, "weights": "max_degree"}}, r"graph\.weights = 'max_degree'"),
        ({"graph": {"kind": "ring", "directed": True}, "rates": {"link_draw": "two_sided"}}, r"rates\.link_draw"),
    ],
)
def test_keys_that_do_not_suit_arcs_are_refused(changes, says):
    with pytest.raises(ConfigError, match=says):
        tiny(algorithms=["push_sum"], **changes)


def test_a_digraph_has_to_be_strongly_connected_and_directed_by_the_configuration(tmp_path):
    (tmp_path / "path.csv").write_text("0,1\n1,2\n2,3\n")
    with pytest.raises(InputError, match="strongly connected"):
        build(on_arcs(str(tmp_path / "path.csv")))
    with pytest.raises(InputError, match=r"graph = 'DiGraph'.*graph\.directed = true"):
        run(tiny(), graph=nx.DiGraph(ARCS))


def test_directed_methods_run_on_undirected_graphs_and_next_to_undirected_ones():
    result = run(tiny(algorithms=[*DIRECTED, "dspodfl"], graph={"kind": "ring"}))
    ends = result.metrics.groupby("algorithm")[["link_uses", "sgd_steps"]].max()
    assert ends.loc["push_sum"].equals(ends.loc["dspodfl"])


@pytest.mark.parametrize("kind", ["bernoulli", "markov", "switching"])
def test_links_of_digraphs_come_and_go(kind):
    how = {
        "bernoulli": {"up": 0.5},
        "markov": {"up": 0.3, "down": 0.3},
        "switching": {"graphs": [{"kind": "star"}], "period": 2},
    }
    graph = {"kind": "ring", "directed": True, "dynamics": {"kind": kind, **how[kind]}}
    result = run(tiny(algorithms=DIRECTED, graph=graph, train={"iterations": 12}))
    assert not result.metrics["diverged"].any() and (result.metrics["link_uses"] > 0).any()


def test_clients_of_a_digraph_walk():
    dynamics = {"kind": "waypoint", "speed": [0.05, 0.1]}
    graph = {"kind": "geometric", "radius": 0.6, "directed": True, "dynamics": dynamics}
    result = run(tiny(algorithms=DIRECTED, graph=graph, train={"iterations": 12}))
    assert not result.metrics["diverged"].any()


def test_split_over_ranks_it_is_the_same_study(arcs):
    config = on_arcs(arcs, seeds=1)
    alone, split = run(config), on_ranks(2, config)
    counts = ["link_uses", "sgd_steps", "delay_total", "delay_total_normalized", "bytes"]
    pd.testing.assert_frame_equal(alone.metrics[counts], split.metrics[counts])
    assert np.allclose(alone.metrics["loss"], split.metrics["loss"], rtol=1e-4)


def test_the_average_model_is_the_mean_of_what_is_pushed_and_not_of_the_ratios(arcs):
    """Without steps the mean of x stays where it began; the mean of x/w does not."""

    class Spread(PushSum):
        """Clients begin at different models."""

        def init(self, theta, links):
            theta += torch.arange(len(theta), dtype=theta.dtype)[:, None]
            return PushSum.init(self, theta, links)

    class Ratios(Spread):
        """The wrong version that averages the ratios."""

        averaged = None

    errors = {}
    for rule in (Spread, Ratios):
        given = Algorithm("own", schedule="dspodfl", rule=rule())
        config = on_arcs(arcs, seeds=1, **RIDGE, eval={"every": 1}, rates={"sgd": {"law": "constant", "value": 1e-9}})
        errors[rule] = run(config, algorithms=[given]).metrics["optimality_error"].to_numpy()[1:]
    assert np.allclose(errors[Spread], errors[Spread][0], rtol=1e-4)
    assert np.abs(errors[Ratios] / errors[Spread][0] - 1).max() > 0.01
