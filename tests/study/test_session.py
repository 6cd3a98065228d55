"""Studies in Python: ``result = run(Config(...))``, with custom models, data, graphs and algorithms."""

import networkx as nx
import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.figure import Figure
from tests.edge import TINY, merged, on_the_cpu, tiny
from torch import nn
from torch.utils.data import TensorDataset

import dspodfl
from dspodfl import Config, DataError, Dataset, Events, Federation, Graph, InputError, Result, Simulation, run
from dspodfl.algorithms.schedules import dgd
from dspodfl.analysis.metrics import METRICS
from dspodfl.problem.data import synthetic
from dspodfl.study.builder import build


@pytest.fixture(autouse=True)
def cpu(monkeypatch):
    on_the_cpu(monkeypatch)


def of(result, algorithm="dspodfl", seed=0):
    """The rows of one run."""
    metrics = result.metrics
    return metrics[(metrics["algorithm"] == algorithm) & (metrics["seed"] == seed)].reset_index(drop=True)


def numbers(result, **which):
    """The rows of one run without its name."""
    return of(result, **which).drop(columns=["algorithm"])


# --- the interface --------------------------------------------------------------------------------------------


def test_everything_the_package_promises_is_there():
    assert sorted(dir(dspodfl)) == sorted(dspodfl.__all__)
    for name in dspodfl.__all__:
        assert getattr(dspodfl, name) is not None
    with pytest.raises(AttributeError, match="nothing"):
        _ = dspodfl.nothing


def test_the_default_configuration_is_the_papers_on_the_bundled_images():
    config = Config()
    assert (config.clients.count, config.seeds, config.data.name, config.model.name) == (10, 3, "fmnist-mini", "svm")
    assert config.algorithms == ["dspodfl", "dgd", "rg", "sporadic_sgd", "dfedavg"]
    found = run(Config(seeds=1, algorithms=["dgd"], train={"iterations": 1})).metrics
    assert found["iteration"].tolist() == [0, 1]


def test_a_study_may_be_named_in_numpy_numbers():
    config = tiny(
        seed=np.int64(2), seeds=np.int32(1), clients={"count": np.int64(4)}, train={"iterations": np.int64(3)}
    )
    pd.testing.assert_frame_equal(run(config).metrics, run(tiny(seed=2, train={"iterations": 3})).metrics)


def test_rows_are_sorted_by_algorithm_as_named_then_seed_then_iteration():
    result = run(tiny(algorithms=["rg", "dgd"], seeds=2, seed=4, eval={"every": 3, "at_delay": [2.0, 9.0]}))
    rows = result.metrics[["algorithm", "seed", "iteration"]]
    order = rows.assign(algorithm=rows["algorithm"].map({"rg": 0, "dgd": 1}))
    assert order.equals(order.sort_values(["algorithm", "seed", "iteration"]))
    assert not rows.duplicated().any()
    assert tuple(result.metrics.columns) == METRICS


def test_a_callback_hears_the_rows_of_every_evaluation():
    heard = []
    result = run(tiny(), callbacks=[lambda update: heard.append((update.iteration, update.iterations, update.rows))])
    assert [(iteration, of_all) for iteration, of_all, _ in heard] == [(0, 4), (2, 4), (4, 4)]
    rows = pd.DataFrame([row for _, _, rows in heard for row in rows]).astype({"optimality_error": float})
    rows = rows.sort_values(["algorithm", "iteration"], ascending=[False, True]).reset_index(drop=True)
    pd.testing.assert_frame_equal(rows, result.metrics, check_dtype=False)


def test_a_callback_sees_the_models_of_a_run():
    seen = {}

    def look(update):
        seen[update.iteration] = update.theta("dgd", 0).clone()
        with pytest.raises(KeyError):
            update.theta("rg", 0)

    result = run(tiny(), callbacks=[look])
    assert seen[0].shape == (4, 16)
    last = torch.cat([torch.cat([v.flatten() for v in model.values()])[None] for model in result.models("dgd")])
    assert torch.equal(seen[4], last)
    assert not torch.equal(seen[2], last)


@pytest.mark.parametrize("answer", [True, np.True_])
def test_a_callback_that_answers_true_ends_the_study_there(answer):
    result = run(tiny(), callbacks=[lambda update: None, lambda update: answer if update.iteration == 2 else 1])
    assert sorted(set(result.metrics["iteration"])) == [0, 2]
    assert (result.summary["study"]["iterations_done"], result.summary["study"]["complete"]) == (2, False)


