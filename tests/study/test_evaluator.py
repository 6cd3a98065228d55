"""Evaluation: the same bits however runs are stacked, thinned by address, and ended between its batches."""

import json
import os
import signal
from itertools import count

import numpy as np
import pandas as pd
import pytest
import torch
from tests.edge import CommandLine, merged, on_the_cpu, tiny
from tests.study.test_waves import in_waves
from tests.teams import together

from dspodfl import Config, ConfigError, InputError, Result, Simulation, run
from dspodfl.engine import LocalTransport
from dspodfl.problem import evaluation
from dspodfl.problem import problem as problems
from dspodfl.problem.evaluation import BatchEvaluator, evaluated_clients, evaluated_samples, ordered_sum
from dspodfl.problem.models.stacked.network import Stacked
from dspodfl.problem.problem import Problem
from dspodfl.study.evaluator import EvaluationStoppedError, Evaluator
from dspodfl.study.store.checkpoint import CheckpointStore, load
from dspodfl.study.store.resume import Unfinished

IMAGES = {"name": "fmnist-mini", "partition": {"kind": "iid"}}
STUDY = {
    "seeds": 1,
    "algorithms": ["dspodfl", "dgd", "rg", "dfedavg"],
    "clients": {"count": 7},
    "graph": {"kind": "ring"},
    "data": IMAGES,
    "train": {"iterations": 6, "batch_size": 4, "learning_rate": {"kind": "constant", "value": 0.05}},
    "eval": {"every": 1, "at_delay": [9.0]},
}
CLIENTS = ["accuracy", "accuracy_std", "accuracy_min", "loss"]


@pytest.fixture(autouse=True)
def _cpu(monkeypatch):
    on_the_cpu(monkeypatch)


def on_ranks(ranks, config, **more):
    """The metrics of a study, and its result, on several ranks; rank 0's."""

    def work(team):
        simulation = Simulation(config, device="cpu", team=team)
        for _ in simulation:
            pass
        return simulation.result()

    return together(ranks, work)[0]


# --- the same bits --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["svm", "logistic"])
def test_metrics_of_linear_models_are_the_same_bits_in_any_number_of_waves(model, monkeypatch):
    config = Config(**STUDY, model={"name": model})
    whole = run(config).metrics
    in_waves(monkeypatch, 4)
    assert run(config).metrics.equals(whole)


@pytest.mark.parametrize("ranks", [2, 3])
def test_metrics_of_linear_models_are_the_same_bits_where_runs_are_divided_over_ranks(ranks):
    config = Config(**STUDY, scale={"split": "runs"})
    assert on_ranks(ranks, config).metrics.equals(run(config).metrics)


@pytest.mark.parametrize("ranks", [2, 3])
def test_what_is_evaluated_of_clients_is_the_same_bits_where_clients_are_divided_over_ranks(ranks):
    config = Config(**STUDY, scale={"split": "clients"})
    alone, divided = run(config), on_ranks(ranks, config)
    same = all(torch.equal(divided.stacked[k][n], v) for k, one in alone.stacked.items() for n, v in one.items())
    assert same, "models differ: nothing is promised then"
    assert divided.metrics[CLIENTS].equals(alone.metrics[CLIENTS])
    for name in ("consensus_error", "accuracy_average_model"):
        assert np.allclose(divided.metrics[name], alone.metrics[name], rtol=1e-12, atol=0)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("features", "classes", "samples"), [(3, 2, 37), (20, 10, 137), (784, 10, 600)])
