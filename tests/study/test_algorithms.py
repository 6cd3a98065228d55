"""Studies of algorithms with different rules: from Python and from files, resumed, on ranks, in waves and in sweeps."""

import os
import subprocess
import sys
import tomllib
from typing import ClassVar

import numpy as np
import pandas as pd
import pytest
import torch
from tests.edge import TINY_TOML, CommandLine, on_the_cpu, tiny
from tests.teams import together

from dspodfl import Config, ConfigError, InputError, Result, Simulation, run
from dspodfl.algorithms import RULES, Algorithm, Simultaneous, schedules
from dspodfl.study import UserInputs, build, waves
from dspodfl.study.rule_check import check_rule

ATC = {"schedule": "dgd", "rule": "adapt_then_combine", "label": "step first"}
CTA = {"schedule": "rg", "rule": "combine_then_adapt", "label": "mix first"}
MOMENTUM = '''
import torch


class Momentum:
    """Heavy ball: M ← βM + αVG, Θ ← PΘ − M."""

    mixes = 1

    def __init__(self, beta=0.5):
        self.beta = beta

    def init(self, theta, links):
        return {"m": torch.zeros_like(theta)}

    def step(self, theta, state, at):
        m = self.beta * state["m"] + at.gradient(theta, at.lr * at.v)
        return at.mix(theta) - m, {"m": m}
'''
MINE = '{ schedule = "dspodfl", rule = "mine:Momentum", label = "mine", settings = { beta = 0.9 } }'
WITH_MOMENTUM = TINY_TOML.replace('["dspodfl", "dgd"]', f'["dspodfl", {MINE}, "dgd"]').replace("seeds = 1", "seeds = 2")


class Momentum:
    """The same, in Python."""

    def __init__(self, beta=0.5):
        self.beta = beta

    def init(self, theta, links):
        return {"m": torch.zeros_like(theta)}

    def step(self, theta, state, at):
        m = self.beta * state["m"] + at.gradient(theta, at.lr * at.v)
        return at.mix(theta) - m, {"m": m}


@pytest.fixture(autouse=True)
def cpu(monkeypatch):
    on_the_cpu(monkeypatch)


def rows(metrics, label):
    return metrics[metrics["algorithm"] == label].reset_index(drop=True)


def unlabelled(metrics):
    return metrics.drop(columns="algorithm").reset_index(drop=True)


# --- one study, several rules ---------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [{"name": "svm"}, {"name": "mlp", "hidden": [3]}], ids=["linear", "network"])
def test_different_rules_in_one_study_are_separate_studies_to_the_last_bit(model):
    given = ["dspodfl", ATC, "dgd", CTA]
    changes = {"model": model, "seeds": 2, "train": {"iterations": 9}}
    found = run(tiny(algorithms=given, **changes), record_events=True)
    assert list(dict.fromkeys(found.metrics["algorithm"])) == ["dspodfl", "step first", "dgd", "mix first"]
    for one, label in zip(given, ("dspodfl", "step first", "dgd", "mix first"), strict=True):
        alone = run(tiny(algorithms=[one], **changes))
        assert rows(found.metrics, label).equals(rows(alone.metrics, label))
        for seed in (0, 1):
            for name, tensor in alone.stacked[label, seed].items():
                assert torch.equal(tensor, found.stacked[label, seed][name])
    assert found.events.keys() == {(label, seed) for label in found.summary["algorithms"] for seed in (0, 1)}


def test_train_order_is_the_rule_of_methods_that_name_none():
    ours = run(tiny(algorithms=[ATC])).metrics
    theirs = run(tiny(algorithms=["dgd"], train={"order": "adapt_then_combine"})).metrics
    assert unlabelled(ours).equals(unlabelled(theirs))


