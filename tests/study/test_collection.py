"""Collected runs: from the models of nodes the very folder that ``dspodfl run`` writes."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from tests.edge import TINY, CommandLine, merged, on_the_cpu, tiny

from dspodfl import Config, DataError, InputError, Result, run
from dspodfl.engine import evaluated_iterations, last_iterations
from dspodfl.study import NodeModels, collected
from dspodfl.study.builder import build
from dspodfl.study.result import ALWAYS
from dspodfl.study.store import COMPLETE, INTERRUPTED, Folder

OF_MODELS = [
    *("accuracy", "accuracy_std", "accuracy_min", "accuracy_average_model"),
    *("loss", "consensus_error", "optimality_error"),
]
"""The columns that models are needed for."""


@pytest.fixture(autouse=True)
def cpu(monkeypatch):
    on_the_cpu(monkeypatch)


@pytest.fixture
def undrawn(monkeypatch):
    """Pictures take most of the time of a folder."""
    monkeypatch.setattr(Result, "draw", lambda *_: set())


class Recorded:
    """A run of the simulator, and the models that it was evaluated on: what nodes would have written."""

    def __init__(self, config, folder=None):
        self.config, self.kept, self.averages = config, {}, {}
        self.result = run(config, callbacks=[self._keep], out=folder)

    def _keep(self, update):
        found = update._measurement
        for number, row in zip(found.runs, update.rows, strict=True):
            key = row.algorithm, row.seed, row.iteration
            self.kept[key] = found.models(number).clone()
            snapshot, members = found._snapshot, found._members
            if snapshot is not None and snapshot.averaged is not None:
                rows = members.split.shard.rows[members.stacked.index(number)]
                self.averages[key] = snapshot.problem.unpack(snapshot.averaged[rows]).clone()

    def __call__(self, *key):
        if key not in self.kept:
            return None
        averaged = self.averages.get(key)
        return NodeModels(list(self.kept[key]), None if averaged is None else list(averaged))


def assert_same(one, other):
    """Two results have the same tables, and the same summary of each algorithm."""
    pd.testing.assert_frame_equal(one.metrics, other.metrics, check_exact=True)
    pd.testing.assert_frame_equal(one.clients, other.clients, check_exact=True)
    assert one.summary["algorithms"] == other.summary["algorithms"]
    assert one.config_toml == other.config_toml
    for seed, arrays in one.settings.items():
        assert all(np.array_equal(values, other.settings[seed][name]) for name, values in arrays.items())
    timed = {"wall_seconds", "run_iterations_per_second", "seconds", "plan", "source", "models_missing"}
    about, another = ({k: v for k, v in r.summary["study"].items() if k not in timed} for r in (one, other))
    assert about == another


STUDIES = {
    "several": {
        "algorithms": ["dspodfl", "dgd", "gradient_tracking", "choco"],
        "seeds": 2,
        "train": {"iterations": 9},
        "eval": {"every": 2, "at_delay": [3.0]},
    },
    "push_sum": {"algorithms": ["push_sum"], "seeds": 2, "graph": {"directed": True}, "train": {"iterations": 6}},
    "delay": {"seeds": 2, "train": {"until": {"delay": 30.0}}, "eval": {"points": 4}},
    "bytes": {"train": {"until": {"bytes": 3000}}, "eval": {"every": 3}},
    "normalized": {"train": {"until": {"normalized_delay": 5.0}}, "eval": {"every": 3}},
    "some clients": {"train": {"iterations": 5}, "eval": {"every": 2, "clients": 2, "samples": 7}},
    "regression": {"data": {"name": "ridge", "samples": 60, "test_samples": 20}, "model": {"name": "linear"}},
    "bernoulli": {"seeds": 2, "graph": {"kind": "complete", "dynamics": {"kind": "bernoulli", "up": 0.5}}},
}


def study(name, **changes):
    """One of the studies; its own `train` and `eval` tables replace those of the tiny one."""
    found = merged(TINY, {key: value for key, value in STUDIES[name].items() if key not in ("train", "eval")})
    return Config(
        **{**found, **{key: STUDIES[name][key] for key in ("train", "eval") if key in STUDIES[name]}, **changes}
    )


@pytest.mark.parametrize("name", STUDIES)
def test_the_folder_is_the_one_that_run_writes(name, tmp_path, request):
    if name != "several":
        request.getfixturevalue("undrawn")
    simulated = Recorded(study(name), tmp_path / "run")
    found = collected(study(name), simulated, tmp_path / "nodes")
    assert_same(simulated.result, found)
    assert_same(Result.load(tmp_path / "run"), Result.load(tmp_path / "nodes"))
    one, other = ({path.name for path in (tmp_path / where).iterdir()} for where in ("run", "nodes"))
    assert one - {"models"} == other  # from Python the final models are written too
    assert name != "several" or other == {*ALWAYS, "manifest.json"}
    manifest = Folder(tmp_path / "nodes").manifest()
    assert (manifest.state, manifest.about["source"]) == (COMPLETE, "nodes")
    assert manifest.about["config"] == found.config_toml


@pytest.mark.usefixtures("undrawn")
def test_push_sum_needs_the_rows_that_are_averaged(tmp_path):
    simulated = Recorded(study("push_sum"))
    assert simulated.averages
    simulated.averages.clear()
    found = collected(study("push_sum"), simulated, tmp_path / "nodes").metrics
    later = found["iteration"] > 0
    assert found.loc[later, ["accuracy_average_model", "consensus_error"]].isna().all(axis=None)
    same = [column for column in found if column not in ("accuracy_average_model", "consensus_error")]
    pd.testing.assert_frame_equal(found[same], simulated.result.metrics[same], check_exact=True)


@pytest.mark.parametrize("until", [{"iterations": 9}, {"until": {"delay": 60.0}}])
@pytest.mark.usefixtures("undrawn")
def test_a_run_that_diverges_is_marked_as_in_the_simulator(until, tmp_path):
    train = {**until, "batch_size": 2, "learning_rate": {"kind": "constant", "value": 1e30}}
    config = study("regression", seeds=2, train=train, eval={"every": 1})
    simulated = Recorded(config)
    assert 0 < simulated.result.metrics["diverged"].mean() < 1
    assert_same(simulated.result, collected(config, simulated, tmp_path / "nodes"))
    # Nodes write no model once one of them is no longer finite, and say where it was.
    finite = {key: models for key, models in simulated.kept.items() if bool(models.isfinite().all())}
    lost = {}
    for label, seed, k in sorted(simulated.kept.keys() - finite.keys(), key=lambda key: -key[2]):
        lost[label, seed] = k - 1
    found = collected(config, lambda *key: finite.get(key), tmp_path / "ended", diverged=lost)
    assert_same(simulated.result, found)
    assert found.summary["study"]["complete"]


def without(models, client, label="dgd", seed=0, iteration=2):
    """Models of which that of one client is missing at one iteration."""

    def found(*key):
        given = models(*key)
        if key != (label, seed, iteration):
            return given
        return NodeModels([None if i == client else row for i, row in enumerate(given.rows)])

    return found


@pytest.mark.usefixtures("undrawn")
def test_what_needs_a_missing_model_is_null_and_nothing_else(tmp_path):
    config = tiny(seeds=2)
    simulated = Recorded(config)
    found = collected(config, without(simulated, 3), tmp_path / "nodes")
    metrics, whole = found.metrics, simulated.result.metrics
    here = (metrics["algorithm"] == "dgd") & (metrics["seed"] == 0) & (metrics["iteration"] == 2)
    assert here.sum() == 1 and metrics.loc[here, OF_MODELS].isna().all(axis=None)
    assert not metrics["diverged"].any() and found.summary["study"]["complete"]
    pd.testing.assert_frame_equal(metrics[~here], whole[~here], check_exact=True)
    others = [column for column in metrics if column not in OF_MODELS]
    pd.testing.assert_frame_equal(metrics[others], whole[others], check_exact=True)
    assert found.summary["study"]["models_missing"] == 1
    assert found.summary["algorithms"]["dspodfl"] == simulated.result.summary["algorithms"]["dspodfl"]


@pytest.mark.usefixtures("undrawn")
def test_the_accuracies_of_clients_whose_models_are_there_are_known(tmp_path):
    simulated = Recorded(tiny())
    found = collected(tiny(), without(simulated, 3, iteration=4), tmp_path / "nodes").clients
    whole = simulated.result.clients["final_accuracy"]
    gone = (found["algorithm"] == "dgd") & (found["client"] == 3)
    assert found["final_accuracy"].isna().equals(gone)
    assert found.loc[~gone, "final_accuracy"].equals(whole[~gone])


@pytest.mark.usefixtures("undrawn")
def test_accuracy_is_known_where_the_missing_model_is_not_evaluated(tmp_path):
    config = study("some clients")
    simulated = Recorded(config)
    known = simulated.result.clients.query("algorithm == 'dgd'")["final_accuracy"].notna().to_numpy()
    for client in range(4):
        found = collected(config, without(simulated, client), tmp_path / f"{client}").metrics
        row = found.query("algorithm == 'dgd' and iteration == 2").iloc[0]
        assert np.isnan(row["accuracy"]) == np.isnan(row["loss"]) == known[client]
        assert np.isnan(row["consensus_error"]) and np.isnan(row["accuracy_average_model"])


@pytest.mark.usefixtures("undrawn")
def test_a_missing_model_is_null_where_nothing_has_fired_since(tmp_path):
    rates = {"sgd": {"law": "constant", "value": 1e-9}, "link": {"law": "constant", "value": 1e-9}}
    config = tiny(algorithms=["dspodfl"], rates=rates)
    simulated = Recorded(config)
    assert simulated.result.metrics["sgd_steps"].max() == 0
    found = collected(config, without(simulated, 0, label="dspodfl"), tmp_path / "nodes").metrics
    assert found["loss"].isna().tolist() == [False, True, False]


@pytest.mark.usefixtures("undrawn")
def test_a_run_whose_last_models_are_missing_is_not_complete(tmp_path):
    config = tiny(seeds=2, train={"iterations": 8})
    simulated = Recorded(config)
    gone = lambda *key: None if key[:2] == ("dgd", 1) and (key[2] > 4 or key[2] == 2) else simulated(*key)  # noqa: E731
    found = collected(config, gone, tmp_path / "nodes")
    mine = found.metrics.query("algorithm == 'dgd' and seed == 1")
    assert mine["iteration"].tolist() == [0, 2, 4] and mine["loss"].isna().tolist() == [False, True, False]
    assert (found.metrics["iteration"] == 8).sum() == 3
    about = Result.load(tmp_path / "nodes").summary["study"]
    assert (about["complete"], about["iterations_done"], about["models_missing"]) == (False, 4, 4)
    assert Folder(tmp_path / "nodes").manifest().state == INTERRUPTED


@pytest.mark.usefixtures("undrawn")
def test_without_any_model_there_are_the_initial_ones(tmp_path):
    found = collected(tiny(), lambda *_: None, tmp_path / "nodes")
    assert found.metrics["iteration"].tolist() == [0, 0] and not found.summary["study"]["complete"]
    assert found.metrics["loss"].notna().all()


@pytest.mark.usefixtures("undrawn")
def test_scores_of_test_sets_of_their_own_are_averaged(tmp_path):
    simulated = Recorded(tiny())

    def scored(*key):
        return NodeModels(simulated(*key).rows, scores=[(1.0 + i, 0.25 * i) for i in range(4)])

    found = collected(tiny(), scored, tmp_path / "nodes")
    assert (found.metrics["accuracy"] == 0.375).all() and (found.metrics["loss"] == 2.5).all()
    assert (found.metrics["accuracy_min"] == 0.0).all()
    same = ["consensus_error", "accuracy_average_model", "delay_total"]
    pd.testing.assert_frame_equal(found.metrics[same], simulated.result.metrics[same], check_exact=True)
    assert found.clients["final_accuracy"].tolist() == [0.0, 0.25, 0.5, 0.75] * 2
    assert "own test sets" in found.summary["study"]["evaluated"]["note"]


@pytest.mark.parametrize("name", ["several", "delay", "bytes"])
@pytest.mark.usefixtures("undrawn")
def test_where_nodes_write_their_models_is_where_they_are_asked_for(name, tmp_path):
    config, asked = study(name), set()
    simulated = Recorded(config)
    collected(config, lambda *key: asked.add(key) or simulated(*key), tmp_path / "nodes")
    _, made = build(config)
    planned = [evaluated_iterations(one, made.every, made.at_delay, made.points) for one in made.runs]
    wanted = {(one.algorithm, one.seed, k) for one, all_k in zip(made.runs, planned, strict=True) for k in all_k}
    assert asked == wanted == simulated.kept.keys()
    assert [all_k[-1] for all_k in planned] == last_iterations(made.runs)


# --- refusals -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (torch.zeros(3, 16), "there are 3; the run has 4 clients"),
        (torch.zeros(4, 5), r"the shape \(5,\); the study's has \(16,\)"),
        (NodeModels([torch.zeros(16)] * 4, scores=[None]), "there are 1; the run has 4 clients"),
    ],
)
@pytest.mark.usefixtures("undrawn")
def test_models_of_another_study_are_refused_and_nothing_is_written(given, message, tmp_path):
    with pytest.raises(DataError, match=f"iteration 0: .*{message}"):
        collected(tiny(), lambda *_: given, tmp_path / "a" / "nodes")
    assert not list(tmp_path.iterdir())


def test_nothing_is_written_where_a_picture_cannot_be_drawn(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError("no space")

    monkeypatch.setattr(Result, "draw", fail)
    with pytest.raises(DataError, match="no space"):
        collected(tiny(), lambda *_: None, tmp_path / "a" / "nodes")
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("undrawn")
def test_a_folder_that_exists_is_refused_before_a_model_is_asked_for(tmp_path):
    def unasked(*_):
        raise AssertionError

    with pytest.raises(InputError, match="does not exist yet"):
        collected(tiny(), unasked, tmp_path)


def test_the_commands_read_it_and_resume_is_refused(tmp_path, monkeypatch, capsys):
    command = CommandLine(monkeypatch, capsys, tmp_path)
    simulated = Recorded(tiny())
    folder = tmp_path / "nodes"
    collected(tiny(), without(simulated, 0), folder)
    shown = command("show", folder)
    assert shown.code == 0 and "trained by nodes" in shown.out and "1 model is missing" in shown.out
    assert command("verify", folder).code == 0
    assert command("report", folder, "--out", tmp_path / "page.html").code == 0
    refused = command("run", "--resume", folder)
    assert refused.code == 2 and "collected from nodes, and cannot be resumed here" in refused.err
    assert len(refused.err.splitlines()) == 1
    with pytest.raises(DataError, match="collected from nodes"):
        run(resume=folder)
    assert json.loads((folder / "summary.json").read_text())["study"]["source"] == "nodes"


@pytest.mark.usefixtures("undrawn")
def test_an_unfinished_one_is_collected_again_not_resumed(tmp_path, monkeypatch, capsys):
    command = CommandLine(monkeypatch, capsys, tmp_path)
    collected(tiny(), lambda *_: None, tmp_path / "nodes")
    shown = command("show", tmp_path / "nodes")
    assert "unfinished" in shown.out and "nodes collect" in shown.out and "--resume" not in shown.out
    assert command("run", "--resume", tmp_path / "nodes").code == 2