def test_a_linear_model_is_evaluated_to_the_same_bits_in_any_company(features, classes, samples, dtype, threads):
    from tests.problem.test_problem import federation

    from dspodfl.problem.data import Dataset
    from dspodfl.problem.models import build

    random = np.random.default_rng(0)
    x = random.normal(size=(samples, features)).astype(np.float32)
    y = random.integers(classes, size=samples)
    dataset = Dataset("one", x, y, x, y, classes)
    model = build("logistic", (features,), classes)
    problem = Problem(model, [(0, federation(dataset, 2))], batch_size=2, dtype=dtype)
    theta = torch.from_numpy(random.normal(size=(61, model.parameters))).to(dtype)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        whole = problem.evaluate(theta, 0)
        torch.set_num_threads(threads)
        for first, last in ((0, 1), (5, 6), (3, 9), (8, 30), (60, 61), (1, 61)):
            some = problem.evaluate(theta[first:last], 0)
            assert torch.equal(some.loss, whole.loss[first:last])
            assert torch.equal(some.accuracy, whole.accuracy[first:last])
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("outputs", [1, 3, 10])
def test_a_narrow_product_is_taken_only_where_it_has_the_bits_of_the_widest_padding(outputs, dtype):
    random = torch.Generator().manual_seed(1)
    x = torch.randn(304, 21, dtype=dtype, generator=random)
    weights = torch.randn(48 * 5, 21, dtype=dtype, generator=random)
    whole = x @ weights.T
    for columns in (outputs * models for models in range(1, 15)):
        multiple = evaluation._columns(dtype, 304, columns, 21, torch.get_num_threads())
        width = -(-columns // multiple) * multiple
        padded = torch.nn.functional.pad(weights[:columns], (0, 0, 0, width - columns))
        assert torch.equal((x @ padded.T)[:, :columns], whole[:, :columns])


def test_products_whose_bits_depend_on_their_width_are_padded(monkeypatch):
    evaluation._columns.cache_clear()
    same = torch.equal
    monkeypatch.setattr(torch, "equal", lambda a, b: same(a, b) and a.shape[1] % 16 == 0)
    assert evaluation._columns(torch.float32, 32, 30, 7, 1) in (16, 48)
    monkeypatch.setattr(torch, "equal", lambda a, b: False)
    assert evaluation._columns(torch.float32, 32, 31, 7, 1) == 48
    monkeypatch.setattr(torch, "equal", lambda a, b: True)
    assert evaluation._columns(torch.float32, 32, 32, 7, 1) == 1
    evaluation._columns.cache_clear()


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 100])
def test_ordered_sums_are_sums(count):
    values = torch.arange(3.0 * count * 2, dtype=torch.float64).view(3, count, 2)
    assert torch.equal(ordered_sum(values, 1), values.sum(dim=1))


def test_one_large_run_is_evaluated_in_parts_to_the_same_numbers(monkeypatch):
    config = Config(**STUDY)
    whole = run(config).metrics
    monkeypatch.setattr("dspodfl.study.evaluator._MAX_ELEMENTS_PER_CHUNK", 3 * 7850)
    parts = run(config).metrics
    assert parts[CLIENTS].equals(whole[CLIENTS])
    assert np.allclose(parts["consensus_error"], whole["consensus_error"], rtol=1e-12, atol=0)


@pytest.mark.parametrize("at_once", [20_000, 10**9])
def test_stacked_networks_are_evaluated_in_as_many_batches_as_are_announced(at_once, monkeypatch):
    """They are those of GPUs; what cuts them into batches does not depend on the device."""
    monkeypatch.setattr("dspodfl.problem.models.stacked.network._MAX_ACTIVATION_BYTES", at_once)
    study = Simulation(tiny(data=IMAGES, model={"name": "cnn", "channels": [2]}, algorithms=["dgd"])).study
    problem = Problem(study.model, [(0, study.runs[0].data)], batch_size=2, samples=30)
    theta = torch.stack([study.model.initial(seed) for seed in range(3)])
    plain = problem.evaluate(theta, 0)
    monkeypatch.setattr(problems, "_stacked_network", lambda *_: Stacked.of(study.model))
    problem = Problem(study.model, [(0, study.runs[0].data)], batch_size=2, samples=30)
    asked = []
    found = problem.evaluate_packed(problem.pack(theta), 0, lambda: asked.append(None))
    assert len(asked) == problem.batches_of(3, 0) and (len(asked) > 1) == (at_once == 20_000)
    assert torch.equal(found.accuracy, plain.accuracy)
    assert torch.allclose(found.loss, plain.loss, rtol=1e-5)


# --- thinned --------------------------------------------------------------------------------------------------


def thinned(**eval_keys):
    return Config(**merged(STUDY, {"eval": {"every": 3, "at_delay": [], **eval_keys}}))