def test_runs_of_one_rule_stay_in_one_stack():
    _, study = build(tiny(algorithms=["dspodfl", "dgd", "rg", "sporadic_sgd", "dfedavg"], seeds=2))
    assert study.groups == [0] * 10
    _, study = build(tiny(algorithms=["dspodfl", ATC, "dgd", CTA], seeds=2))
    assert study.groups == [0, 0, 1, 1, 0, 0, 2, 2]
    cpu_, memory = torch.device("cpu"), 10**15
    plan = waves.make_plan(study.runs, study.model, 2, cpu_, torch.float32, memory, 1, study.groups)
    assert plan.left == ([0, 1, 4, 5], [2, 3], [6, 7])
    small = waves.make_plan(study.runs, study.model, 2, cpu_, torch.float32, 1, 1, study.groups)
    assert sorted(r for wave in small.left for r in wave) == list(range(8))
    assert all(len({study.groups[r] for r in wave}) == 1 for wave in small.left)


def test_rules_with_equal_settings_share_a_stack_and_others_do_not():
    def groups(*betas):
        own = {f"m{n}": Algorithm(f"m{n}", schedule="dgd", rule=rule) for n, rule in enumerate(betas)}
        config = tiny(algorithms=["dgd"]).model_copy(update={"algorithms": list(own)})
        return build(config, UserInputs(algorithms=own))[1].groups

    one = Momentum(0.5)
    assert groups(one, one, Momentum(0.5)) == [0, 0, 1]


# --- from Python ----------------------------------------------------------------------------------------------


def quiet(k, part, rates):
    events = schedules.dspodfl(k, part, rates)
    return type(events)(events.v & (np.asarray(k) % 2 == 0)[:, None], events.v_hat)


def test_run_takes_names_tables_values_and_schedules():
    given = [
        "DGD",
        {"name": "dfedavg", "label": "D = 2", "settings": {"period": 2}},
        Algorithm("heavy ball", schedule="dspodfl", rule=Momentum, settings={"beta": 0.9}),
        Algorithm("step first", schedule="dgd", rule="adapt_then_combine"),
        quiet,
    ]
    found = run(tiny(algorithms=["rg"]), algorithms=given)
    labels = ["dgd", "D = 2", "heavy ball", "step first", "quiet"]
    assert list(dict.fromkeys(found.metrics["algorithm"])) == labels
    assert list(found.summary["algorithms"]) == labels
    assert found.config["algorithms"][1] == {"name": "dfedavg", "label": "D = 2", "settings": {"period": 2}}
    assert found.config["algorithms"][2] == "heavy ball"
    assert found.config["algorithms"][3] == ATC
    again = run(tiny(algorithms=[ATC])).metrics
    assert rows(found.metrics, "step first").equals(rows(again, "step first"))
    old = run(tiny(algorithms=["dgd"]), schedules={"quiet": quiet}).metrics
    assert rows(found.metrics, "quiet").equals(rows(old, "quiet"))


@pytest.mark.parametrize("order", ["simultaneous", "adapt_then_combine"])
def test_a_rule_that_is_left_out_is_that_of_the_configuration_from_python_too(order):
    config = tiny(train={"order": order})
    given = [Algorithm("named", schedule="dgd"), Algorithm("made", schedule=quiet)]
    found = run(config, algorithms=given).metrics
    table = {"schedule": "dgd", "label": "named"}
    assert rows(found, "named").equals(rows(run(config, algorithms=[table]).metrics, "named"))
    said = [
        Algorithm("made", schedule=quiet, rule=order),
        Algorithm("other", schedule="dgd", rule="combine_then_adapt"),
    ]
    other = run(config, algorithms=said).metrics
    assert rows(found, "made").equals(rows(other, "made"))
    assert not unlabelled(rows(found, "named")).equals(unlabelled(rows(other, "other")))
    values = {"made": given[1]}
    built = build(config.model_copy(update={"algorithms": ["made"]}), UserInputs(algorithms=values))[1]
    assert built.groups == [0] and built.rules[0] is RULES[order]


def test_a_rule_from_python_is_a_rule_of_a_file(tmp_path, monkeypatch):
    (tmp_path / "ours.py").write_text(MOMENTUM)
    monkeypatch.syspath_prepend(str(tmp_path))
    value = Algorithm("mine", schedule="dspodfl", rule=Momentum(0.9))
    ours = run(tiny(), algorithms=[value]).metrics
    table = {"schedule": "dspodfl", "rule": "ours:Momentum", "label": "mine", "settings": {"beta": 0.9}}
    assert ours.equals(run(tiny(algorithms=[table])).metrics)
    assert not unlabelled(ours).equals(unlabelled(run(tiny(algorithms=["dspodfl"])).metrics))