def test_a_study_iterated_by_hand_can_be_left_at_any_time():
    simulation = Simulation(tiny())
    assert not simulation.measured
    with pytest.raises(InputError, match="at least one evaluation"):
        simulation.result()
    for update in simulation:
        if update.iteration == 2:
            break
    assert simulation.measured
    assert simulation.result().metrics["iteration"].max() == 2
    assert [update.iteration for update in simulation] == [0, 2, 4]  # it begins again
    pd.testing.assert_frame_equal(simulation.result().metrics, run(tiny()).metrics)


# --- results --------------------------------------------------------------------------------------------------


def same(one, other):
    pd.testing.assert_frame_equal(one.metrics, other.metrics)
    pd.testing.assert_frame_equal(one.clients, other.clients)
    assert one.summary == other.summary
    assert one.config_toml == other.config_toml
    assert one.settings.keys() == other.settings.keys()
    for seed, arrays in one.settings.items():
        assert arrays.keys() == other.settings[seed].keys()
        assert all(np.array_equal(array, other.settings[seed][name]) for name, array in arrays.items())


def test_a_result_is_the_same_after_saving_and_loading(tmp_path):
    result = run(tiny(seeds=2, graph={"kind": "geometric", "radius": 0.9}), record_events=True)
    assert result.save(tmp_path / "out") == tmp_path / "out"
    loaded = Result.load(str(tmp_path / "out"))
    same(loaded, result)
    for algorithm, seed in result.stacked:
        for one, other in zip(result.models(algorithm, seed), loaded.models(algorithm, seed), strict=True):
            assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
    for key, (events, edges) in result.events.items():
        assert np.array_equal(loaded.events[key][0].v, events.v)
        assert np.array_equal(loaded.events[key][0].v_hat, events.v_hat)
        assert np.array_equal(loaded.events[key][1], edges)
    loaded.save(tmp_path / "again")
    for path in (tmp_path / "out").rglob("*"):
        if path.is_file():
            assert (tmp_path / "again" / path.relative_to(tmp_path / "out")).read_bytes() == path.read_bytes()


def test_models_are_loaded_only_if_they_were_saved(tmp_path, monkeypatch):
    monkeypatch.setattr(Result, "draw", lambda *_: set())
    result = run(tiny())
    assert len(result.models("dspodfl", seed=0)) == 4
    result.save(tmp_path / "out", models=False)
    with pytest.raises(InputError, match="not saved"):
        Result.load(tmp_path / "out").models("dspodfl", seed=0)
    with pytest.raises(InputError, match=r"'rg', seed=3.*\('dspodfl', seed=0\), \('dgd', seed=0\)"):
        result.models("rg", seed=3)


def test_models_of_a_run_are_copies(tmp_path):
    result = run(tiny())
    first = result.models("dgd")[0]["linear.bias"]
    before = first.clone()
    first.add_(1)
    assert torch.equal(result.models("dgd")[0]["linear.bias"], before)


def test_an_existing_folder_is_refused_unless_it_may_be_overwritten(tmp_path, monkeypatch):
    monkeypatch.setattr(Result, "draw", lambda *_: set())
    result = run(tiny())
    with pytest.raises(InputError, match="does not exist yet"):
        result.save(tmp_path)
    assert list(tmp_path.iterdir()) == []
    result.save(tmp_path, overwrite=True)
    same(Result.load(tmp_path), result)


def test_a_folder_that_is_no_result_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"no summary.json"):
        Result.load(tmp_path)


def test_a_result_draws_itself():
    result = run(tiny())
    assert isinstance(result.plot(), Figure)
    assert isinstance(result.plot_network(), Figure)
    assert result.title == "synthetic (labels per_client=1), svm, 4 clients, 1 seed"


