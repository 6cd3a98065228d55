"""From the folders of nodes to a result: as the simulator's, or refused in one line."""

import json
import shutil

import pandas as pd
import pytest
from tests.edge import CommandLine, on_the_cpu, tiny
from tests.study.test_collection import OF_MODELS, Recorded, assert_same, study

from dspodfl import DataError, InputError, Result
from dspodfl.config import dumps
from dspodfl.nodes import Header, NodeFolder, StoredModel, collect


@pytest.fixture(autouse=True)
def cpu(monkeypatch):
    on_the_cpu(monkeypatch)
    monkeypatch.setattr(Result, "draw", lambda *_: set())


def write_nodes(simulated, where, run_id="hospital", keys=None, **options):
    """The folders that nodes would have written of a run of the simulator."""
    folders = []
    for i in range(simulated.result.config["clients"]["count"]):
        folder = NodeFolder(where / f"node-{i}", i, run_id, simulated.result.config_toml)
        folder.open({"dspodfl": "0"})
        for label, seed in sorted({key[:2] for key in simulated.kept} if keys is None else keys):
            ks = sorted(k for a, s, k in simulated.kept if (a, s) == (label, seed))
            dtype = str(simulated.kept[label, seed, 0].dtype).removeprefix("torch.")
            count, width = (2 if simulated.averages else 1), simulated.kept[label, seed, 0].shape[1]
            writer = folder.writer(Header(i, run_id, label, seed, width, count, dtype), **options)
            for k in ks[1:]:
                row = simulated.kept[label, seed, k][i]
                averaged = simulated.averages[label, seed, k][i].numpy() if simulated.averages else None
                if not bool(simulated.kept[label, seed, k].isfinite().all()):
                    writer.diverged(k)
                    break
                writer.append(k, StoredModel(row.numpy(), averaged))
            writer.close()
        folders.append(folder.path)
    return folders


@pytest.mark.parametrize("name", ["several", "push_sum", "delay"])
def test_the_result_is_that_of_the_simulator(name, tmp_path):
    simulated = Recorded(study(name))
    found = collect(write_nodes(simulated, tmp_path / "nodes"), tmp_path / "out", seconds=7.0)
    assert_same(simulated.result, found.result)
    assert found.notes == [] and found.result.summary["study"]["seconds"]["training"] >= 7.0
    pd.testing.assert_frame_equal(Result.load(tmp_path / "out").metrics, simulated.result.metrics, check_exact=True)


def test_models_in_double_precision_are_kept_as_they_are(tmp_path):
    simulated = Recorded(tiny(train={"precision": "fp64"}, model={"name": "mlp", "hidden": [3]}))
    assert_same(simulated.result, collect(write_nodes(simulated, tmp_path / "n"), tmp_path / "out").result)


def test_divergence_that_nodes_have_found_is_marked(tmp_path):
    train = {"iterations": 9, "batch_size": 2, "learning_rate": {"kind": "constant", "value": 1e30}}
    simulated = Recorded(study("regression", train=train, eval={"every": 1}))
    assert simulated.result.metrics["diverged"].any()
    assert_same(simulated.result, collect(write_nodes(simulated, tmp_path / "n"), tmp_path / "out").result)


def test_folders_may_be_named_by_the_folder_that_holds_them(tmp_path):
    simulated = Recorded(tiny())
    write_nodes(simulated, tmp_path / "nodes")
    assert_same(simulated.result, collect([tmp_path / "nodes"], tmp_path / "out").result)


def test_folders_of_single_runs_are_put_together_and_others_left_out(tmp_path):
    simulated = Recorded(tiny(seeds=3))
    one = write_nodes(simulated, tmp_path / "one", keys=[("dgd", 1)])
    two = write_nodes(simulated, tmp_path / "two", keys=[("dgd", 2)])
    found = collect([*one, *two], tmp_path / "out").result
    config = found.config
    assert (config["algorithms"], config["seed"], config["seeds"]) == (["dgd"], 1, 2)
    wanted = simulated.result.metrics.query("algorithm == 'dgd' and seed >= 1").reset_index(drop=True)
    pd.testing.assert_frame_equal(found.metrics, wanted, check_exact=True)
    assert found.summary["study"]["complete"]
    with pytest.raises(InputError, match="has models of node 0, 'dgd', seed 1 as well"):
        collect([*one, *write_nodes(simulated, tmp_path / "three", keys=[("dgd", 1)])], tmp_path / "again")


