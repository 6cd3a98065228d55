"""Studies at equal budgets: where each run ends, what is final, and that nothing else decides it."""

import itertools
import json

import numpy as np
import pandas as pd
import pytest
import torch
from tests.edge import CommandLine, on_the_cpu, tiny
from tests.study.test_waves import in_waves
from tests.teams import together

from dspodfl import Config, Result, Simulation, run
from dspodfl.config import dumps
from dspodfl.engine import LocalTransport
from dspodfl.engine.horizon import last_iterations
from dspodfl.errors import ConfigError
from dspodfl.network.budget import Budget, ended_by
from dspodfl.study.builder import build
from dspodfl.study.store.checkpoint import CheckpointStore
from dspodfl.study.store.resume import Unfinished
from dspodfl.study.store.run_folder import RunFolder
from dspodfl.theory.assess.assessment import assess

FIVE = ["dspodfl", "dgd", "rg", "sporadic_sgd", "dfedavg"]
UNTIL = {"delay": 60.0, "normalized_delay": 20.0, "bytes": 3000.0, "iterations": 13}
COLUMN = {
    "delay": "delay_total",
    "normalized_delay": "delay_total_normalized",
    "bytes": "bytes",
    "iterations": "iteration",
}


@pytest.fixture(autouse=True)
def cpu(monkeypatch):
    on_the_cpu(monkeypatch)


def study(kind="delay", value=None, train=None, evaluation=None, **more):
    until = {kind: UNTIL[kind] if value is None else value}
    train = {"iterations": None, "until": until, **(train or {})}
    return tiny(**{"seeds": 2, "algorithms": FIVE} | more, train=train, eval={"every": None, **(evaluation or {})})


def by_run(metrics):
    return {key: rows.sort_values("iteration") for key, rows in metrics.groupby(["algorithm", "seed"])}


# --- where runs end -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", UNTIL)
def test_the_last_row_of_every_run_is_the_first_at_which_the_budget_is_spent(kind):
    rates = {"sgd": {"law": "uniform"}, "link": {"law": "uniform"}}
    found = run(study(kind, rates=rates), device="cpu")
    free = run(study("iterations", 400, evaluation={"every": 1}, rates=rates), device="cpu").metrics
    for key, rows in by_run(found.metrics).items():
        cost = by_run(free)[key].set_index("iteration", drop=False)[COLUMN[kind]]
        end = int(cost.index[np.argmax(cost >= UNTIL[kind])])
        assert rows["iteration"].iloc[-1] == end
        assert (rows[COLUMN[kind]].iloc[:-1] < UNTIL[kind]).all()
        told = next(r for r in found.summary["algorithms"][key[0]]["runs"] if r["seed"] == key[1])
        assert (told["ended_at"], told["ended_by"]) == (end, "budget")
    assert found.summary["study"]["budget"] == {"kind": kind, "value": UNTIL[kind]}
    assert found.summary["study"]["complete"]


def test_at_equal_bytes_a_method_that_sends_two_models_uses_links_half_as_often():
    found = run(study("bytes", 60_000.0, algorithms=["dspodfl", "gradient_tracking"], seeds=3), device="cpu")
    last = {key: rows.iloc[-1] for key, rows in by_run(found.metrics).items()}
    for seed in range(3):
        one, two = last["dspodfl", seed], last["gradient_tracking", seed]
        p = one["bytes"] / one["link_uses"] / 8
        assert two["bytes"] == 16 * p * two["link_uses"]
        uses = 60_000.0 / (8 * p)
        assert one["link_uses"] == pytest.approx(uses, abs=6) and two["link_uses"] == pytest.approx(uses / 2, abs=6)
        assert two["iteration"] < one["iteration"]
    rows = found.metrics.set_index(["algorithm", "seed", "iteration"])
    common = rows.loc["dspodfl"].index.intersection(rows.loc["gradient_tracking"].index)
    one, two = (rows.loc[name].loc[common] for name in ("dspodfl", "gradient_tracking"))
    assert (two["delay_transmission"] == 2 * one["delay_transmission"]).all() and len(common) > 3
    assert (two["delay_transmission_normalized"] == one["delay_transmission_normalized"]).all()
    assert (two["delay_processing"] == one["delay_processing"]).all()


