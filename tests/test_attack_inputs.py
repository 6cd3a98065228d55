"""A slice of the attack on inputs, and the defects of that kind, each as it was found."""

import networkx as nx
import numpy as np
import pandas as pd
import pytest
from scripts.attack import extremes, hostile
from scripts.attack.hostile import ARCHIVES, EDGES, GRAPHMLS
from scripts.attack.sandbox import Ending, problem_of
from tests.edge import CommandLine, tiny

from dspodfl import Config, ConfigError, InputError, run
from dspodfl.analysis.metrics import METRICS
from dspodfl.config.grid import Axis, cells
from dspodfl.errors import DataError, bounded
from dspodfl.network.graph_io import read_graph
from dspodfl.problem.data import Dataset, load_npz
from dspodfl.problem.data.formats import read_cifar_python
from dspodfl.problem.data.synthetic import ridge
from dspodfl.theory.assess import assess

# --- a slice of the attack --------------------------------------------------------------------------------------


def test_a_sample_of_extreme_values_ends_in_success_or_plain_lines():
    found = extremes.sample(60, seed=1)
    assert found.failures == [] and found.tried == found.held == 60


def test_a_sample_of_hostile_files_ends_in_success_or_plain_lines():
    found = hostile.sample(40, seed=1)
    assert found.failures == [] and found.tried == found.held == 40


def test_extreme_values_are_tried_for_every_key_of_the_schema():
    places = dict.fromkeys(extremes.places(Config, ()))
    names = {table.__name__ for _, table in places}
    assert {"Config", "Geometric", "WaypointDynamics", "BimodalLaw", "Ridge", "Factory", "StepRate", "Scale"} <= names
    keys = sum(len(table.model_fields) for _, table in places)
    assert len(list(extremes.cases())) == keys * (len(extremes.VALUES) + 1)


@pytest.mark.parametrize(
    ("ending", "wrong"),
    [
        (Ending(0, "fine", ""), ""),
        (Ending(2, "", "error: seed = -1: must be larger\n"), ""),
        (Ending(1, "", "error: x\n"), "exit code 1"),
        (Ending(2, "", "Traceback (most recent call last):\n"), "a traceback"),
        (Ending(2, "", ""), "0 lines of errors"),
        (Ending(2, "", "oh no\n"), "a line that is no error line: 'oh no'"),
        (Ending(2, "", "error: \x1b[31m\n"), "control characters in the message"),
    ],
)
def test_the_attack_knows_a_good_ending_from_a_bad_one(ending, wrong):
    assert problem_of(ending) == wrong


# --- graphs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("nodes without ids", "a <node> without id"),
        ("one id four times", "two nodes with id 'a'"),
        ("a nested graph", "a <graph> inside a <graph>"),
        ("two graphs", "a second <graph>"),
        ("edges without ends", "an <edge> without source"),
        ("an edge to no node", "an edge of node 'z'"),
        ("a hyperedge", "a <hyperedge>"),
        ("entities that multiply", "<!DOCTYPE"),
        ("an entity of another file", "<!DOCTYPE"),
        ("30,000 elements inside one another", "elements inside one another"),
        ("an unknown encoding", "readable"),
        ("directed", "DiGraph"),
        ("parallel edges", "MultiGraph"),
    ],
)
def test_graphml_of_which_a_part_would_be_dropped_is_refused_by_name(tmp_path, name, says):
    GRAPHMLS[name](tmp_path / "net.graphml")
    with pytest.raises(InputError, match=r"graph\.file") as caught:
        read_graph(tmp_path / "net.graphml")
    assert says in str(caught.value) and len(str(caught.value).splitlines()) == 1


def test_graphml_as_networkx_writes_it_is_read_as_before(tmp_path):
    graph = nx.path_graph(4)
    nx.set_node_attributes(graph, {n: float(n) for n in graph}, "x")
    nx.set_node_attributes(graph, dict.fromkeys(graph, 0.5), "y")
    nx.write_graphml(graph, tmp_path / "net.graphml")
    found = read_graph(tmp_path / "net.graphml")
    assert found.edges.tolist() == [[0, 1], [1, 2], [2, 3]] and found.positions[3].tolist() == [3.0, 0.5]


def test_an_edge_list_of_half_a_million_links_is_read_and_one_of_one_column_has_no_links(tmp_path):
    EDGES["half a million links"](tmp_path / "links.csv")
    assert read_graph(tmp_path / "links.csv").links == 500_000
    EDGES["one column"](tmp_path / "links.csv")
    found = read_graph(tmp_path / "links.csv")
    assert (found.n, found.links, found.labels) == (4, 0, ("a", "b", "c", "d"))