@pytest.mark.parametrize(
    ("label", "seed", "message"),
    [("mine", 0, "'mine', an algorithm that the configuration does not name"), ("dgd", 7, "seed 7, which")],
)
def test_models_that_the_configuration_does_not_name_are_refused(label, seed, message, nodes, tmp_path):
    NodeFolder.read(nodes[0]).writer(Header(0, "hospital", label, seed, 16)).close()
    with pytest.raises(DataError, match=message):
        collect(nodes, tmp_path / "out")


def test_damaged_rows_and_lost_models_are_named_and_null(tmp_path):
    simulated = Recorded(tiny())
    folders = write_nodes(simulated, tmp_path / "nodes")
    path = folders[2] / "models" / "dgd-seed0.rows"
    content = bytearray(path.read_bytes())
    header = len(Header(2, "hospital", "dgd", 0, 16).serialized())
    content[header + 40] ^= 1
    path.write_bytes(content)
    (folders[1] / "models" / "dspodfl-seed0.rows").unlink()
    found = collect(folders, tmp_path / "out")
    assert f"{path}: row 0 is damaged" in found.notes[1]
    assert found.notes[0] == "node 1: no models of 'dspodfl', seed 0; they are missing"
    metrics = found.result.metrics.set_index(["algorithm", "iteration"])
    null = metrics[OF_MODELS].drop(columns="optimality_error").isna().all(axis=1)
    assert null[null].index.tolist() == [("dspodfl", 2), ("dspodfl", 4), ("dgd", 2)]
    assert found.result.summary["study"]["models_missing"] == 3


def test_where_only_the_last_model_was_kept_it_is_evaluated_and_said(tmp_path):
    simulated = Recorded(tiny(algorithms=["dgd"]))
    found = collect(write_nodes(simulated, tmp_path / "nodes", cap=0), tmp_path / "out")
    assert len(found.notes) == 4 and all("only the last model was kept" in note for note in found.notes)
    assert (
        found.result.metrics["loss"].isna().tolist() == [False, True, False]
        and found.result.summary["study"]["complete"]
    )


def test_a_missing_node_is_named_unless_it_may_be_missing(tmp_path):
    simulated = Recorded(tiny())
    folders = write_nodes(simulated, tmp_path / "nodes")
    with pytest.raises(InputError, match=r"without node 1, 3.*--partial"):
        collect([folders[0], folders[2]], tmp_path / "out")
    assert not (tmp_path / "out").exists()
    found = collect([folders[0], folders[2]], tmp_path / "out", partial=True)
    assert found.notes == ["node 1, 3: no folder was given; its models are missing"]
    assert found.result.metrics["loss"].isna().tolist() == [False, True, True] * 2
    assert found.result.clients["final_accuracy"].notna().tolist() == [True, False, True, False] * 2


def test_scores_of_own_test_sets_reach_the_table(tmp_path):
    simulated = Recorded(tiny(algorithms=["dgd"], train={"iterations": 2}))
    for i in range(4):
        folder = NodeFolder(tmp_path / "nodes" / str(i), i, "r", simulated.result.config_toml, own_test=True)
        folder.open()
        writer = folder.writer(Header(i, "r", "dgd", 0, 16))
        for k in (0, 2):
            writer.append(k, StoredModel(simulated.kept["dgd", 0, k][i].numpy(), score=(1.0, 0.25 * i)))
        writer.close()
    found = collect([tmp_path / "nodes"], tmp_path / "out").result
    assert found.metrics["accuracy"].tolist() == [0.375, 0.375]
    assert "own test sets" in found.summary["study"]["evaluated"]["note"]


# --- refusals -------------------------------------------------------------------------------------------------


@pytest.fixture
def nodes(tmp_path):
    """The folders of four nodes."""
    return write_nodes(Recorded(tiny()), tmp_path / "nodes")


