"""Studies whose clients transform their gradients: from files and from Python, resumed, on ranks and in sweeps."""

import tomllib
from dataclasses import dataclass

import pandas as pd
import pytest
import torch
from tests.edge import TINY_TOML, CommandLine, on_the_cpu, tiny
from tests.teams import together

from dspodfl import InputError, Result, Simulation, run
from dspodfl.algorithms import Algorithm, Simultaneous, local
from dspodfl.study import build

MINE = '{ name = "dspodfl", local = { momentum = 0.9, clip = 1.0, proximal = 0.1 }, label = "dspodfl+m" }'
ADAM = '{ schedule = "dgd", rule = "adapt_then_combine", label = "w", local = { adam = true, decay = 0.1 } }'
TABLE = {"name": "dspodfl", "local": {"momentum": 0.9, "clip": 1.0}, "label": "dspodfl+m"}
VALUE = Algorithm("dspodfl+m", schedule="dspodfl", local=local.chain(local.clip(1.0), local.momentum(0.9)))


@pytest.fixture(autouse=True)
def cpu(monkeypatch):
    on_the_cpu(monkeypatch)


@pytest.fixture
def line(monkeypatch, capsys, tmp_path):
    text = TINY_TOML.replace('["dspodfl", "dgd"]', f'["dspodfl", {MINE}, {ADAM}]').replace("seeds = 1", "seeds = 2")
    (tmp_path / "study.toml").write_text(text)
    return CommandLine(monkeypatch, capsys, tmp_path)


def rows(metrics, label):
    return metrics[metrics["algorithm"] == label].reset_index(drop=True)


# --- from Python ----------------------------------------------------------------------------------------------


def test_a_value_of_python_is_the_table_of_a_file():
    found = run(tiny(), algorithms=["dspodfl", VALUE])
    table = run(tiny(algorithms=["dspodfl", TABLE]))
    assert found.metrics.equals(table.metrics)
    assert found.config["algorithms"][1] == table.config["algorithms"][1]
    assert not rows(found.metrics, "dspodfl")["loss"].equals(rows(found.metrics, "dspodfl+m")["loss"])
    mapping = Algorithm("dspodfl+m", schedule="dspodfl", local=TABLE["local"])
    assert run(tiny(), algorithms=["dspodfl", mapping]).metrics.equals(table.metrics)


@dataclass(frozen=True)
class Halved:
    """Half of the gradient."""

    def init(self, theta):
        return None

    def update(self, g, state, theta, v):
        return 0.5 * g, state


@pytest.mark.parametrize("own", [Halved(), local.chain(local.momentum(0.9), local.clip(1.0))], ids=["own", "order"])
def test_what_no_file_can_say_is_a_value_of_python(own):
    given = Algorithm("mine", schedule="dgd", local=own)
    found = run(tiny(), algorithms=["dgd", given])
    assert found.config["algorithms"] == ["dgd", "mine"]
    assert not rows(found.metrics, "dgd")["loss"].equals(rows(found.metrics, "mine")["loss"])


def test_half_of_the_gradient_is_half_of_the_learning_rate():
    halved = run(tiny(), algorithms=[Algorithm("dgd+", schedule="dgd", local=Halved())])
    plain = run(tiny(train={"learning_rate": tiny().train.learning_rate.value / 2}, algorithms=["dgd"]))
    ours, theirs = (next(iter(found.stacked.values())) for found in (halved, plain))
    assert all(torch.allclose(ours[name], theirs[name], atol=1e-7) for name in ours)