def test_final_models_and_final_accuracies_are_those_of_each_last_row():
    config = study(evaluation={"points": 3})
    found = run(config, device="cpu")
    last = {key: rows.iloc[-1] for key, rows in by_run(found.metrics).items()}
    for (algorithm, seed), row in last.items():
        mine = found.clients[(found.clients["algorithm"] == algorithm) & (found.clients["seed"] == seed)]
        assert mine["final_accuracy"].mean() == pytest.approx(row["accuracy"])
        alone = run(
            study("iterations", int(row["iteration"]), algorithms=[algorithm], seed=int(seed), seeds=1), device="cpu"
        )
        for one, other in zip(found.models(algorithm, seed), alone.models(algorithm, seed), strict=True):
            assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_configuration_that_says_nothing_runs_to_a_delay_of_ten_thousand():
    assert Config().train.budget == Budget("delay", 10000.0)
    assert build(Config(algorithms=["dgd"], seeds=1))[0].eval.points == 40


def test_iterations_alone_mean_that_every_run_goes_that_many():
    config = tiny(algorithms=FIVE)
    assert config.train.budget == Budget("iterations", 4)
    found = run(config, device="cpu").metrics
    assert (found.groupby(["algorithm", "seed"])["iteration"].max() == 4).all()
    assert build(tiny(eval={"every": None}))[0].eval.every == 100


def test_iterations_beside_a_budget_are_the_cap_and_such_a_run_is_said_to_end_by_it():
    found = run(study(train={"iterations": 6}), device="cpu")
    told = [r for each in found.summary["algorithms"].values() for r in each["runs"]]
    assert {r["ended_by"] for r in told} == {"budget", "cap"}
    for r in told:
        assert (r["delay_total"] < UNTIL["delay"]) == (r["ended_by"] == "cap")
        assert r["ended_at"] == 6 if r["ended_by"] == "cap" else r["ended_at"] <= 6


def test_a_run_that_diverges_ends_there_and_is_said_to_have():
    wild = {"learning_rate": {"kind": "constant", "value": 1e30}}
    more = {"data": {"name": "ridge", "samples": 9, "dimension": 3}, "model": {"name": "linear"}}
    found = run(study(train=wild, **more), device="cpu")
    for rows in by_run(found.metrics).values():
        assert rows["diverged"].tolist() == [False] * (len(rows) - 1) + [True]
    assert all(r["ended_by"] == "diverged" for each in found.summary["algorithms"].values() for r in each["runs"])


def test_why_a_run_ended():
    row = {"delay_total": 5.0, "iteration": 7, "diverged": False}
    assert ended_by(Budget("delay", 5.0), 9, row) == "budget"
    assert ended_by(Budget("delay", 5.1), 9, row) is None
    assert ended_by(Budget("delay", 5.1), 7, row) == "cap"
    assert ended_by(Budget("delay", 5.1), 9, row | {"diverged": True}) == "diverged"
    assert ended_by(Budget("iterations", 9), 9, row | {"diverged": True}) is None
    assert ended_by(Budget("iterations", 7), 7, row | {"diverged": True}) == "diverged"


# --- where they are evaluated ---------------------------------------------------------------------------------


def test_points_sample_every_algorithm_equally_along_the_axis():
    found = run(study(value=300.0, evaluation={"points": 10}), device="cpu").metrics
    for rows in by_run(found).values():
        parts = rows["delay_total"] // 30.0
        assert len(rows) <= 11 and not parts.duplicated().any()


def test_every_takes_the_place_of_points_and_both_can_be_had():
    every = run(study(evaluation={"every": 5}), device="cpu").metrics
    points = run(study(evaluation={"points": 4}), device="cpu").metrics
    both = run(study(evaluation={"every": 5, "points": 4}), device="cpu").metrics
    for key, rows in by_run(both).items():
        wanted = {*by_run(every)[key]["iteration"], *by_run(points)[key]["iteration"]}
        assert set(rows["iteration"]) == wanted
    for rows in by_run(every).values():
        assert all(k % 5 == 0 for k in rows["iteration"].iloc[:-1])


# --- however it is run ----------------------------------------------------------------------------------------


def over(config, ranks, split):
    def work(team):
        simulation = Simulation(config, device="cpu", team=team)
        for _ in simulation:
            pass
        return simulation.result()

    return together(ranks, work)[0] if ranks > 1 else work(LocalTransport())