def test_the_clients_table_says_what_each_client_is():
    config = tiny(seeds=2, graph={"kind": "star"})
    result = run(config)
    _, study = build(config)
    assert len(result.clients) == 2 * 2 * 4
    for row in result.clients.itertuples():
        setting = study.settings[row.seed]
        held = setting.data.dataset.y_train[setting.data.shards[row.client]]
        assert (row.degree, row.samples, row.name) == (3 if row.client == 0 else 1, len(held), str(row.client))
        assert list(row.labels) == sorted(set(held.tolist()))
        assert row.d == setting.rates.sgd(np.zeros(1, dtype=int))[0, row.client]
    for (algorithm, seed), rows in result.clients.groupby(["algorithm", "seed"]):
        last = of(result, algorithm, seed).iloc[-1]
        assert rows["final_accuracy"].mean() == pytest.approx(last["accuracy"])
        assert rows["final_accuracy"].std(ddof=0) == pytest.approx(last["accuracy_std"], abs=1e-12)
        assert rows["final_accuracy"].min() == last["accuracy_min"]
    assert study.model.parameters == result.summary["study"]["parameters"]


# --- what is measured -----------------------------------------------------------------------------------------


def test_row_0_is_the_common_initial_model_with_all_counters_zero():
    config = tiny(seeds=2)
    result = run(config)
    _, study = build(config)
    counters = [name for name in METRICS if name.startswith("delay")] + ["sgd_steps", "link_uses", "bytes"]
    first = result.metrics[result.metrics["iteration"] == 0]
    assert len(first) == 4
    assert (first[counters] == 0).all(axis=None)
    assert (first["consensus_error"] == 0).all() and (first["accuracy_std"] == 0).all()
    assert not first["diverged"].any()
    for row in first.itertuples():
        data = study.settings[row.seed].data.dataset
        scores = study.model.scores(study.model.initial(row.seed), torch.from_numpy(data.x_test))
        right = (scores.argmax(dim=1) == torch.from_numpy(data.y_test)).double().mean().item()
        assert row.accuracy == row.accuracy_min == row.accuracy_average_model == pytest.approx(right)


def test_accuracies_are_those_of_the_models_on_the_whole_test_set():
    config = tiny(train={"iterations": 40, "learning_rate": {"kind": "constant", "value": 0.5}}, eval={"every": 40})
    result = run(config)
    data = build(config)[1].settings[0].data.dataset
    last = of(result).iloc[-1]
    own, losses, thetas = [], [], []
    for state in result.models("dspodfl"):
        scores = data.x_test @ state["linear.weight"].numpy().T + state["linear.bias"].numpy()
        own.append((scores.argmax(axis=1) == data.y_test).mean())
        margins = np.maximum(0, 1 + scores - scores[np.arange(20), data.y_test][:, None])
        margins[np.arange(20), data.y_test] = 0
        losses.append(margins.sum(axis=1).mean() / 4)
        thetas.append(np.concatenate([value.numpy().ravel() for value in state.values()]).astype(np.float64))
    assert last["accuracy"] == pytest.approx(np.mean(own))
    assert last["accuracy_std"] == pytest.approx(np.std(own))
    assert last["accuracy_min"] == pytest.approx(np.min(own))
    assert last["loss"] == pytest.approx(np.mean(losses), rel=1e-5)
    mean = np.mean(thetas, axis=0)
    assert last["consensus_error"] == pytest.approx(np.sum((np.array(thetas) - mean) ** 2), rel=1e-6)
    scores = data.x_test @ mean[:12].reshape(4, 3).T + mean[12:]
    assert last["accuracy_average_model"] == pytest.approx((scores.argmax(axis=1) == data.y_test).mean())


def test_bytes_are_two_models_of_four_bytes_a_parameter_for_every_use_of_a_link():
    result = run(tiny(train={"iterations": 20}))
    assert result.summary["study"]["parameters"] == 16
    assert (result.metrics["bytes"] == 2 * result.metrics["link_uses"] * 4 * 16).all()
    assert of(result, "dgd")["link_uses"].iloc[-1] == 20 * 4
    assert 0 < of(result)["link_uses"].iloc[-1] < 20 * 4


def test_totals_are_processing_plus_transmission():
    metrics = run(tiny(train={"iterations": 20})).metrics
    for ending in ("", "_normalized"):
        parts = metrics[f"delay_processing{ending}"] + metrics[f"delay_transmission{ending}"]
        assert np.allclose(metrics[f"delay_total{ending}"], parts, rtol=1e-12)