def test_a_study_with_values_from_python_is_resumed_with_them(tmp_path):
    given = ["dgd", Algorithm("mine", schedule="dspodfl", rule=Momentum(0.9))]
    config = tiny(train={"iterations": 12}, checkpoint={"every_iterations": 2})
    whole = run(config, algorithms=given).metrics
    run(config, algorithms=given, out=tmp_path / "out", callbacks=[lambda update: update.iteration == 6])
    found = run(resume=tmp_path / "out", algorithms=given)
    assert found.metrics.equals(whole)
    assert run(config, resume=tmp_path / "out", algorithms=given).metrics.equals(whole)
    with pytest.raises(InputError, match="algorithms"):
        run(config, resume=tmp_path / "out", algorithms=["rg", given[1]])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("dgd", "a list of names, tables"),
        ([], "a list of names, tables"),
        (3, "a list of names, tables"),
        ([3], "a list of names, tables"),
        (["dgd", "dgd"], "named once"),
        (["dgd", {"name": "rg", "label": "x"}, Algorithm("x", schedule=quiet)], "the label of one algorithm alone"),
        ([quiet, quiet], "the label of one algorithm alone"),
        ([Algorithm("rg", schedule=quiet)], "a name of its own"),
        ([Algorithm("a" * 81, schedule=quiet)], "1 to 80 printable characters"),
        ([Algorithm("x", schedule="dgdd")], "did you mean 'dgd'"),
        ([Algorithm("x", schedule="dgd", rule="momentum")], r"algorithms\.rule"),
        ([Algorithm("x", schedule="dgd", rule=Momentum, settings={"gamma": 1})], "allowed are beta"),
        ([Algorithm("x", schedule="dgd", rule=lambda: 3)], "no init and no step"),
        ([lambda: 3], "printable|Schedule"),
    ],
)
def test_what_is_no_list_of_algorithms_is_refused(given, message):
    with pytest.raises((InputError, ConfigError), match=message):
        run(tiny(), algorithms=given)


# --- rules are tried before a run -----------------------------------------------------------------------------


def rule(init=lambda theta: None, step=None):
    step = step or (lambda self, theta, state, at: (at.mix(theta), state))
    return type("Mine", (), {"init": lambda self, theta, links: init(theta), "step": step})()


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (
            rule(lambda theta: 3),
            "gives as its state None, or tensors of one row a client.*it gave 'a int'|it gave a int",
        ),
        (rule(lambda theta: {"k": 0}), "it gave a int"),
        (rule(lambda theta: torch.zeros(())), "it gave a tensor of shape"),
        (rule(lambda theta: torch.zeros(7)), r"it gave a tensor of shape \(7,\)"),
        (rule(lambda theta: 1 / 0), r"init\(theta, links\) raised ZeroDivisionError"),
        (rule(step=lambda self, theta: theta), r"step\(theta, .*raised TypeError"),
        (rule(step=lambda self, theta, *rest: theta), r"step gives \(theta, state\)"),
        (rule(step=lambda self, theta, *rest: (theta[:1], None)), "of the shape and type that they had"),
        (rule(step=lambda self, theta, *rest: (theta, theta)), "keeps its form"),
    ],
)
def test_a_rule_that_cannot_be_run_or_saved_is_refused_before_the_run(made, message):
    with pytest.raises(InputError, match=message) as found:
        run(tiny(), algorithms=[Algorithm("bad", schedule="dgd", rule=made)])
    assert found.value.field == "algorithms.rule"
    assert "'bad'" in str(found.value)


def test_a_rule_with_a_state_of_tensors_is_taken():
    check_rule("fine", Momentum(), 5)
    check_rule("fine", rule(lambda theta: [theta.clone(), (torch.zeros(len(theta)), None)]), 5)