def test_without_local_the_fused_rule_is_used_and_with_equal_local_runs_share_a_stack():
    other = TABLE | {"name": "dgd", "label": "b"}
    third = TABLE | {"label": "c", "local": {"clip": 1.0}}
    study = build(tiny(algorithms=["dspodfl", TABLE, "dgd", other, third, {"name": "rg", "local": {}}]))[1]
    assert study.groups == [0, 1, 0, 1, 2, 0]
    assert isinstance(study.rules[0], Simultaneous) and isinstance(study.rules[5], Simultaneous)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"schedule": "gradient_tracking", "rule": "gradient_tracking"}, "gradient_tracking takes plain gradients"),
        ({"schedule": lambda k, part, rates: None, "rule": "gradient_tracking"}, "takes plain gradients"),
        ({"schedule": "dgd", "local": {"clp": 1}}, r"local\.clp = 1: unknown key"),
        ({"schedule": "dgd", "rule": Simultaneous(), "local": {"clp": 1}}, r"local\.clp = 1: must be left out"),
        ({"schedule": "dgd", "local": {"momentum": 0.9, "adam": True}}, "left out: there is momentum"),
    ],
)
def test_what_a_method_does_not_take_is_refused(given, message):
    with pytest.raises((InputError, ValueError), match=message):
        run(tiny(), algorithms=[Algorithm("x", **({"local": {"clip": 1.0}} | given))])


# --- from a file ----------------------------------------------------------------------------------------------


def test_a_study_of_a_file_is_run_written_verified_and_chosen_from_by_label(line):
    assert line("run", "study.toml", "--out", "out", "--quiet").code == 0
    assert list(Result.load(line.folder / "out").summary["algorithms"]) == ["dspodfl", "dspodfl+m", "w"]
    raw = tomllib.loads((line.folder / "out/config.toml").read_text())["algorithms"]
    assert raw[1]["local"] == {"clip": 1.0, "proximal": 0.1, "momentum": 0.9}
    assert line("verify", "out").code == 0
    assert line("run", "out/config.toml", "--algorithms", "w", "--out", "again", "--quiet").code == 0
    ours, again = (rows(Result.load(line.folder / name).metrics, "w") for name in ("out", "again"))
    pd.testing.assert_frame_equal(ours, again, check_exact=True)
    assert "6 runs" in line("check", "study.toml", "--no-code").out


def test_it_is_resumed_to_the_last_bit(line):
    config = tiny(
        algorithms=["dspodfl", TABLE | {"local": {"adam": True, "proximal": 0.5}}],
        train={"iterations": 12},
        checkpoint={"every_iterations": 2},
    )
    whole = run(config).metrics
    run(config, out=line.folder / "out", callbacks=[lambda update: update.iteration == 6])
    assert line("run", "--resume", "out", "--quiet").code == 0
    pd.testing.assert_frame_equal(Result.load(line.folder / "out").metrics, whole, check_exact=True)


def test_a_sweep_changes_it(line):
    one, other = (f'[{{ name = "dgd", label = "x", local = {{ clip = {c} }} }}]' for c in (1e-3, 1.0))
    changes = ("--set", 'algorithms=[{ name = "dgd", label = "x", local = { clip = 0.001 } }]')
    words = ("sweep", "study.toml", *changes, "--over", "train.batch_size=1,2", "--out", "swept", "--quiet")
    answer = line(*words)
    assert (answer.code, answer.err) == (0, "")
    table = pd.read_parquet(line.folder / "swept/metrics.parquet")
    assert set(table["algorithm"]) == {"x"}
    for number, text in enumerate((one, other)):
        assert line("run", "study.toml", "--set", f"algorithms={text}", "--out", f"o{number}", "--quiet").code == 0
    found = [Result.load(line.folder / f"o{number}").metrics["loss"] for number in (0, 1)]
    assert not found[0].equals(found[1])


@pytest.mark.parametrize("split", ["runs", "clients"])
def test_ranks_come_to_what_one_process_comes_to(split):
    config = tiny(
        algorithms=["dspodfl", TABLE | {"local": {"adam": True, "proximal": 0.5}}],
        train={"iterations": 9},
        scale={"split": split},
        seeds=2,
    )
    alone = run(config)

    def work(team):
        simulation = Simulation(config, device="cpu", team=team)
        for _ in simulation:
            pass
        return simulation.result()

    found = together(2, work)[0]
    assert found.stacked.keys() == alone.stacked.keys()
    for key, tensors in alone.stacked.items():
        assert all(torch.allclose(values, found.stacked[key][name], atol=1e-6) for name, values in tensors.items())


def test_the_theory_is_about_plain_gradients(line):
    answer = line("theory", "bound", "study.toml")
    assert answer.code == 2
    assert "'dspodfl+m': must be an algorithm of the rule simultaneous" in answer.err