def close(one, other):
    """The same rows, of which what is computed from models may differ by rounding."""
    exact = ["algorithm", "seed", "iteration", "sgd_steps", "link_uses", "bytes", "diverged"]
    exact += [name for name in one if name.startswith("delay")]
    pd.testing.assert_frame_equal(one[exact], other[exact], check_exact=True)
    pd.testing.assert_frame_equal(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("model", ["svm", "mlp"])
@pytest.mark.parametrize(("ranks", "split"), [(2, "runs"), (3, "runs"), (2, "clients"), (3, "clients")])
def test_rows_are_the_same_for_any_number_of_ranks(ranks, split, model):
    config = study(scale={"split": split}, model={"name": model})
    alone, ours = over(config, 1, split), over(config, ranks, split)
    close(alone.metrics, ours.metrics)
    assert ours.summary["study"]["complete"]
    for algorithm in FIVE:
        for one, other in zip(alone.models(algorithm, 1), ours.models(algorithm, 1), strict=True):
            assert all(torch.allclose(one[name], other[name], rtol=0, atol=1e-5) for name in one)


@pytest.mark.parametrize("waves", [2, 4, 10])
@pytest.mark.parametrize(("ranks", "split"), [(1, "runs"), (2, "runs"), (2, "clients")])
def test_rows_are_the_same_for_any_number_of_waves(monkeypatch, waves, ranks, split):
    config = study(scale={"split": split})
    alone = over(config, 1, split).metrics
    in_waves(monkeypatch, waves if split == "clients" or ranks == 1 else min(waves, 4))
    close(alone, over(config, ranks, split).metrics)


def test_networks_whose_baselines_are_over_leave_the_stack_and_come_to_the_same(monkeypatch):
    config = study(value=1500.0, model={"name": "mlp", "hidden": [4]}, evaluation={"points": 4})
    from dspodfl.engine import loop

    stacks, real = [], loop.choose

    def choose(split, *more):
        stacks.append(len(split.shard.stack.runs))
        return real(split, *more)

    monkeypatch.setattr(loop, "choose", choose)
    small = run(config, device="cpu")
    assert stacks[0] == 10 and len(stacks) > 1 and stacks[-1] <= 5
    monkeypatch.setattr(loop, "SHRINKS", 10**9)
    close(run(config, device="cpu").metrics, small.metrics)


# --- interrupted, and resumed ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("waves", "model", "batch", "stops"),
    [
        (1, "svm", 1, (1, 4, 9, 14)),
        (3, "svm", 1, (1, 4, 9, 14)),
        (3, "mlp", 1, (4, 14)),
        (1, "svm", "full", (4, 14)),
        pytest.param(1, "mlp", 1, (1, 4, 9, 14), marks=pytest.mark.long),
        pytest.param(3, "svm", "full", (1, 4, 9, 14), marks=pytest.mark.long),
    ],
)
def test_a_study_resumed_from_any_iteration_has_the_bytes_of_one_in_one_go(
    monkeypatch, tmp_path, waves, model, batch, stops
):
    monkeypatch.setattr(Result, "draw", lambda *_: set())
    if waves > 1:
        in_waves(monkeypatch, waves)
    config = study(value=900.0, model={"name": model}, evaluation={"points": 3}, train={"batch_size": batch})
    whole = run(config, device="cpu", record_events=True)
    for stop in stops:
        folder, count = tmp_path / f"{stop}", itertools.count()
        run(config, device="cpu", out=folder, callbacks=[lambda _, n=count, at=stop: next(n) >= at], record_events=True)
        assert CheckpointStore(folder).committed()
        again = run(resume=folder, device="cpu")
        pd.testing.assert_frame_equal(whole.metrics, again.metrics, check_exact=True)
        for key, (events, _) in whole.events.items():
            assert np.array_equal(events.v, again.events[key][0].v)
            assert len(events.v) == by_run(whole.metrics)[key]["iteration"].iloc[-1]
        for algorithm in FIVE:
            pairs = zip(whole.models(algorithm, 1), again.models(algorithm, 1), strict=True)
            assert all(torch.equal(one[name], other[name]) for one, other in pairs for name in one)