def test_a_run_that_is_over_keeps_its_models_whatever_its_rule_would_do():
    """Momentum moves models without events: nothing moves after the budget is spent."""
    given = [
        Algorithm("mine", schedule="dspodfl", rule=Momentum(0.9)),
        Algorithm("fast", schedule="dgd", rule=Momentum(0.9)),
    ]
    changes = {"train": {"until": {"delay": 40.0}}, "eval": {"points": 3}, "seeds": 2}
    together_ = run(tiny(**changes), algorithms=given)
    for value in given:
        alone = run(tiny(**changes), algorithms=[value])
        assert rows(together_.metrics, value.label).equals(rows(alone.metrics, value.label))
        for seed in (0, 1):
            for name, tensor in alone.stacked[value.label, seed].items():
                assert torch.equal(tensor, together_.stacked[value.label, seed][name])


# --- from a file, on the command line -------------------------------------------------------------------------


@pytest.fixture
def line(monkeypatch, capsys, tmp_path):
    (tmp_path / "mine.py").write_text(MOMENTUM)
    (tmp_path / "study.toml").write_text(WITH_MOMENTUM)
    return CommandLine(monkeypatch, capsys, tmp_path)


def test_a_momentum_rule_from_a_file(line):
    answer = line("run", "study.toml", "--out", "out", "--save-models", "--record-events", "--quiet")
    assert (answer.code, answer.err) == (0, "")
    found = Result.load(line.folder / "out")
    assert list(found.summary["algorithms"]) == ["dspodfl", "mine", "dgd"]
    plain = run(tiny(seeds=2, algorithms=["dspodfl", "dgd"])).metrics
    for label in ("dspodfl", "dgd"):
        pd.testing.assert_frame_equal(rows(found.metrics, label), rows(plain, label), check_exact=True)
    assert {path.name for path in (line.folder / "out/models").iterdir()} >= {"mine-seed0.safetensors"}
    raw = tomllib.loads((line.folder / "out/config.toml").read_text())
    assert raw["algorithms"][1]["rule"] == "mine:Momentum"
    assert line("verify", "out").code == 0
    assert "mine" in line("show", "out").out
    replayed = run(tiny(seeds=1), schedules={"again": found_replay(line.folder / "out")})
    ours = found.metrics[(found.metrics["algorithm"] == "mine") & (found.metrics["seed"] == 0)]
    assert rows(replayed.metrics, "again")["sgd_steps"].tolist() == ours["sgd_steps"].tolist()


def found_replay(folder):
    from dspodfl import replay

    return replay(folder / "events.npz", "mine", 0)


def test_an_algorithm_of_a_file_is_chosen_by_its_label(line):
    assert line("run", "study.toml", "--algorithms", "mine,DGD", "--out", "out", "--quiet").code == 0
    assert list(Result.load(line.folder / "out").summary["algorithms"]) == ["mine", "dgd"]
    assert "did you mean" in line("run", "study.toml", "--algorithms", "dgdd").err


def test_check_shows_the_runs_and_without_code_imports_none(line):
    assert "6 runs (3 algorithms × 2 seeds)" in line("check", "study.toml").out
    (line.folder / "mine.py").write_text("raise SystemExit('imported')")
    assert "6 runs" in line("check", "study.toml", "--no-code").out
    answer = line("check", "study.toml")
    assert answer.code == 2
    assert "algorithms.rule = 'mine:Momentum'" in answer.err


def test_a_study_with_such_a_rule_is_resumed_to_the_last_bit(line):
    change = ("--set", "train.iterations=40", "--set", "eval.every=4", "--quiet")
    assert line("run", "study.toml", *change, "--out", "whole").code == 0
    whole = Result.load(line.folder / "whole").metrics
    simulation = "from dspodfl.ui.cli import app; app.main()"
    stop = (
        "import sys; sys.path.insert(0, '.'); import mine, os\n"
        "step, count = mine.Momentum.step, [0]\n"
        "def dies(self, *given):\n"
        "    count[0] += 1\n"
        "    if count[0] == 25: os._exit(9)\n"
        "    return step(self, *given)\n"
        "mine.Momentum.step = dies\n"
    )
    words = ["run", "study.toml", *change, "--set", "checkpoint.every_iterations=2", "--out", "out"]
    code = stop + f"sys.argv = ['dspodfl', *{words!r}]\n{simulation}"
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    assert subprocess.run([sys.executable, "-c", code], cwd=line.folder, env=environment, check=False).returncode == 9
    assert line("run", "--resume", "out", "--quiet").code == 0
    pd.testing.assert_frame_equal(Result.load(line.folder / "out").metrics, whole, check_exact=True)