def test_regression_has_null_accuracies_and_comes_near_its_optimum():
    result = run(
        tiny(
            data={"name": "ridge", "dimension": 4, "heterogeneity": 0.1},
            model={"name": "linear"},
            rates={"sgd": {"law": "constant", "value": 0.5}},
            train={"iterations": 100, "batch_size": 16, "learning_rate": {"kind": "constant", "value": 0.1}},
            eval={"every": 50},
        )
    )
    columns = ["accuracy", "accuracy_std", "accuracy_min", "accuracy_average_model"]
    assert result.metrics[columns].isna().all(axis=None)
    for algorithm in ("dspodfl", "dgd"):
        errors = of(result, algorithm)["optimality_error"].to_numpy()
        assert errors[-1] < 0.1 * errors[0]
    assert result.clients["final_accuracy"].isna().all()
    assert all(len(held) == 0 for held in result.clients["labels"])


def test_classification_has_no_optimality_error():
    assert run(tiny()).metrics["optimality_error"].isna().all()


def test_ridge_data_have_no_known_optimum_for_another_model():
    result = run(tiny(data={"name": "ridge", "dimension": 4}, model={"name": "mlp", "hidden": [3]}))
    assert result.metrics["optimality_error"].isna().all()
    assert np.isfinite(result.metrics["loss"]).all()


def test_algorithms_of_a_seed_share_graph_rates_shards_and_initial_model():
    result = run(tiny(algorithms=["dspodfl", "dgd", "rg"], seeds=2, graph={"kind": "erdos_renyi"}))
    assert sorted(result.settings) == [0, 1]
    for _, rows in result.clients.groupby("seed"):
        shared = rows.assign(labels=rows["labels"].map(tuple)).drop(columns=["algorithm", "final_accuracy"])
        runs = [run.drop(columns=[]).reset_index(drop=True) for _, run in shared.groupby(rows["algorithm"])]
        assert len(runs) == 3
        assert runs[0].equals(runs[1]) and runs[0].equals(runs[2])
    for _, first in result.metrics[result.metrics["iteration"] == 0].groupby("seed"):
        assert len(first.drop(columns=["algorithm"]).drop_duplicates()) == 1


def test_a_run_is_the_same_whatever_else_is_in_the_study():
    alone = run(tiny(algorithms=["dgd"], seed=1))
    among = run(tiny(algorithms=["rg", "dgd", "dfedavg"], seeds=2))
    exact = [name for name in METRICS if name.startswith("delay")] + ["sgd_steps", "link_uses", "iteration"]
    assert of(alone, "dgd", 1)[exact].equals(of(among, "dgd", 1)[exact])
    assert of(alone, "dgd", 1)["loss"].tolist() == pytest.approx(of(among, "dgd", 1)["loss"].tolist(), rel=1e-5)


def test_precision_is_named_in_the_result_and_decides_the_arithmetic():
    found = {name: run(tiny(train={"precision": name}), device="cpu") for name in ("auto", "fp32", "fp64", "bf16")}
    assert [r.summary["study"]["precision"] for r in found.values()] == ["fp32", "fp32", "fp64", "bf16"]
    types = {name: r.models("dgd")[0]["linear.weight"].dtype for name, r in found.items()}
    assert types == {"auto": torch.float32, "fp32": torch.float32, "fp64": torch.float64, "bf16": torch.float32}
    losses = {name: of(r, "dgd")["loss"].iloc[-1] for name, r in found.items()}
    assert losses["auto"] == losses["fp32"]
    assert 0 < abs(losses["fp32"] - losses["fp64"]) < abs(losses["bf16"] - losses["fp64"])
    for r in found.values():
        assert of(r, "dgd")["sgd_steps"].tolist() == [0, 8, 16]


def test_a_study_leaves_torch_as_it_was():
    torch.manual_seed(7)
    state, matrix = torch.get_rng_state(), torch.get_float32_matmul_precision()
    np.random.seed(7)  # noqa: NPY002
    numpy_state = np.random.get_state()[1].tolist()  # noqa: NPY002
    run(tiny(model={"factory": "torch.nn:Linear", "arguments": {"in_features": 3, "out_features": 4}}))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_float32_matmul_precision() == matrix
    assert np.random.get_state()[1].tolist() == numpy_state  # noqa: NPY002


# --- own model ------------------------------------------------------------------------------------------------


class Network(nn.Module):
    """A user's own."""

    def __init__(self, input_shape, outputs, width=3):
        super().__init__()
        self.inner, self.outer = nn.Linear(input_shape[0], width), nn.Linear(width, outputs)

    def forward(self, x):
        return self.outer(torch.tanh(self.inner(x)))