def test_another_budget_is_another_study(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(Result, "draw", lambda *_: set())
    dspodfl = CommandLine(monkeypatch, capsys, tmp_path)
    run(study(), device="cpu", out="one", callbacks=[lambda _: True])
    refused = dspodfl("run", "one/config.toml", "--resume", "one", "--set", "train.until={ delay = 61.0 }")
    assert refused.code == 2 and "train.until" in refused.err and "Traceback" not in refused.err


# --- what is written, and what was written before -------------------------------------------------------------


def test_until_delay_is_read_as_until_and_never_written():
    config = tiny(train={"until_delay": 60.0})
    assert config.train.budget == Budget("delay", 60.0) and config.train.iterations == 4
    assert "until_delay" not in dumps(config.model_dump())
    assert Config(**Config(train={"until_delay": 60.0}).model_dump()).train.budget == Budget("delay", 60.0)
    with pytest.raises(ConfigError, match=r"train\.until_delay = 60\.0: must be left out"):
        tiny(train={"until_delay": 60.0, "until": {"delay": 60.0}})


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({}, r"train\.until = \{\}: must be a table with exactly one of"),
        ({"delay": 3.0, "bytes": 4.0}, r"train\.until = .*delay.*bytes.*: must be a table with exactly one of"),
        ({"delay": 0}, r"train\.until\.delay = 0"),
        ({"delay": float("inf")}, r"train\.until\.delay = inf"),
        ({"iterations": 2.5}, r"train\.until\.iterations = 2\.5"),
        ({"delays": 3.0}, r"train\.until\.delays = 3\.0: unknown key; did you mean 'delay'"),
        ("soon", r"train\.until = 'soon': must be a table"),
    ],
)
def test_a_budget_that_is_none_is_refused(wrong, told):
    with pytest.raises(ConfigError, match=told):
        tiny(train={"until": wrong})


def test_the_resolved_configuration_says_until_when_and_where_it_is_evaluated():
    written = run(study(), device="cpu").config
    assert written["train"]["until"] == {"delay": 60.0} and "iterations" not in written["train"]
    assert written["eval"]["points"] == 40 and "every" not in written["eval"]
    assert json.dumps(written)


# --- theory ---------------------------------------------------------------------------------------------------


def test_the_horizon_of_a_bound_is_the_last_iteration_of_the_longest_run():
    more = {"data": {"name": "ridge", "samples": 9, "dimension": 3}, "model": {"name": "linear"}}
    config = study(**more, algorithms=["dspodfl", "dgd"])
    found = assess(config)
    ends = run(config, device="cpu").metrics.groupby(["algorithm", "seed"])["iteration"].max()
    assert found.iterations == ends.max() == max(last_iterations(build(config)[1].runs))


@pytest.mark.parametrize("model", ["svm", "mlp"])
@pytest.mark.parametrize(("ranks", "later"), [(2, 2), (1, 2), (2, 3), (2, 1)])
def test_runs_that_have_left_the_stack_are_held_once_when_clients_are_split_again(
    ranks, later, model, tmp_path, monkeypatch
):
    """A run that is over is no longer stacked; resumed on ranks, each holds its own clients of it, and no other's."""
    monkeypatch.setattr("dspodfl.engine.loop.SHRINKS", 4)
    config = study(value=400.0, scale={"split": "clients"}, model={"name": model}, checkpoint={"every_iterations": 5})
    ends = by_run(run(config, device="cpu").metrics)
    first = min(int(rows["iteration"].iloc[-1]) for rows in ends.values())
    last = max(int(rows["iteration"].iloc[-1]) for rows in ends.values())
    assert last > 3 * first

    def kept(team, stop, before=None):
        keeper = RunFolder(tmp_path / "out", {}) if team.rank == 0 else None
        if keeper and before:
            keeper.reopen()
        simulation = Simulation(config, device="cpu", team=team)
        simulation.open(keeper, lambda: simulation.progress.iteration >= stop, before=before)
        for _ in simulation:
            pass
        result = simulation.result()
        if keeper:
            keeper.release()
        return result

    def on(count, stop, resumed):
        def work(team):
            return kept(team, stop, Unfinished.read(tmp_path / "out") if resumed else None)

        return together(count, work)[0] if count > 1 else work(LocalTransport())

    on(ranks, (first + last) // 3, False)
    on(later, 2 * (first + last) // 3, True)  # a checkpoint of what was resumed
    found, whole = on(ranks, 10**9, True), over(config, 1, "clients")
    close(whole.metrics, found.metrics)
    for algorithm in FIVE:
        for one, other in zip(whole.models(algorithm, 1), found.models(algorithm, 1), strict=True):
            assert all(torch.allclose(one[name], other[name], rtol=0, atol=1e-5) for name in one)