@pytest.mark.parametrize("split", ["runs", "clients"])
def test_ranks_come_to_what_one_process_comes_to(split, tmp_path, monkeypatch):
    """One seed: the waves of some rules have fewer runs than there are ranks."""
    (tmp_path / "shared.py").write_text(MOMENTUM)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "shared", raising=False)
    table = {"schedule": "dspodfl", "rule": "shared:Momentum", "label": "mine"}
    config = tiny(algorithms=["dspodfl", table, "dgd", ATC], train={"iterations": 9}, scale={"split": split})
    alone = run(config, record_events=True)

    def work(team):
        simulation = Simulation(config, device="cpu", team=team, record_events=True)
        for _ in simulation:
            pass
        return simulation.result()

    found = together(2, work)[0]
    exact = ["algorithm", "seed", "iteration", "sgd_steps", "link_uses", "delay"]
    columns = [name for name in exact if name in alone.metrics]
    assert found.metrics[columns].equals(alone.metrics[columns])
    assert np.allclose(found.metrics["accuracy"], alone.metrics["accuracy"], atol=0.11)
    if split == "runs":
        assert found.metrics.equals(alone.metrics)
    assert found.stacked.keys() == alone.stacked.keys()
    if split == "clients":
        assert found.events.keys() == alone.events.keys()


@pytest.mark.long  # ranks find a custom rule: tests/errors/test_user_code.py; they run it: the tests above
def test_two_ranks_of_the_command_line(line):
    words = [sys.executable, "-m", "dspodfl", "run", "study.toml", "--ranks", "2", "--out", "out", "--quiet"]
    done = subprocess.run(
        words,
        cwd=line.folder,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert line("run", "study.toml", "--out", "alone", "--quiet").code == 0
    ours, theirs = (Result.load(line.folder / name).metrics for name in ("out", "alone"))
    pd.testing.assert_frame_equal(ours, theirs, check_exact=True)


def test_a_sweep_over_studies_with_several_rules(line):
    words = ("sweep", "study.toml", "--over", "train.batch_size=1,2", "--out", "swept", "--quiet")
    answer = line(*words)
    assert (answer.code, answer.err) == (0, "")
    table = pd.read_parquet(line.folder / "swept/metrics.parquet")
    assert set(table["algorithm"]) == {"dspodfl", "mine", "dgd"}
    assert line("run", "study.toml", "--set", "train.batch_size=1", "--out", "one", "--quiet").code == 0
    one = Result.load(line.folder / "one").metrics
    cell = table[table["train.batch_size"] == 1].drop(columns="train.batch_size").reset_index(drop=True)
    pd.testing.assert_frame_equal(cell[one.columns.tolist()], one, check_exact=True, check_dtype=False)


@pytest.mark.parametrize(
    ("item", "said"),
    [
        ('{ schedule = "dspodfl", rule = "mine:Nothing" }', "algorithms.rule = 'mine:Nothing'"),
        ('{ schedule = "dspodfl", rule = "none:Rule" }', "No module named 'none'"),
        ('{ schedule = "dspodfl", rule = "mine:Momentum", settings = { gamma = 1 } }', "allowed are beta"),
        ('{ schedule = "dspodfl", rule = "mine:torch" }', "algorithms.rule"),
        ('{ name = "dgd", local = 1 }', "algorithms[1].local = 1: must be a table"),
        ('{ name = "dgd", local = { clp = 1.0 } }', "algorithms[1].local.clp = 1.0: unknown key"),
        ('{ name = "gradient_tracking", local = { clip = 1.0 } }', "gradient_tracking takes plain gradients"),
    ],
)
def test_bad_algorithms_of_a_file_end_with_code_2(line, item, said):
    (line.folder / "study.toml").write_text(WITH_MOMENTUM.replace(MINE, item))
    answer = line("run", "study.toml", "--out", "out")
    assert answer.code == 2
    assert said in answer.err
    assert not (line.folder / "out").exists()


def test_the_theory_is_about_one_rule(line):
    answer = line(
        "theory", "bound", "study.toml", "--set", "algorithms=['dgd', { schedule = 'dgd', rule = 'mine:Momentum' }]"
    )
    assert answer.code == 2
    assert "an algorithm of the rule simultaneous" in answer.err


def test_a_configuration_with_tables_is_the_same_after_a_round_trip():
    config = tiny(algorithms=["dgd", ATC, {"name": "dfedavg", "settings": {"period": 2}, "label": "D"}])
    assert Config(**config.model_dump()) == Config(**config.model_dump(mode="json")) == config


def test_a_rule_may_know_the_shapes_of_the_model():
    config = Config(seeds=1, algorithms=["power_gossip", "choco"], data={"name": "synthetic"}, train={"iterations": 5})
    _, study = build(config)
    shapes = tuple(tuple(shape) for shape in study.model.shapes.values())
    assert [getattr(method.rule, "shapes", None) for method in study.algorithms] == [shapes, None]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"gamma": 1.5}, "gamma = 1.5: must be a number in (0, 1]"),
        ({"compressor": "qsgd", "share": 0.5}, "share = 0.5"),
    ],
)
def test_bad_settings_of_a_compressed_method_are_refused_by_their_key(settings, said):
    with pytest.raises((ConfigError, InputError)) as caught:
        build(Config(algorithms=[{"name": "choco", "settings": settings}], data={"name": "synthetic"}))
    assert said in str(caught.value)