def test_another_run_and_another_configuration_are_refused(nodes, tmp_path):
    shutil.rmtree(nodes[3])
    NodeFolder(nodes[3], 3, "other", dumps(tiny().model_dump())).open()
    with pytest.raises(InputError, match="of the run 'hospital'; it is of the run 'other'"):
        collect(nodes, tmp_path / "out")
    shutil.rmtree(nodes[3])
    NodeFolder(nodes[3], 3, "hospital", dumps(tiny(train={"batch_size": 3}).model_dump())).open()
    with pytest.raises(InputError, match=r"same configuration as .*node-0: train.batch_size differs"):
        collect(nodes, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_does_not_change_the_training_may_differ(nodes, tmp_path):
    text = dumps(tiny(checkpoint={"keep": 7}).model_dump())
    again = NodeFolder(tmp_path / "elsewhere", 3, "hospital", text)
    again.open()
    shutil.rmtree(again.path / "models")
    shutil.copytree(nodes[3] / "models", again.path / "models")
    assert collect([*nodes[:3], again.path], tmp_path / "out").notes == []


@pytest.mark.parametrize("damage", ["id", "config", "json", "kind"])
def test_a_damaged_folder_is_named(damage, nodes, tmp_path):
    path = nodes[1] / "node.json"
    if damage == "config":
        (nodes[1] / "config.toml").write_text("seeds = 3\n")
    elif damage == "json":
        path.write_text("{")
    else:
        path.write_text(json.dumps({**json.loads(path.read_text()), damage: "x"}))
    with pytest.raises(DataError, match="node-1"):
        collect(nodes, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_folders_that_are_none_and_nodes_that_are_none_are_refused(nodes, tmp_path):
    with pytest.raises(DataError, match="not the folder of a node"):
        collect([*nodes, tmp_path], tmp_path / "out")
    with pytest.raises(DataError, match="not the folder of a node"):
        collect([tmp_path / "nothing"], tmp_path / "out")
    with pytest.raises(InputError, match="another folder than those of nodes"):
        collect(nodes, nodes[0], overwrite=True)
    NodeFolder(tmp_path / "four", 4, "hospital", (nodes[0] / "config.toml").read_text()).open()
    with pytest.raises(InputError, match="of a node from 0 to 3"):
        collect([*nodes, tmp_path / "four"], tmp_path / "out")


def test_nothing_to_collect_is_an_error(tmp_path):
    for i in range(4):
        NodeFolder(tmp_path / "nodes" / str(i), i, "r", dumps(tiny().model_dump())).open()
    with pytest.raises(DataError, match="no model was written yet by any node"):
        collect([tmp_path / "nodes"], tmp_path / "out")


def test_a_file_of_another_node_is_left_out_and_named(nodes, tmp_path):
    name = "dgd-seed0.rows"
    shutil.copy(nodes[0] / "models" / name, nodes[1] / "models" / name)
    found = collect(nodes, tmp_path / "out")
    assert any("of another node or run; it is left out" in note for note in found.notes)
    assert found.result.summary["study"]["models_missing"] == 2


def test_the_command_writes_the_folder_and_says_what_is_missing(nodes, tmp_path, monkeypatch, capsys):
    command = CommandLine(monkeypatch, capsys, tmp_path)
    done = command("nodes", "collect", *nodes, "--out", "out")
    assert done.code == 0 and "trained by nodes" in done.out and "tables:  out" in done.out
    assert command("nodes", "collect", tmp_path / "nodes", "--out", "out").code == 2
    found = command("nodes", "collect", *nodes[:3], "--out", "out", "--overwrite", "--partial", "--json")
    assert json.loads(found.out)["study"]["models_missing"] == 4
    assert found.err.splitlines() == ["node 3: no folder was given; its models are missing"]
    assert command("verify", "out").code == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nodes/node-0"], "without node 1, 2, 3"),
        (["nothing"], "not the folder of a node"),
        ([], "missing argument"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(words, message, nodes, tmp_path, monkeypatch, capsys):
    command = CommandLine(monkeypatch, capsys, tmp_path)
    answer = command("nodes", "collect", *words, "--out", "out")
    assert (answer.code, answer.out, len(answer.err.splitlines())) == (2, "", 1) and message in answer.err
    assert not (tmp_path / "out").exists()


# --- the folder of a node -------------------------------------------------------------------------------------


def test_a_node_opens_its_own_folder_again_and_no_other(nodes):
    text = (nodes[0] / "config.toml").read_text()
    before = {path: path.read_bytes() for path in nodes[0].rglob("*") if path.is_file()}
    NodeFolder(nodes[0], 0, "hospital", text).open()
    for wrong, why in (
        (NodeFolder(nodes[0], 1, "hospital", text), "that of node 1; it is that of node 0"),
        (NodeFolder(nodes[0], 0, "other", text), "of the run 'other'"),
        (NodeFolder(nodes[0], 0, "hospital", text.replace("seed = 0", "seed = 5")), "seed differs"),
    ):
        with pytest.raises(InputError, match=why):
            wrong.open()
    assert {path: path.read_bytes() for path in nodes[0].rglob("*") if path.is_file()} == before


def test_a_node_takes_no_folder_with_files_of_others_but_one_it_had_begun(tmp_path):
    text = dumps(tiny().model_dump())
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("x")
    with pytest.raises(InputError, match="an empty folder"):
        NodeFolder(tmp_path / "other", 0, "r", text).open()
    begun = tmp_path / "begun"
    (begun / "models").mkdir(parents=True)
    (begun / "config.toml").write_text(text)  # killed before node.json was written
    NodeFolder(begun, 0, "r", text).open()
    assert NodeFolder.read(begun).id == 0