# --- data -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("a label of 10⁹", "1,000,000,001 classes"),
        ("a label of 2⁶³ − 1", "at most 65,536"),
        ("a label of 2⁶⁴ − 1", "the label 18446744073709551615"),
        ("a header that claims 37 GB", "claims 40,000,000,000 bytes"),
    ],
)
def test_labels_and_headers_beyond_all_measure_are_refused(tmp_path, name, says):
    for file in ("a", "test"):
        ARCHIVES[name](tmp_path / f"{file}.npz")
    with pytest.raises(DataError) as caught:
        load_npz(tmp_path)
    assert says in str(caught.value)


def test_a_bomb_is_refused_by_what_it_says_it_unpacks_to(tmp_path, monkeypatch):
    ARCHIVES["3.75 GiB of zeros, packed"](tmp_path / "a.npz")
    monkeypatch.setattr("dspodfl.errors.memory.available", lambda: 2**32)
    with bounded.open_npz(tmp_path / "a.npz") as archive:
        assert archive.headers["x"].size == 240 * 2**24
        with pytest.raises(DataError, match=r"array x takes 3\.8 GiB, and 4\.0 GiB of memory are free"):
            archive["x"]
    assert (tmp_path / "a.npz").stat().st_size < 2**23


def test_samples_that_do_not_fit_together_are_refused_before_any_is_unpacked(tmp_path, monkeypatch):
    for file in ("a", "b", "c", "test"):
        np.savez_compressed(tmp_path / f"{file}.npz", x=np.zeros((1000, 100), np.float32), y=np.zeros(1000, int))
    monkeypatch.setattr("dspodfl.errors.memory.available", lambda: 10**6)
    monkeypatch.setattr("dspodfl.errors.bounded.npz.Npz.__getitem__", lambda self, name: pytest.fail("unpacked"))
    with pytest.raises(DataError, match=r"all its samples.* takes 3 MiB, and 1,000,000 bytes of memory are free"):
        load_npz(tmp_path)


def test_a_pickle_that_asks_for_a_memo_larger_than_itself_is_refused_before_it_is_read(tmp_path):
    (tmp_path / "data_batch_1").write_bytes(b"\x80\x02}r\xff\xff\xff\xff.")
    with pytest.raises(DataError, match="memo of 4,294,967,295 places"):
        read_cifar_python(tmp_path / "data_batch_1")


# --- what is varied ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ('graph={kind="ring"},{kind="complete"}', ["ring", "complete"]),
        ('graph={kind="grid",rows=2},{kind="ring"}', ["grid, rows = 2", "ring"]),
        ("eval.targets=[0.5],[0.6]", ["[0.5]", "[0.6]"]),
        ('train.dfedavg_period="auto",5', ["auto", "5"]),
        ('rates.sgd={law="beta",a=0.5,b=0.5},{law="uniform"}', ["beta, a = 0.5, b = 0.5", "uniform"]),
        ("data.seed=1,2", [1, 2]),
    ],
)
def test_tables_and_lists_are_points_with_labels_that_can_be_read(text, labels):
    assert [point.value for point in Axis.parse(text).points] == labels


def test_what_is_a_column_of_the_tables_anyway_cannot_be_varied():
    with pytest.raises(ConfigError, match="--over seed: must be another key"):
        cells({}, [Axis.parse("seed=1,2")], METRICS)


def test_an_escaped_quotation_mark_does_not_end_a_string():
    assert [point.value for point in Axis.parse(r'a="x\",y","z"').points] == ['x",y', "z"]


@pytest.mark.parametrize("command", [["sweep"], ["theory", "sweep"]])
def test_sweeps_over_tables_and_lists_are_run_written_and_drawn(monkeypatch, capsys, tmp_path, command):
    from tests.edge import TINY_TOML

    (tmp_path / "study.toml").write_text(TINY_TOML)
    dspodfl = CommandLine(monkeypatch, capsys, tmp_path)
    over = ["--over", 'graph={kind="ring"},{kind="complete"}', "--over", "eval.targets=[0.5],[0.6]"]
    found = dspodfl(*command, "study.toml", *over, "--out", "out")
    assert found.code == 0, found.err
    assert "complete" in found.out and "[0.6]" in found.out
    table = pd.read_csv(tmp_path / "out" / "table.csv")
    assert sorted(set(table["graph"])) == ["complete", "ring"] and len(table) == 8
    assert (tmp_path / "out" / "figure.svg").is_file()