def test_samples_and_clients_are_drawn_by_address_without_replacement():
    rows, clients = evaluated_samples(1000, 100), evaluated_clients(5, 50, 20)
    assert len(set(rows)) == 100 and rows.max() < 1000 and (np.diff(rows) > 0).all()
    assert len(set(clients)) == 20 and clients.max() < 50 and (np.diff(clients) > 0).all()
    assert set(evaluated_clients(5, 50, 10)) < set(clients) and set(evaluated_samples(1000, 10)) < set(rows)
    assert list(evaluated_clients(6, 50, 20)) != list(clients)


@pytest.mark.parametrize("wanted", [0, 9, 10])
def test_nothing_and_more_than_there_are_mean_all(wanted):
    assert evaluated_samples(9, wanted) is None and evaluated_clients(0, 9, wanted) is None


@pytest.mark.parametrize("ranks", [1, 3])
def test_accuracies_are_those_of_the_evaluated_clients_on_the_evaluated_samples(ranks):
    config = thinned(samples=80, clients=3).model_copy(update={"scale": Config(scale={"split": "clients"}).scale})
    result = run(config) if ranks == 1 else on_ranks(ranks, config)
    whole = run(thinned())
    study = Simulation(thinned()).study
    last = result.metrics.groupby(["algorithm", "seed"]).tail(1).set_index(["algorithm", "seed"])
    full = whole.metrics.groupby(["algorithm", "seed"]).tail(1).set_index(["algorithm", "seed"])
    problem = Problem(study.model, [(r.seed, r.data) for r in study.runs], batch_size=1, samples=80)
    for r, one in enumerate(study.runs):
        key = one.algorithm, one.seed
        theta = torch.cat([t.flatten(1) for t in result.stacked[key].values()], dim=1)
        picked = evaluated_clients(one.seed, 7, 3)
        found = problem.evaluate(theta[torch.from_numpy(picked)], r)
        assert last.loc[key, "accuracy"] == pytest.approx(float(found.accuracy.mean()), abs=1e-12)
        assert last.loc[key, "accuracy_min"] == float(found.accuracy.min())
        assert last.loc[key, "loss"] == pytest.approx(float(found.loss.mean()), rel=1e-6)
        assert last.loc[key, "consensus_error"] == pytest.approx(full.loc[key, "consensus_error"], rel=1e-9)
        average = problem.evaluate(theta.mean(dim=0, keepdim=True), r)
        assert last.loc[key, "accuracy_average_model"] == pytest.approx(float(average.accuracy), abs=0.02)
        table = result.clients.query("algorithm == @key[0] and seed == @key[1]")
        assert table.loc[table["final_accuracy"].notna(), "client"].tolist() == picked.tolist()
        assert table["final_accuracy"].dropna().tolist() == found.accuracy.tolist()


def test_thinning_changes_no_model_and_is_said_in_the_summary():
    thin, whole = run(thinned(samples=50, clients=2)), run(thinned())
    assert all(torch.equal(thin.stacked[k][n], v) for k, one in whole.stacked.items() for n, v in one.items())
    about = thin.summary["study"]["evaluated"]
    assert (about["samples"], about["clients"]) == (50, 2)
    count = len(Simulation(thinned()).study.runs[0].data.dataset.x_test)
    assert about["note"] == f"accuracies and losses are those of 2 of 7 clients on 50 of {count:,} test samples"
    assert whole.summary["study"]["evaluated"] == {"samples": count, "clients": 7, "note": None}


@pytest.mark.parametrize("key", ["samples", "clients"])
@pytest.mark.parametrize("value", [-1, 2**32, 1.5, "all"])
def test_a_number_that_is_none_is_refused(key, value):
    with pytest.raises(ConfigError, match=rf"eval\.{key}"):
        tiny(eval={key: value})


# --- ended between batches ------------------------------------------------------------------------------------

CONVOLUTIONAL = {
    "seeds": 1,
    "algorithms": ["dgd", "dspodfl"],
    "clients": {"count": 4},
    "graph": {"kind": "ring"},
    "data": IMAGES,
    "model": {"name": "cnn", "channels": [2, 2]},
    "train": {"iterations": 3, "batch_size": 2},
    "eval": {"every": 2, "samples": 300},
}
BATCHES = 2 * (4 + 1) * 2
"""Of an evaluation: two runs of four clients and their average, one at a time, on 256 and 44 samples."""