def test_a_model_may_be_a_callable_or_a_path_to_it(tmp_path, monkeypatch):
    (tmp_path / "own_network_of_simulation.py").write_text(
        "from torch import nn\ndef network(input_shape, outputs, width=3):\n"
        "    return nn.Sequential(nn.Linear(input_shape[0], width), nn.Tanh(), nn.Linear(width, outputs))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import own_network_of_simulation as own

    path = {"factory": "own_network_of_simulation:network"}
    named, given = run(tiny(model=path)), run(tiny(), model=own.network)
    pd.testing.assert_frame_equal(named.metrics, given.metrics)
    assert given.config["model"]["factory"] == "own_network_of_simulation:network"
    assert given.summary["study"]["parameters"] == 3 * 3 + 3 + 3 * 4 + 4
    wide = run(tiny(model=path | {"arguments": {"width": 5}}))
    assert wide.summary["study"]["parameters"] == 3 * 5 + 5 + 5 * 4 + 4


def test_a_model_may_be_a_class():
    result = run(tiny(), model=Network)
    assert set(result.models("dgd")[0]) == {"inner.weight", "inner.bias", "outer.weight", "outer.bias"}
    assert result.config["model"]["factory"].endswith("test_session:Network")


def test_a_module_is_copied_and_is_the_initial_model_of_every_seed():
    module = Network((3,), 4)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    first = []
    result = run(
        tiny(seeds=2), model=module, callbacks=[lambda u: first.append([u.theta("dgd", s).clone() for s in (0, 1)])]
    )
    start = torch.cat([value.flatten() for value in before.values()])
    assert all(torch.equal(client, start) for seed in first[0] for client in seed)
    assert all(torch.equal(value, module.state_dict()[name]) for name, value in before.items())
    assert not torch.equal(result.models("dgd")[0]["inner.weight"], before["inner.weight"])
    Network((3,), 4).load_state_dict(result.models("dgd")[0])


def test_a_model_that_does_not_fit_the_data_is_refused():
    with pytest.raises(InputError, match=r"model.factory = 'Linear'"):
        run(tiny(), model=nn.Linear(7, 4))


# --- own data -------------------------------------------------------------------------------------------------


def arrays(seed=0):
    made = synthetic(seed, samples=60, test_samples=20, features=3, classes=4)
    return made.x_train, made.y_train, made.x_test, made.y_test


def test_data_may_be_arrays_tensors_a_dataset_or_a_pair_of_torch_datasets():
    expected = run(tiny())
    x, y, x_test, y_test = arrays()
    tensors = [torch.from_numpy(array) for array in arrays()]
    for data in (
        (x, y, x_test, y_test),
        [*tensors],
        Dataset.from_arrays(x, y, x_test, y_test),
        (TensorDataset(*tensors[:2]), TensorDataset(*tensors[2:])),
    ):
        result = run(tiny(), data=data)
        pd.testing.assert_frame_equal(result.metrics, expected.metrics)
        assert result.config["data"]["name"] == "custom"
        assert result.config["data"]["partition"]["kind"] == "labels"


def test_data_may_be_shards_of_ones_own():
    dataset = Dataset.from_arrays(*arrays())
    shards = tuple(np.arange(i, 60, 5) for i in range(5))
    result = run(
        Config(**{key: value for key, value in TINY.items() if key != "clients"}), data=Federation(dataset, shards, {})
    )
    assert result.config["clients"]["count"] == 5  # as many as there are shards
    assert result.clients["samples"].tolist() == [12] * 10
    assert "partition" not in result.config["data"]
    assert result.title.startswith("custom (own shards)")
    with pytest.raises(InputError, match=r"clients.count = 4: must be 5"):
        run(tiny(), data=Federation(dataset, shards, {}))


def test_an_optimum_of_ones_own_is_measured_against_and_must_fit_the_model():
    dataset = Dataset.from_arrays(*arrays())
    shards = tuple(np.arange(i, 60, 4) for i in range(4))
    result = run(tiny(), data=Federation(dataset, shards, {}, np.zeros(16)))
    first = build(tiny())[1].model.initial(0).double()
    assert of(result)["optimality_error"].iloc[0] == pytest.approx(first.square().sum().item(), rel=1e-6)
    with pytest.raises(InputError, match=r"data.optimum = 'shape \(3,\)'"):
        run(tiny(), data=Federation(dataset, shards, {}, np.zeros(3)))


def test_data_may_be_a_folder_of_npz_files_one_a_client(tmp_path):
    x, y, x_test, y_test = arrays()
    for i in range(3):
        np.savez(tmp_path / f"client{i}.npz", x=x[i::3], y=y[i::3])
    np.savez(tmp_path / "test.npz", x=x_test, y=y_test)
    raw = merged({key: value for key, value in TINY.items() if key != "clients"}, {})
    result = run(Config(**raw | {"data": {"name": "npz", "path": str(tmp_path)}}))
    assert result.config["clients"]["count"] == 3
    assert result.clients["samples"].tolist() == [20] * 6
    assert result.summary["study"]["seeds"]["0"]["data"]["files"] == ["client0.npz", "client1.npz", "client2.npz"]
    shards = tuple(np.arange(i, 60, 3) for i in range(3))
    same_data = run(Config(**raw), data=Federation(Dataset.from_arrays(x, y, x_test, y_test), shards, {}))
    assert of(result)["sgd_steps"].equals(of(same_data)["sgd_steps"])
    assert of(result)["loss"].tolist() == pytest.approx(of(same_data)["loss"].tolist(), rel=1e-5)


def test_own_regression_data_have_a_loss_and_no_accuracy():
    x, y, x_test, y_test = arrays()
    config = tiny(data={"name": "custom", "partition": {"kind": "iid"}}, model={"name": "linear"})
    result = run(config, data=(x, y.astype(np.float32), x_test, y_test.astype(np.float32)))
    assert result.metrics["accuracy"].isna().all() and np.isfinite(result.metrics["loss"]).all()


def test_data_that_are_nothing_known_are_refused():
    for data in ("fmnist", np.zeros((3, 3)), (1, 2, 3)):
        with pytest.raises(InputError, match=r"^data = '"):
            run(tiny(), data=data)


# --- own graph ------------------------------------------------------------------------------------------------

NAMES = ["ann", "bob", "cem", "dia", "eva"]


def named_graph():
    graph = nx.path_graph(5)
    return nx.relabel_nodes(graph, dict(enumerate(NAMES)))


def without_clients(**changes):
    return Config(**merged({key: value for key, value in TINY.items() if key != "clients"}, changes))


def test_a_networkx_graph_keeps_its_names_in_every_table(tmp_path, monkeypatch):
    monkeypatch.setattr(Result, "draw", lambda *_: set())
    result = run(without_clients(), graph=named_graph())
    assert result.config["clients"]["count"] == 5
    assert result.clients["name"].tolist() == NAMES * 2
    assert result.clients["degree"].tolist() == [1, 2, 2, 2, 1] * 2
    assert result.settings[0]["labels"].tolist() == NAMES
    result.save(tmp_path / "out")
    loaded = Result.load(tmp_path / "out")
    assert loaded.clients["name"].tolist() == NAMES * 2
    assert loaded.settings[0]["labels"].tolist() == NAMES
    texts = [text.get_text() for text in loaded.plot_network().axes[0].texts]
    assert texts == NAMES


def test_an_edge_list_and_a_graphml_file_are_the_same_graph(tmp_path):
    graph = named_graph()
    (tmp_path / "links.txt").write_text("# a path\nsource target\n" + "".join(f"{a} {b}\n" for a, b in graph.edges))
    (tmp_path / "links.csv").write_text("".join(f'"{a}", "{b}"\n' for a, b in graph.edges))
    nx.write_graphml(graph, tmp_path / "links.graphml")
    expected = run(without_clients(), graph=graph)
    for name in ("links.txt", "links.csv", "links.graphml"):
        result = run(without_clients(graph={"kind": "file", "file": tmp_path / name}))
        pd.testing.assert_frame_equal(result.metrics, expected.metrics)
        pd.testing.assert_frame_equal(result.clients, expected.clients)


def test_a_line_that_looks_like_a_header_is_a_link_unless_it_is_the_first(tmp_path):
    (tmp_path / "links.csv").write_text("g,h\nh,i\ni,j\n")
    result = run(without_clients(graph={"kind": "file", "file": tmp_path / "links.csv"}))
    assert result.settings[0]["edges"].tolist() == [[0, 1], [1, 2], [2, 3]]


def test_numbered_clients_of_a_file_are_in_the_order_of_their_numbers(tmp_path):
    (tmp_path / "links.csv").write_text("10,2\n2,1\n1,30\n")
    result = run(without_clients(graph={"kind": "file", "file": tmp_path / "links.csv"}))
    assert result.clients["name"].tolist()[:4] == ["1", "2", "10", "30"]
    assert result.settings[0]["edges"].tolist() == [[0, 1], [0, 3], [1, 2]]


GRAPHML = """<graphml xmlns="http://graphml.graphdrawing.org/xmlns">
<key id="x" for="node" attr.name="x" attr.type="{kind}"/><key id="y" for="node" attr.name="y" attr.type="{kind}"/>
<key id="p" for="node" attr.name="pos" attr.type="string"/>
<graph edgedefault="undirected">
<node id="a"><data key="x">{x}</data><data key="y">0.5</data><data key="p">ab</data></node>
<node id="b"><data key="x">0.25</data><data key="y">1</data></node>
<edge source="a" target="b"/></graph></graphml>"""


@pytest.mark.parametrize(
    ("kind", "x", "known"), [("double", "0.75", True), ("string", "left", False), ("double", "NaN", False)]
)
def test_places_in_a_graphml_file_are_used_where_they_are_places(tmp_path, kind, x, known):
    (tmp_path / "net.graphml").write_text(GRAPHML.format(kind=kind, x=x))
    partition = {"partition": {"kind": "iid"}}
    setting = run(without_clients(graph={"kind": "file", "file": tmp_path / "net.graphml"}, data=partition)).settings[0]
    assert setting["labels"].tolist() == ["a", "b"]
    assert ("positions" in setting) == known
    if known:
        assert setting["positions"].tolist() == [[0.75, 0.5], [0.25, 1.0]]


def test_a_graph_of_the_package_may_be_given_as_well():
    ring = Graph.from_edges(4, [(0, 1), (1, 2), (2, 3), (0, 3)])
    pd.testing.assert_frame_equal(run(tiny(), graph=ring).metrics, run(tiny()).metrics)


def test_a_given_graph_of_other_clients_or_in_two_parts_is_refused():
    with pytest.raises(InputError, match=r"clients.count = 4: must be 5"):
        run(tiny(), graph=named_graph())
    with pytest.raises(InputError, match="connected"):
        run(tiny(), graph=nx.Graph([(0, 1), (2, 3)]))
    with pytest.raises(InputError, match="DiGraph"):
        run(tiny(), graph=nx.DiGraph([(0, 1), (1, 2), (2, 3)]))


def test_rates_may_be_given_by_the_names_of_clients_and_links(tmp_path):
    rows = zip(NAMES, (0.1, 0.2, 0.3, 0.4, 0.5), strict=True)
    (tmp_path / "d.csv").write_text("client,rate\n" + "".join(f"{name},{rate}\n" for name, rate in rows))
    (tmp_path / "b.csv").write_text("source,target,rate\nbob,ann,0.5\nbob,cem,0.6\neva,dia,0.8\ncem,dia,0.7\n")
    laws = {"sgd": {"law": "csv", "file": tmp_path / "d.csv"}, "link": {"law": "csv", "file": tmp_path / "b.csv"}}
    result = run(without_clients(rates=laws), graph=named_graph())
    assert result.settings[0]["d"].tolist() == [0.1, 0.2, 0.3, 0.4, 0.5]
    assert result.settings[0]["b"].tolist() == [0.5, 0.6, 0.7, 0.8]


# --- own algorithm --------------------------------------------------------------------------------------------


def every_other(k, part, rates):
    """Everything fires at even iterations, nothing at odd ones."""
    fire = (k % 2 == 0)[:, None]
    return Events(np.repeat(fire, len(part.client), 1), np.repeat(fire, len(part.link), 1))


def test_a_schedule_of_ones_own_runs_alone_or_beside_those_named():
    alone = run(without_clients(), schedules={"mine": every_other})
    assert list(dict.fromkeys(alone.metrics["algorithm"])) == ["dspodfl", "dgd", "mine"]  # those named, and it
    unnamed = Config(**{key: value for key, value in TINY.items() if key != "algorithms"})
    result = run(unnamed, schedules={"mine": every_other})
    assert set(result.metrics["algorithm"]) == {"mine"}
    assert of(result, "mine")["sgd_steps"].tolist() == [0, 4, 8]
    assert of(result, "mine")["link_uses"].tolist() == [0, 4, 8]


def test_a_schedule_equal_to_a_named_one_gives_its_numbers():
    result = run(tiny(algorithms=["dgd"]), schedules={"as dgd": dgd})
    pd.testing.assert_frame_equal(numbers(result, algorithm="dgd"), numbers(result, algorithm="as dgd"))


def test_a_schedule_may_be_named_by_its_path(tmp_path, monkeypatch):
    (tmp_path / "own_schedule_of_simulation.py").write_text("from dspodfl.algorithms.schedules import rg as mine\n")
    monkeypatch.syspath_prepend(tmp_path)
    result = run(tiny(algorithms=["rg", "own_schedule_of_simulation:mine"]))
    own = numbers(result, algorithm="own_schedule_of_simulation:mine")
    pd.testing.assert_frame_equal(numbers(result, algorithm="rg"), own)


def test_a_schedule_that_takes_a_known_name_or_is_none_is_refused():
    with pytest.raises(InputError, match=r"schedules = 'dgd'"):
        run(tiny(), schedules={"dgd": every_other})
    with pytest.raises(InputError, match=r"algorithms = 'mine'.*not a int"):
        run(tiny(), schedules={"mine": 3})
    with pytest.raises(InputError, match=r"algorithms = 'mine'.*ZeroDivisionError"):
        run(tiny(), schedules={"mine": lambda k, part, rates: 1 / 0})


def test_models_of_any_name_are_saved_and_found_again(tmp_path, monkeypatch):
    monkeypatch.setattr(Result, "draw", lambda *_: set())
    names = ["../up", "a/b", "a:b", "a.b", "mine (2)", "ä"]
    result = run(tiny(algorithms=["dgd"]), schedules=dict.fromkeys(names, every_other), record_events=True)
    result.save(tmp_path / "out" / "deep")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["deep"]
    loaded = Result.load(tmp_path / "out" / "deep")
    assert sorted(loaded.stacked) == sorted(result.stacked) == sorted((name, 0) for name in [*names, "dgd"])
    assert sorted(loaded.events) == sorted(result.events)


def test_a_graph_given_in_python_is_not_replaced_by_another_when_its_configuration_is_run_again(tmp_path):
    config = Config(seeds=1, algorithms=["dgd"], data={"name": "synthetic", "partition": {"kind": "iid"}})
    config = Config(**{**config.model_dump(exclude_unset=True), "train": {"iterations": 2}})
    result = run(config, graph=nx.star_graph(5), device="cpu")
    assert result.config["graph"]["kind"] == "custom"
    assert result.config["clients"]["count"] == 6
    with pytest.raises(InputError, match=r"graph\.kind = 'custom'"):
        run(Config(**result.config), device="cpu")
    walking = Config(graph={"dynamics": {"kind": "waypoint"}})
    with pytest.raises(InputError, match=r"graph\.dynamics\.kind = 'waypoint'"):
        run(walking, graph=nx.star_graph(5), device="cpu")


def test_clipped_rates_are_counted_over_every_epoch_of_the_study():
    rates = {"sgd": {"law": "uniform"}, "floor": 0.5, "refresh": 2}
    data = {"name": "synthetic", "partition": {"kind": "iid"}}
    config = Config(seeds=1, algorithms=["dgd"], rates=rates, data=data, train={"iterations": 9})
    simulation = Simulation(config, device="cpu")
    for _ in simulation:
        pass
    setting = simulation.study.settings[0].rates
    k = np.arange(0, 9, 2)
    expected = sum(int((setting._draw(np.array([epoch]), "sgd") < 0.5).sum()) for epoch in range(5))
    assert simulation.result().summary["study"]["seeds"]["0"]["clipped_sgd_rates"] == expected
    assert (setting.sgd(k) == 0.5).sum() == expected


def test_row_0_is_one_model_exactly():
    result = run(tiny(), device="cpu")
    first = result.metrics[result.metrics["iteration"] == 0]
    assert (first["consensus_error"] == 0).all() and (first["accuracy_std"] == 0).all()
    assert (first["accuracy_min"] == first["accuracy"]).all()
    assert (first["accuracy_average_model"] == first["accuracy"]).all()
    assert first.groupby("seed")["loss"].nunique().eq(1).all()