@pytest.mark.parametrize("text", ["seed=[" + "[" * 900 + "]" * 900 + "]", "." * 3 + "=1"])
def test_what_nests_too_deep_cannot_be_varied_or_set(text):
    with pytest.raises(ConfigError, match="--over"):
        Axis.parse(text)


def test_bounds_over_more_iterations_than_can_be_summed_are_refused():
    with pytest.raises(InputError, match=r"train\.iterations = 2147483647: must be at most 10,000,000"):
        assess(tiny(train={"iterations": 2**31 - 1}))


@pytest.mark.parametrize("l2", [1e-12, 1e-308])
def test_bounds_whose_constants_leave_floating_point_are_refused(l2):
    with pytest.raises(InputError, match="stay within floating point"):
        assess(tiny(model={"name": "logistic", "l2": l2}))


# --- runs that diverge ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["fp64", "fp32"])
def test_a_run_whose_loss_overflows_has_diverged_in_every_precision(precision):
    rate = {"fp64": 1e6, "fp32": 30.0}[precision]
    result = run(
        Config(
            seeds=2,
            algorithms=["dgd"],
            clients={"count": 4},
            graph={"kind": "ring"},
            data={"name": "ridge"},
            train={"iterations": 40, "learning_rate": {"value": rate}, "precision": precision},
            eval={"every": 1},
        )
    )
    rows = result.metrics
    lost = rows["diverged"].to_numpy(dtype=bool)
    assert lost.any() and not lost.all()
    assert rows.loc[~lost, ["loss", "consensus_error", "optimality_error"]].apply(np.isfinite).all(axis=None)
    assert rows.loc[lost, ["loss", "consensus_error", "optimality_error"]].isna().all(axis=None)
    assert result.summary["algorithms"]["dgd"]["diverged"] == 2
    assert result.summary["algorithms"]["dgd"]["final_loss"] == {"mean": None, "std": None}


# --- run, in Python ---------------------------------------------------------------------------------------------


def test_the_penalty_of_a_ridge_problem_holds_for_data_given_in_python():
    data = ridge(seed=0, clients=4, samples=5, dimension=3, l2=0.0)
    config = tiny(data={"name": "ridge", "l2": 0.5}, model={"name": "linear"}, algorithms=["dgd"])
    result = run(config, data=data)
    assert result.config["model"] == {"name": "linear", "l2": 0.5}
    other = tiny(data={"name": "ridge", "l2": 0.5}, model={"name": "linear", "l2": 0.1})
    with pytest.raises(InputError, match=r"model\.l2 = 0\.1: must be left out"):
        run(other, data=data)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"config": 3}, "config"),
        ({"graph": 5}, "graph"),
        ({"graph": "ring"}, "graph"),
        ({"schedules": [1]}, "schedules"),
        ({"schedules": {1: print}}, "schedules"),
        ({"schedules": {"mine": 1}}, "algorithms"),
        ({"device": 3}, "device"),
        ({"device": None}, "device"),
        ({"callbacks": print}, "callbacks"),
        ({"callbacks": [1]}, "callbacks"),
        ({"callbacks": "print"}, "callbacks"),
        ({"record_events": "yes"}, "record_events"),
        ({"overwrite": 1}, "overwrite"),
        ({"progress": "yes"}, "progress"),
        ({"out": 3}, "out"),
        ({"resume": ["a"]}, "resume"),
        ({"data": 3}, "data"),
        ({"data": {"x": 1}}, "data"),
        ({"model": 3}, "model"),
    ],
)
def test_arguments_of_other_types_are_refused_by_name(arguments, field):
    with pytest.raises(InputError) as caught:
        run(**({"config": tiny()} | arguments))
    assert caught.value.field.startswith(field)


@pytest.mark.parametrize("table", [tiny(), tiny().train])
def test_a_configuration_cannot_be_changed_and_the_message_says_how_to_make_another(table):
    with pytest.raises(ConfigError, match=r"^seeds = 9: a configuration cannot be changed; make another: Config\("):
        table.seeds = 9
    assert Config(**tiny().model_dump() | {"seeds": 5}).seeds == 5


def test_a_configuration_that_nests_without_end_is_refused():
    deep: list = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(ConfigError, match="nest too deep"):
        Config(graph=deep)


def test_labels_are_classes_and_not_identifiers():
    with pytest.raises(DataError, match="number the classes 0, 1, 2"):
        Dataset.from_arrays(np.zeros((2, 3)), [0, 10**9], np.zeros((1, 3)), [0])