# --- what the network can tell --------------------------------------------------------------------------------


class _Picky(Simultaneous):
    """A rule that wants clients with two neighbours; it notes what it is asked."""

    asked: ClassVar[list] = []

    def check(self, topology, rates):
        self.asked.append((topology.graph.n, rates.graph.links))
        if (topology.graph.degree != 2).any():
            raise InputError("graph.kind", "path", "one in which every client has two neighbours (of 'picky')")


def test_a_rule_is_asked_about_the_network_of_every_seed_before_a_study_begins(tmp_path):
    _Picky.asked.clear()
    picky = Algorithm("picky", schedule="dspodfl", rule=_Picky())
    run(tiny(seeds=3), algorithms=[picky], device="cpu", out=tmp_path / "ring")
    assert _Picky.asked == [(4, 4)] * 3
    with pytest.raises(InputError, match=r"graph\.kind = .path.: must be one in which every client has two neighbours"):
        run(tiny(graph={"kind": "path"}), algorithms=[picky], device="cpu", out=tmp_path / "path")
    assert not (tmp_path / "path").exists()


def test_a_schedule_is_asked_as_well_and_an_error_of_its_own_is_told_by_name():
    class Asks:
        def __call__(self, k, part, rates):
            return schedules.dspodfl(k, part, rates)

        def check(self, topology, rates):
            raise ZeroDivisionError

    with pytest.raises(InputError, match=r"algorithms = 'asks': .*check of Asks raised ZeroDivisionError"):
        run(tiny(), algorithms=[Algorithm("asks", schedule=Asks())], device="cpu")


PICKY = """
from dspodfl.algorithms.rules import AdaptThenCombine
from dspodfl.errors import InputError

class Never(AdaptThenCombine):
    def check(self, topology, rates):
        raise InputError("algorithms", "never", f"run elsewhere than on {topology.graph.n} clients")
"""


@pytest.mark.parametrize("command", ["check", "run"])
def test_the_commands_refuse_what_a_rule_refuses_with_exit_code_2(command, monkeypatch, capsys, tmp_path):
    line = CommandLine(monkeypatch, capsys, tmp_path)
    (tmp_path / "picky_rules.py").write_text(PICKY)
    (tmp_path / "study.toml").write_text(TINY_TOML)
    given = 'algorithms=[{schedule="dspodfl",rule="picky_rules:Never"}]'
    answer = line(command, "study.toml", "--set", given, *(("--out", "out") if command == "run" else ()))
    assert answer.code == 2 and "algorithms = 'never': must be run elsewhere than on 4 clients" in answer.err
    assert not (tmp_path / "out").exists()