@pytest.fixture
def _one_at_a_time(monkeypatch):
    """Batches of one model."""
    monkeypatch.setattr(evaluation, "_MAX_INPUTS_PER_BATCH", 256 * 784)


def signal_before(monkeypatch, batch, number=signal.SIGTERM):
    """Have a signal come before the n-th batch that is evaluated; gives how many batches were begun."""
    plain, calls = BatchEvaluator._scores, count(1)
    done = []

    def scores(self, some, count, x):
        done.append(next(calls))
        if done[-1] == batch:
            os.kill(os.getpid(), number)
        return plain(self, some, count, x)

    monkeypatch.setattr(BatchEvaluator, "_scores", scores)
    return done


@pytest.mark.usefixtures("_one_at_a_time")
@pytest.mark.parametrize(
    ("batch", "number", "code"),
    [
        (2 + 1, signal.SIGTERM, 143),
        (2 + 7, signal.SIGINT, 130),
        (2 + BATCHES + 3, signal.SIGTERM, 143),
        pytest.param(2 + 1, signal.SIGINT, 130, marks=pytest.mark.long),
        pytest.param(2 + 7, signal.SIGTERM, 143, marks=pytest.mark.long),
        pytest.param(2 + BATCHES + 3, signal.SIGINT, 130, marks=pytest.mark.long),
    ],
)
def test_a_signal_ends_an_evaluation_between_two_batches_and_resume_gives_the_same_bytes(
    batch, number, code, monkeypatch, capsys, tmp_path
):
    from dspodfl.config import dumps

    monkeypatch.setattr(Result, "draw", lambda *_: set())
    dspodfl = CommandLine(monkeypatch, capsys, tmp_path)
    (tmp_path / "study.toml").write_text(dumps(Config(**CONVOLUTIONAL).model_dump()))
    assert dspodfl("run", "study.toml", "--out", "whole", "--quiet", "--save-models").code == 0
    with monkeypatch.context() as patch:
        done = signal_before(patch, batch, number)
        answer = dspodfl("run", "study.toml", "--out", "out", "--quiet", "--save-models")
    assert answer.code == code
    assert len(done) == batch, "the batch that was running, and no other"
    stands = 2 if batch < 2 + BATCHES else 3
    assert f"interrupted after iteration {stands}" in answer.err
    kept = load(CheckpointStore(tmp_path / "out").committed()[0])
    assert kept.iteration == stands and kept.metrics["iteration"].max() < stands
    assert pd.read_parquet(tmp_path / "out/metrics.parquet")["iteration"].max() < stands
    assert dspodfl("run", "--resume", "out", "--quiet").code == 0
    for file in ("metrics.parquet", "clients.parquet"):
        assert (tmp_path / "out" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()
    one, other = Result.load(tmp_path / "out"), Result.load(tmp_path / "whole")
    assert all(torch.equal(one.stacked[k][n], v) for k, models in other.stacked.items() for n, v in models.items())
    assert one.summary["study"]["complete"]


@pytest.mark.usefixtures("_one_at_a_time")
def test_a_signal_in_the_first_evaluation_ends_the_run_before_anything_was_measured(monkeypatch, capsys, tmp_path):
    from dspodfl.config import dumps

    dspodfl = CommandLine(monkeypatch, capsys, tmp_path)
    (tmp_path / "study.toml").write_text(dumps(Config(**CONVOLUTIONAL).model_dump()))
    done = signal_before(monkeypatch, 1)
    answer = dspodfl("run", "study.toml", "--out", "out", "--quiet")
    assert (answer.code, answer.err) == (143, "interrupted before anything was measured; nothing was written\n")
    assert done == [1] and not (tmp_path / "out").exists()


@pytest.mark.usefixtures("_one_at_a_time")
def test_a_second_wave_that_is_stopped_in_its_first_evaluation_begins_again(monkeypatch, tmp_path):
    whole = run(Config(**CONVOLUTIONAL))
    in_waves(monkeypatch, 2)
    with monkeypatch.context() as patch:
        signal_before(patch, 2 + 2 * 5 * 2 + 1)  # the first wave: one model, then twice five, on two batches of samples
        with pytest.raises(KeyboardInterrupt):
            run(Config(**CONVOLUTIONAL), out=tmp_path / "out")
    kept = load(CheckpointStore(tmp_path / "out").committed()[0])
    assert (kept.iteration, len(kept.plan.done), list(kept.pieces())) == (0, 1, [])
    monkeypatch.setattr(Result, "draw", lambda *_: set())
    assert run(resume=tmp_path / "out").metrics.equals(whole.metrics)


@pytest.mark.usefixtures("_one_at_a_time")
@pytest.mark.parametrize("split", ["clients", "runs"])
def test_all_ranks_end_an_evaluation_where_one_of_them_is_told_to(split, tmp_path):
    """The second rank alone hears a signal, in the middle of the evaluation at iteration 2."""
    from dspodfl.study.store.run_folder import RunFolder

    config = Config(**CONVOLUTIONAL, scale={"split": split})
    heard = []

    def work(team):
        run_folder = RunFolder(tmp_path / split, {}) if team.rank == 0 else None
        simulation = Simulation(config, device="cpu", team=team)
        asked = count()

        def stop():
            inside = simulation.progress.iteration == 2 and simulation.timing._stages[-1:] == ["evaluation"]
            if team.rank == 1 and inside and next(asked) == 1:
                heard.append(True)
            return team.rank == 1 and bool(heard)

        simulation.open(run_folder, stop)
        rows = [update.iteration for update in simulation]
        simulation.result()
        if run_folder:
            run_folder.release()
        return rows, simulation.stopped

    assert together(2, work) == [([0], True)] * 2 and heard
    kept = load(CheckpointStore(tmp_path / split).committed()[0])
    assert kept.iteration == 2 and kept.about["pending"] == [0, 1] and kept.metrics["iteration"].max() == 0

    def go_on(team):
        run_folder = RunFolder(tmp_path / split, {}) if team.rank == 0 else None
        if run_folder:
            run_folder.reopen()
        simulation = Simulation(config, device="cpu", team=team)
        simulation.open(run_folder, lambda: False, before=Unfinished.read(tmp_path / split))
        for _ in simulation:
            pass
        result = simulation.result()
        if run_folder:
            run_folder.release()
        return result

    resumed, whole = together(2, go_on)[0], on_ranks(2, config)
    assert resumed.metrics.equals(whole.metrics)


# Runs that are evaluated at iterations of their own, while ranks that have different runs meet at 0 and 12 alone.
APART = CONVOLUTIONAL | {
    "algorithms": ["dgd", "dspodfl", "rg"],
    "train": {"iterations": 14, "batch_size": 2},
    "eval": {"every": 12, "samples": 300, "at_delay": [3.0, 7.0, 11.0, 150.0, 300.0]},
    "scale": {"split": "runs"},
}


def kept_apart(team, folder, stops=lambda iteration: False, before=None):
    """A study in a folder, which stops where ``stops`` says so of the iteration that is being evaluated."""
    from dspodfl.study.store.run_folder import RunFolder

    run_folder = RunFolder(folder, {}) if team.rank == 0 else None
    if run_folder and before:
        run_folder.reopen()
    simulation = Simulation(Config(**APART), device="cpu", team=team)
    heard = []

    def stop():
        if simulation.timing._stages[-1:] == ["evaluation"] and stops(simulation.progress.iteration):
            heard.append(True)
        return bool(heard)

    simulation.open(run_folder, stop, before=before)
    rows = [row["iteration"] for update in simulation for row in update.rows]
    result = simulation.result()
    if run_folder:
        run_folder.release()
    return rows, simulation.stopped, result.metrics


@pytest.fixture
def _meet_seldom(monkeypatch, _one_at_a_time):
    from dspodfl.study.store.run_folder import RunFolder

    monkeypatch.setattr(RunFolder, "reach", lambda self, iteration: iteration + 12)


@pytest.mark.usefixtures("_meet_seldom")
@pytest.mark.parametrize("told", [(0,), (1,), pytest.param((0, 1), marks=pytest.mark.long)])
def test_ranks_end_an_evaluation_between_two_meetings_and_a_resume_gives_the_same_bits(told, tmp_path):
    whole = together(2, lambda team: kept_apart(team, tmp_path / "whole"))[0][2]
    between = {3, 4, 5, 7, 8, 9, 10}
    assert set(whole["iteration"]) == {0, 1, 12, 14} | between

    def stopped(team):
        return kept_apart(team, tmp_path / "out", lambda iteration: team.rank in told and iteration in between)

    for rows, has_stopped, _ in together(2, stopped):
        assert has_stopped and 14 not in rows
    kept = load(CheckpointStore(tmp_path / "out").committed()[0])
    assert kept.about["behind"] and kept.about["pending"]
    assert kept.about["format"] == 3
    assert max(kept.metrics["iteration"]) < kept.iteration

    def go_on(team):
        return kept_apart(team, tmp_path / "out", before=Unfinished.read(tmp_path / "out"))

    def again(team):
        before = Unfinished.read(tmp_path / "out")
        return kept_apart(team, tmp_path / "out", lambda iteration: team.rank == 0 and iteration > 0, before)

    for _ in range(2):  # what was ended is begun, and ended again
        assert [has_stopped for _, has_stopped, _ in together(2, again)] == [True, True]
    metrics = together(2, go_on)[0][2]
    assert metrics.equals(whole)


@pytest.mark.usefixtures("_meet_seldom")
def test_runs_that_stand_at_different_iterations_go_on_in_one_process_and_stop_there_too(tmp_path):
    whole = together(2, lambda team: kept_apart(team, tmp_path / "whole"))[0][2]
    together(2, lambda team: kept_apart(team, tmp_path / "out", lambda iteration: 2 < iteration < 12))
    before = Unfinished.read(tmp_path / "out")
    assert before.start.about["behind"]
    _, stopped, _ = kept_apart(LocalTransport(), tmp_path / "out", lambda iteration: iteration > 0, before)
    assert stopped
    metrics = kept_apart(LocalTransport(), tmp_path / "out", before=Unfinished.read(tmp_path / "out"))[2]
    exact = ["algorithm", "seed", "iteration", "sgd_steps", "link_uses", "delay_total"]
    assert metrics[exact].equals(whole[exact])
    assert np.allclose(metrics["loss"], whole["loss"], rtol=1e-5)


@pytest.mark.usefixtures("_meet_seldom")
def test_clients_of_runs_that_stand_at_different_iterations_are_not_split(tmp_path, monkeypatch):
    together(2, lambda team: kept_apart(team, tmp_path / "out", lambda iteration: 2 < iteration < 12))
    monkeypatch.setitem(APART, "scale", {"split": "clients"})
    with pytest.raises(InputError, match="are at different iterations"):
        together(2, lambda team: kept_apart(team, tmp_path / "out", before=Unfinished.read(tmp_path / "out")))


def test_an_evaluation_that_is_stopped_can_be_done_again():
    seen = []

    class Eager(Evaluator):
        def evaluate(self, snapshot, stop=None):
            try:
                super().evaluate(snapshot, lambda: True)
            except EvaluationStoppedError:
                seen.append(snapshot.iteration)
            return super().evaluate(snapshot)

    whole = run(tiny()).metrics
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dspodfl.study.runner_wave.Evaluator", Eager)
        assert run(tiny()).metrics.equals(whole)
    assert seen[:2] == [0, 2]


# --- what the time went into ----------------------------------------------------------------------------------


def test_the_summary_says_what_the_time_went_into(tmp_path):
    result = run(tiny(), out=tmp_path / "out")
    about = json.loads((tmp_path / "out/summary.json").read_text())["study"]
    assert list(about["seconds"]) == ["building", "training", "evaluation", "writing"]
    assert all(value > 0 for value in about["seconds"].values())
    assert sum(about["seconds"].values()) == pytest.approx(about["wall_seconds"])
    assert result.summary["study"]["seconds"] == about["seconds"]
