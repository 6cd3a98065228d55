"""The command line: what each command prints, writes and answers."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from importlib.metadata import version

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.image import imread
from safetensors.torch import load_file
from tests.edge import TINY_TOML, CommandLine

from dspodfl import Config, DataError, InputError, Result, replay, run
from dspodfl.algorithms import ALGORITHMS
from dspodfl.analysis.metrics import METRICS
from dspodfl.config import load, template
from dspodfl.errors.signals import Interrupted
from dspodfl.problem.models import MODELS
from dspodfl.study.result import FILES

ALONE = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
"""The surroundings of a process of its own."""

ALWAYS = sorted(set(FILES) - {"events.npz"})
"""What the folder of every run holds."""


@pytest.fixture
def dspodfl(monkeypatch, capsys, tmp_path):
    """The command line in a folder with a tiny study."""
    (tmp_path / "study.toml").write_text(TINY_TOML)
    return CommandLine(monkeypatch, capsys, tmp_path)


@pytest.fixture
def no_pictures(monkeypatch):
    """Results are written without their pictures, which take most of the time."""
    monkeypatch.setattr(Result, "draw", lambda *_: set())


def listing(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def changes(*texts):
    return [word for text in texts for word in ("--set", text)]


# --- small commands -------------------------------------------------------------------------------------------


def test_the_version_is_that_of_the_package(dspodfl):
    assert dspodfl("--version").out == f"dspodfl {version('dspodfl')}\n"


def test_the_package_is_a_command_as_well():
    found = subprocess.run([sys.executable, "-m", "dspodfl", "--version"], capture_output=True, text=True, check=True)
    assert found.stdout.startswith("dspodfl ") and found.stderr == ""


def test_help_names_every_command_and_every_option(dspodfl):
    commands = re.findall(r"^  (\w+)  ", dspodfl("--help").out, re.MULTILINE)
    assert commands == [
        "run",
        "init",
        "schema",
        "check",
        "list",
        "show",
        "verify",
        "sweep",
        "reproduce",
        "report",
        "node",
        "up",
        "theory",
        "keys",
        "nodes",
    ]
    options = re.findall(r"^  (?:-\w, )?(--[\w-]+)", dspodfl("run", "--help").out, re.MULTILINE)
    assert options == [
        *("--set", "--algorithms", "--seeds", "--device", "--out", "--overwrite"),
        *("--save-models", "--record-events", "--resume", "--ranks", "--max-restarts", "--json", "--quiet", "--help"),
    ]


def test_without_a_command_the_help_is_shown(dspodfl):
    answer = dspodfl()
    assert "Commands:" in answer.out + answer.err
    assert answer.code == 2


def test_asking_for_the_version_needs_no_torch():
    code = "import sys, dspodfl.ui.cli.app; sys.exit('torch' in sys.modules or 'pandas' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_init_writes_the_template_which_is_valid(dspodfl):
    answer = dspodfl("init", "own.toml")
    assert answer.code == 0 and "own.toml" in answer.out
    assert (dspodfl.folder / "own.toml").read_text() == template()
    assert load(dspodfl.folder / "own.toml") == Config()


def test_init_leaves_a_file_that_is_there(dspodfl):
    (dspodfl.folder / "own.toml").write_text("mine")
    answer = dspodfl("init", "own.toml")
    assert answer.code == 2 and "own.toml" in answer.err
    assert (dspodfl.folder / "own.toml").read_text() == "mine"


def test_check_says_how_much_there_is_to_run_and_writes_nothing(dspodfl):
    before = dspodfl.written()
    answer = dspodfl("check", "study.toml", *changes("seeds=3"))
    assert answer.code == 0
    assert "6 runs (2 algorithms × 3 seeds) of 4 clients, 16 parameters, about 4 iterations at most" in answer.out
    assert answer.err == ""
    assert dspodfl.written() == before


def test_list_has_one_line_for_everything_that_has_a_name(dspodfl):
    answer = dspodfl("list")
    lines = [line.split(maxsplit=1) for line in answer.out.splitlines() if line.startswith("  ")]
    assert all(len(line) == 2 for line in lines)
    names = [line[0] for line in lines]
    assert {*ALGORITHMS, *MODELS} <= set(names)
    for some in (
        "geometric ring path star complete grid torus erdos_renyi regular small_world exponential file",
        "static switching bernoulli markov waypoint",
        "metropolis lazy_metropolis max_degree equal_neighbour",
        "beta uniform truncnorm bimodal constant list csv",
        "fmnist-mini fmnist mnist cifar10 synthetic ridge npz",
        "iid labels dirichlet shards quantity shared",
        "constant diminishing step",
    ):
        assert set(some.split()) <= set(names)


# --- run: the folder ------------------------------------------------------------------------------------------


def test_a_run_writes_the_files_of_the_contract_and_no_other(dspodfl):
    answer = dspodfl("run", "study.toml", "--out", "out")
    folder = dspodfl.folder / "out"
    assert answer.code == 0
    assert listing(folder) == ALWAYS
    metrics = pd.read_parquet(folder / "metrics.parquet")
    assert tuple(metrics.columns) == METRICS
    assert tuple(metrics.columns) == (
        *("algorithm", "seed", "iteration", "accuracy", "accuracy_std", "accuracy_min", "accuracy_average_model"),
        *("loss", "consensus_error", "optimality_error"),
        *("delay_processing", "delay_transmission", "delay_total"),
        *("delay_processing_normalized", "delay_transmission_normalized", "delay_total_normalized"),
        *("sgd_steps", "link_uses", "bytes", "diverged"),
    )
    for name in ("seed", "iteration", "sgd_steps", "link_uses", "bytes"):
        assert metrics[name].dtype == np.int64
    assert metrics["diverged"].dtype == bool
    clients = pd.read_parquet(folder / "clients.parquet")
    assert list(clients.columns) == [
        *("algorithm", "seed", "client", "name", "degree", "d", "samples", "labels", "final_accuracy")
    ]
    assert len(clients) == 2 * 4
    with np.load(folder / "setting.npz") as setting:
        assert sorted(setting.files) == ["0/b", "0/d", "0/edges"]
    assert set(json.loads((folder / "summary.json").read_text())) == {"kind", "format", "study", "algorithms"}
    assert load(folder / "config.toml") == load(dspodfl.folder / "study.toml")
    for name in ("accuracy_vs_delay.png", "network.png"):
        assert imread(folder / name).ndim == 3
    assert (folder / "accuracy_vs_delay.svg").read_text().lstrip().startswith("<?xml")


def test_a_run_prints_the_comparison_and_where_the_picture_lies(dspodfl):
    answer = dspodfl("run", "study.toml", "--out", "[odd] folder")
    assert re.search(r"DSpodFL +\d\.\d{3} ", answer.out)
    assert re.search(r"DGD +\d\.\d{3} ", answer.out)
    assert "synthetic (labels per_client=1), svm, 4 clients, 1 seed" in answer.out
    assert "Accuracy: of 1 seed, after 4 of 4 iterations." in answer.out
    assert "with one seed there is no interval" in answer.out or "are level" in answer.out
    assert f"picture: {os.path.join('[odd] folder', 'accuracy_vs_delay.png')}\n" in answer.out
    assert "tables:  [odd] folder\n" in answer.out


def test_positions_and_names_are_in_the_setting_where_there_are_any(dspodfl, no_pictures):
    (dspodfl.folder / "links.csv").write_text("ann,bob\nbob,cem\ncem,dia\n")
    dspodfl("run", "study.toml", "--out", "a", *changes('graph={kind="file",file="links.csv"}'))
    dspodfl("run", "study.toml", "--out", "b", *changes('graph={kind="geometric",radius=0.9}'), "--seeds", 2)
    with np.load(dspodfl.folder / "a/setting.npz") as setting:
        assert setting["0/labels"].tolist() == ["ann", "bob", "cem", "dia"]
    with np.load(dspodfl.folder / "b/setting.npz") as setting:
        assert setting["1/positions"].shape == (4, 2)
        assert not np.array_equal(setting["0/positions"], setting["1/positions"])


def test_the_default_folder_is_named_by_study_date_and_content(dspodfl, no_pictures):
    dspodfl("run", "study.toml", "--quiet")
    dspodfl("run", "study.toml", "--quiet", *changes("seed=1"))
    dspodfl("run", "--quiet", *changes("data={name='synthetic',samples=50}", "train.iterations=1", "seeds=1"))
    names = sorted(path.name for path in (dspodfl.folder / "runs").iterdir())
    assert all(re.fullmatch(r"(study|default)-\d{8}-\d{6}-[0-9a-f]{7}", name) for name in names)
    assert [name.split("-")[0] for name in names] == ["default", "study", "study"]
    assert len({name.rsplit("-", 1)[1] for name in names}) == 3


def test_a_parent_that_does_not_exist_is_made(dspodfl, no_pictures):
    assert dspodfl("run", "study.toml", "--quiet", "--out", "some/where/new").code == 0
    assert (dspodfl.folder / "some/where/new/metrics.parquet").is_file()


# --- run: options ---------------------------------------------------------------------------------------------


def test_json_is_the_summary_and_the_folder_and_nothing_else(dspodfl, no_pictures):
    answer = dspodfl("run", "study.toml", "--out", "out", "--json")
    assert answer.code == 0 and answer.err == ""
    written = json.loads((dspodfl.folder / "out/summary.json").read_text())
    assert json.loads(answer.out) == {"out": "out", **written}


def test_quiet_prints_nothing(dspodfl, no_pictures):
    answer = dspodfl("run", "study.toml", "--out", "out", "--quiet")
    assert (answer.code, answer.out, answer.err) == (0, "", "")
    assert (dspodfl.folder / "out/metrics.parquet").is_file()


def test_algorithms_seeds_and_device_are_those_of_the_options(dspodfl, no_pictures):
    words = ["--algorithms", "rg, dfedavg", "--seeds", 2, "--device", "cpu", "--json"]
    found = json.loads(dspodfl("run", "study.toml", "--out", "out", *words).out)
    assert list(found["algorithms"]) == ["rg", "dfedavg"]
    assert found["study"]["runs"] == 4 and list(found["study"]["seeds"]) == ["0", "1"]
    assert found["study"]["device"].startswith("cpu")
    metrics = pd.read_parquet(dspodfl.folder / "out/metrics.parquet")
    assert set(zip(metrics["algorithm"], metrics["seed"], strict=True)) == {
        ("rg", 0),
        ("rg", 1),
        ("dfedavg", 0),
        ("dfedavg", 1),
    }
    resolved = tomllib.loads((dspodfl.folder / "out/config.toml").read_text())
    assert (resolved["algorithms"], resolved["seeds"]) == (["rg", "dfedavg"], 2)


def test_models_are_saved_where_asked_for_and_load_into_a_module(dspodfl, no_pictures):
    dspodfl("run", "study.toml", "--quiet", "--out", "out", "--save-models", "--seeds", 2)
    folder = dspodfl.folder / "out"
    names = [f"models/{algorithm}-seed{seed}.safetensors" for algorithm in ("dgd", "dspodfl") for seed in (0, 1)]
    assert [name for name in listing(folder) if name.startswith("models")] == names
    stacked = load_file(folder / names[0])
    assert {name: tuple(value.shape) for name, value in stacked.items()} == {
        "linear.weight": (4, 4, 3),
        "linear.bias": (4, 4),
    }
    result = Result.load(folder)
    module = torch.nn.Sequential()
    module.add_module("linear", torch.nn.Linear(3, 4))
    module.load_state_dict(result.models("dgd", seed=0)[2])
    assert torch.equal(module.linear.weight, stacked["linear.weight"][2])


def test_models_are_not_saved_where_not_asked_for(dspodfl, no_pictures):
    dspodfl("run", "study.toml", "--quiet", "--out", "out")
    assert not (dspodfl.folder / "out/models").exists()
    with pytest.raises(InputError, match="not saved"):
        Result.load(dspodfl.folder / "out").models("dgd", seed=0)


def test_recorded_events_are_those_of_the_metrics_and_replay_gives_the_same_metrics(dspodfl, no_pictures):
    words = [*changes("train.iterations=9", "graph={kind='erdos_renyi',p=0.6}"), "--seeds", 2]
    dspodfl("run", "study.toml", "--quiet", "--out", "out", "--record-events", *words)
    first = Result.load(dspodfl.folder / "out")
    for (algorithm, seed), (events, edges) in first.events.items():
        last = first.metrics.query(f"algorithm == '{algorithm}' and seed == {seed}").iloc[-1]
        assert events.v.shape == (9, 4) and events.v_hat.shape == (9, len(edges))
        assert (events.v.sum(), events.v_hat.sum()) == (last["sgd_steps"], last["link_uses"])
    again = replay(dspodfl.folder / "out/events.npz", "dspodfl", 1)
    config = load(dspodfl.folder / "out/config.toml", seed=1, seeds=1, algorithms=["dgd"])
    second = run(config, schedules={"again": again}).metrics.query("algorithm == 'again'")
    before = first.metrics.query("algorithm == 'dspodfl' and seed == 1")
    pd.testing.assert_frame_equal(
        second.drop(columns="algorithm").reset_index(drop=True), before.drop(columns="algorithm").reset_index(drop=True)
    )


def test_a_record_of_other_runs_or_of_none_is_refused(dspodfl, no_pictures):
    dspodfl("run", "study.toml", "--quiet", "--out", "out", "--record-events")
    file = dspodfl.folder / "out/events.npz"
    with pytest.raises(InputError, match=r"'rg/0'.*dgd/0, dspodfl/0"):
        replay(file, "rg", 0)
    file.write_bytes(file.read_bytes()[:50])
    with pytest.raises(DataError, match=r"events\.npz is damaged"):
        replay(file, "dgd", 0)
    (dspodfl.folder / "events.npz").write_bytes(file.read_bytes())
    with pytest.raises(DataError, match="not a record of events"):
        replay(dspodfl.folder / "events.npz", "dgd", 0)
    recorded = dspodfl("run", "study.toml", "--quiet", "--out", "more", "--record-events")
    assert recorded.code == 0
    with pytest.raises(InputError, match=r"train.iterations = 5"):
        run(
            load(dspodfl.folder / "study.toml", ["train.iterations=5"]),
            schedules={"again": replay(dspodfl.folder / "more/events.npz", "dgd", 0)},
        )


def test_overwriting_leaves_nothing_of_the_former_result_and_everything_of_others(dspodfl):
    dspodfl("run", "study.toml", "--quiet", "--out", "out", "--save-models", "--record-events", *changes("seed=5"))
    folder = dspodfl.folder / "out"
    former = {name: (folder / name).read_bytes() for name in listing(folder)}
    assert "events.npz" in former and "models/dgd-seed5.safetensors" in former
    for name in ("notes.txt", "models/own.safetensors", "models/readme.md"):
        (folder / name).write_text("mine")
    refused = dspodfl("run", "study.toml", "--quiet", "--out", "out")
    assert refused.code == 2 and "--overwrite" in refused.err
    assert {name: (folder / name).read_bytes() for name in former} == former
    answer = dspodfl("run", "study.toml", "--quiet", "--out", "out", "--overwrite")
    assert answer.code == 0
    assert listing(folder) == sorted([*ALWAYS, "models/own.safetensors", "models/readme.md", "notes.txt"])
    for name in ALWAYS:
        if name != "network.png":
            assert (folder / name).read_bytes() != former[name], name
    assert (folder / "models/own.safetensors").read_text() == "mine"
    assert Result.load(folder).config["seed"] == 0


def test_a_schedule_and_a_model_may_lie_beside_the_configuration(dspodfl, no_pictures):
    folder = dspodfl.folder / "elsewhere"
    folder.mkdir()
    (folder / "beside_cli.py").write_text(
        "import numpy as np\nfrom torch import nn\nfrom dspodfl import Events\n"
        "def net(outputs): return nn.Linear(3, outputs)\n"
        "def odd(k, part, rates):\n"
        "    fire = (k % 2 == 1)[:, None]\n"
        "    return Events(np.repeat(fire, len(part.client), 1), np.repeat(~fire, len(part.link), 1))\n"
    )
    text = TINY_TOML.replace('"dgd"]', '"beside_cli:odd"]') + '[model]\nfactory = "beside_cli:net"\n'
    (folder / "own.toml").write_text(text)
    assert dspodfl("check", "elsewhere/own.toml").code == 0
    assert dspodfl("run", "elsewhere/own.toml", "--quiet", "--out", "out", "--save-models").code == 0
    result = Result.load(dspodfl.folder / "out")
    last = result.metrics.query("algorithm == 'beside_cli:odd'").iloc[-1]
    assert (last["sgd_steps"], last["link_uses"]) == (2 * 4, 2 * 4)
    assert set(result.models("beside_cli:odd")[0]) == {"weight", "bias"}
    over = ("--over", "train.batch_size=2,3", "--quiet", "--out", "swept")
    assert dspodfl("sweep", "elsewhere/own.toml", *over).code == 0


# --- show -----------------------------------------------------------------------------------------------------


def test_show_prints_the_run_again_and_draws_deleted_pictures_anew(dspodfl):
    printed = dspodfl("run", "study.toml", "--out", "out").out
    folder = dspodfl.folder / "out"
    before = {name: (folder / name).read_bytes() for name in listing(folder)}
    for name in ("accuracy_vs_delay.png", "accuracy_vs_delay.svg", "network.png"):
        (folder / name).unlink()
    answer = dspodfl("show", "out")
    assert answer.code == 0
    assert answer.out == printed
    assert {name: (folder / name).read_bytes() for name in listing(folder)} == before


@pytest.mark.parametrize("name", ["config.toml", "metrics.parquet", "clients.parquet", "setting.npz", "summary.json"])
def test_show_says_which_run_is_damaged(dspodfl, no_pictures, name):
    dspodfl("run", "study.toml", "--quiet", "--out", "out")
    file = dspodfl.folder / "out" / name
    for content in (file.read_bytes()[:200], b"", None):
        file.unlink() if content is None else file.write_bytes(content)
        answer = dspodfl("show", "out")
        assert answer.code == 2
        assert answer.err.startswith("error: out: ") and "Traceback" not in answer.err


def test_show_refuses_tables_of_something_else(dspodfl, no_pictures):
    dspodfl("run", "study.toml", "--quiet", "--out", "out")
    folder = dspodfl.folder / "out"
    for name, content in (
        ("summary.json", b"[]"),
        ("config.toml", b"seed = 1"),
        ("metrics.parquet", pd.DataFrame({"a": [1]}).to_parquet()),
    ):
        before = (folder / name).read_bytes()
        (folder / name).write_bytes(content)
        answer = dspodfl("show", "out")
        assert answer.code == 2 and name in answer.err
        (folder / name).write_bytes(before)
    assert dspodfl("show", "out").code == 0


# --- what is in it --------------------------------------------------------------------------------------------


def test_the_same_seed_twice_is_the_same_bytes(dspodfl, no_pictures):
    def metrics(name, *words):
        assert dspodfl("run", "study.toml", "--quiet", "--out", name, *words).code == 0
        return (dspodfl.folder / name / "metrics.parquet").read_bytes()

    first = metrics("a")
    assert metrics("b") == first
    assert metrics("c", *changes("seed=1")) != first
    command = [sys.executable, "-m", "dspodfl", "run", "study.toml", "--quiet", "--out", "d"]
    subprocess.run(command, cwd=dspodfl.folder, env=ALONE, check=True)
    assert (dspodfl.folder / "d/metrics.parquet").read_bytes() == first
    assert listing(dspodfl.folder / "d") == ALWAYS


def test_the_summary_is_what_the_metrics_say(dspodfl, no_pictures):
    words = changes(
        "train={iterations=60,batch_size=4,learning_rate={kind='constant',value=0.3}}",
        "eval={every=5,targets=[0.3,0.5,0.6,1.0],at_delay=[30.0,1e9]}",
        "data.separation=4.0",
    )
    found = json.loads(dspodfl("run", "study.toml", "--out", "out", "--json", "--seeds", 4, *words).out)
    metrics = pd.read_parquet(dspodfl.folder / "out/metrics.parquet")
    censored = 0
    for algorithm, about in found["algorithms"].items():
        runs = [r for _, r in metrics[metrics["algorithm"] == algorithm].groupby("seed")]
        last = pd.DataFrame([r.iloc[-1] for r in runs])
        assert (about["seeds"], about["iterations"], about["diverged"]) == (4, 60, 0)
        for name in ("accuracy", "accuracy_min", "accuracy_average_model", "loss"):
            assert about[f"final_{name}"]["mean"] == pytest.approx(np.mean(last[name]))
            assert about[f"final_{name}"]["std"] == pytest.approx(np.std(last[name], ddof=1))
        assert about["final_optimality_error"] == {"mean": None, "std": None}
        assert about["final_delay"]["delay_total"]["median"] == pytest.approx(np.median(last["delay_total"]))
        for target in about["targets"]:
            reached = [r[r["accuracy"] >= target["accuracy"]] for r in runs]
            assert target["reached"] == sum(len(r) > 0 for r in reached)
            censored += sum(len(r) == 0 for r in reached)
            for name in (
                "iteration",
                "delay_processing",
                "delay_transmission",
                "delay_total",
                "delay_total_normalized",
            ):
                delays = [r[name].iloc[0] if len(r) else np.inf for r in reached]
                for quantile, q in (("quartile1", 0.25), ("median", 0.5), ("quartile3", 0.75)):
                    assert target[name][quantile] == quantile_of(delays, q)
        near, never = about["at_delay"]
        crossing = [r[r["delay_total"] >= 30].iloc[0] for r in runs]
        assert near["reached"] == 4
        assert near["accuracy"]["mean"] == pytest.approx(np.mean([row["accuracy"] for row in crossing]))
        assert never["reached"] == 0 and never["accuracy"]["mean"] is None and never["iteration"]["median"] is None
    assert 0 < censored < 4 * 4 * 2


def quantile_of(values, q):
    """A linear quantile by hand; null where it falls on, or between, runs that never arrive."""
    at = q * (len(values) - 1)
    low, high = sorted(values)[int(at)], sorted(values)[int(np.ceil(at))]
    return None if np.isinf(high) else pytest.approx(low + (high - low) * (at - int(at)))


def test_the_study_says_where_it_comes_from(dspodfl, no_pictures):
    about = json.loads(dspodfl("run", "study.toml", "--out", "out", "--json").out)["study"]
    assert (about["iterations"], about["iterations_done"], about["complete"]) == (4, 4, True)
    assert about["wall_seconds"] > 0
    running = about["seconds"]["training"] + about["seconds"]["evaluation"]
    assert about["run_iterations_per_second"] == pytest.approx(2 * 4 / running)
    assert about["versions"]["dspodfl"] == version("dspodfl")
    assert about["versions"]["torch"] == version("torch")
    assert about["precision"] == "fp32"
    assert about["seeds"]["0"]["data"]["unused"] == 0
    assert about["seeds"]["0"]["clients"] == about["seeds"]["0"]["links"] == 4


@pytest.mark.parametrize("commit", ["0123abcd", None])
def test_the_study_says_which_commit_it_was_run_from_if_any(dspodfl, no_pictures, monkeypatch, commit):
    monkeypatch.setattr(sys.modules["dspodfl.study.provenance"], "_git", lambda *_: commit)
    assert json.loads(dspodfl("run", "study.toml", "--out", "out", "--json").out)["study"]["commit"] == commit


DIVERGING = changes(
    "data={name='ridge',samples=20,dimension=3}",
    "rates.sgd={law='constant',value=1e-6}",
    "train={iterations=60,learning_rate={kind='constant',value=50.0}}",
    "eval.every=10",
)
"""DGD steps far too far; DSpodFL's clients hardly ever step at all."""


def test_a_diverging_run_is_reported_and_the_others_go_on(dspodfl):
    answer = dspodfl("run", "study.toml", "--out", "out", "--seeds", 2, *DIVERGING)
    assert answer.code == 0
    assert re.search(r"^ DGD +– 0/2 .*\n   2 diverged +$", answer.out, re.MULTILINE)
    assert "DGD seeds 0 and 1 diverged from iteration 10 on\n" in answer.out
    assert re.search(r"^ DSpodFL +\d", answer.out, re.MULTILINE)
    assert "Warning" not in answer.err
    metrics = pd.read_parquet(dspodfl.folder / "out/metrics.parquet")
    bad, good = (metrics[metrics["algorithm"] == name] for name in ("dgd", "dspodfl"))
    assert bad.groupby("seed")["diverged"].agg(["first", "last"]).to_numpy().tolist() == [[False, True]] * 2
    assert bad.loc[bad["diverged"], ["loss", "optimality_error", "consensus_error"]].isna().all(axis=None)
    assert bad["iteration"].tolist() == good["iteration"].tolist()
    assert not good["diverged"].any() and np.isfinite(good["loss"]).all()

    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    found = json.loads((dspodfl.folder / "out/summary.json").read_text(), parse_constant=refuse)["algorithms"]
    assert (found["dgd"]["diverged"], found["dspodfl"]["diverged"]) == (2, 0)
    assert found["dgd"]["final_loss"]["mean"] is None
    assert found["dspodfl"]["final_loss"]["mean"] > 0


def test_a_run_whose_loss_is_beyond_floating_point_has_diverged_and_draws(dspodfl):
    words = [*DIVERGING, *changes("train.iterations=15", "eval.every=15")]
    answer = dspodfl("run", "study.toml", "--out", "out", *words)
    assert answer.code == 0 and "Warning" not in answer.err
    metrics = pd.read_parquet(dspodfl.folder / "out/metrics.parquet")
    last = metrics[metrics["algorithm"] == "dgd"].iloc[-1]
    assert last["diverged"] and np.isnan(last["loss"])
    assert re.search(r"^ DGD +– 0/1 .*\n   1 diverged +$", answer.out, re.MULTILINE)
    assert "DGD seed 0 diverged at iteration 15\n" in answer.out
    text = (dspodfl.folder / "out/summary.json").read_text()
    assert "Infinity" not in text and "NaN" not in text


def test_regression_is_compared_by_loss_and_distance_to_the_optimum(dspodfl, no_pictures):
    answer = dspodfl("run", "study.toml", "--out", "out", *changes("data={name='ridge'}"))
    assert "loss" in answer.out and "‖θ̄ − θ*‖²" in answer.out and "to 0.4" not in answer.out
    assert "ridge (own shards), linear" in answer.out


def test_a_long_table_is_not_cut_short_in_a_pipe(dspodfl, no_pictures):
    reached = [f"0.{n:02}" for n in range(1, 13)]
    words = changes(f"eval.targets=[{','.join(reached)},0.7,0.8]")
    out = dspodfl("run", "study.toml", "--out", "out", *words).out
    head = next(line.split() for line in out.splitlines() if line.startswith(" algorithm"))
    assert [word for word in head if word.startswith("0.")] == [f"{float(target):g}" for target in reached]
    assert "no run reaches 0.7 and 0.8\n" in out and "…" not in out


def test_a_terminal_that_cannot_show_greek_shows_something(dspodfl, monkeypatch):
    stdout = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    monkeypatch.setattr("sys.stdout", stdout)
    assert dspodfl("list").code == 0
    stdout.flush()
    assert b"D = ?mean 1/d?" in stdout.buffer.getvalue()


# --- Ctrl-C ---------------------------------------------------------------------------------------------------


def interrupted(folder, sign, *words):
    """Run a study in a process of its own and interrupt it as soon as a file appears."""
    command = [sys.executable, "-m", "dspodfl", "run", "study.toml", "--out", "out", *words]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=folder, env=ALONE, **pipes) as process:
        while not sign.exists() and process.poll() is None:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert "Traceback" not in err
    return process.returncode, out, err


def test_an_interrupted_study_is_written_as_far_as_it_was_measured(tmp_path):
    sign = tmp_path / "sign"
    (tmp_path / "study.toml").write_text(TINY_TOML.replace('"dgd"', '"spy:watch"'))
    (tmp_path / "spy.py").write_text(
        "from pathlib import Path\nfrom dspodfl.algorithms.schedules import dgd\n"
        "def watch(k, part, rates):\n"
        "    if k.min() >= 500: Path('sign').touch()\n"  # what came before has been measured
        "    return dgd(k, part, rates)\n"
    )
    code, out, err = interrupted(tmp_path, sign, *changes("train.iterations=1000000", "eval.every=100"))
    assert code == 130
    assert "interrupted after iteration" in err
    assert "DSpodFL" in out
    held = ["manifest.json", "metrics.parquet", "accuracies.safetensors", "state-000.safetensors"]
    assert listing(tmp_path / "out") == sorted([*ALWAYS, *(f"checkpoints/00000001/{name}" for name in held)])
    result = Result.load(tmp_path / "out")
    about = result.summary["study"]
    assert about["complete"] is False
    assert f"interrupted after iteration {about['interrupted_at']:,};" in err
    assert err.endswith("resume with: dspodfl run --resume out\n")
    assert 500 <= about["iterations_done"] < about["iterations"] == 1_000_000
    assert result.metrics["iteration"].max() == about["iterations_done"]
    assert result.metrics.groupby("algorithm").size().tolist() == [about["iterations_done"] // 100 + 1] * 2


def test_a_study_interrupted_while_it_is_set_up_writes_nothing(tmp_path):
    (tmp_path / "study.toml").write_text(TINY_TOML + '[model]\nfactory = "slow:network"\n')
    (tmp_path / "slow.py").write_text("import time\nopen('sign', 'w').close()\ntime.sleep(600)\n")
    code, out, err = interrupted(tmp_path, tmp_path / "sign")
    assert code == 130
    assert out == "" and err == "interrupted before anything was measured; nothing was written\n"
    assert not (tmp_path / "out").exists()


def test_an_interruption_while_writing_says_so(dspodfl, monkeypatch):
    def stop(*_, **__):
        raise Interrupted(2)

    monkeypatch.setattr(Result, "write", stop)
    answer = dspodfl("run", "study.toml", "--out", "out")
    assert answer.code == 130
    assert answer.err.splitlines()[-1] == "interrupted while writing out; resume with: dspodfl run --resume out"


def test_a_result_that_cannot_be_written_is_an_error_and_no_traceback(dspodfl, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Result, "save_setting", full)
    answer = dspodfl("run", "study.toml", "--quiet", "--out", "out")
    assert answer.code == 2
    full_disk = "([Errno 28] No space left on device)"
    assert answer.err == f"error: out: the first rows could not be written {full_disk}; there is no checkpoint yet\n"


def test_a_result_that_cannot_be_written_at_the_end_leaves_what_was_measured(dspodfl, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Result, "_save", full)
    answer = dspodfl("run", "study.toml", "--quiet", "--out", "out")
    assert answer.code == 2
    assert answer.err == "error: out: the result could not be written ([Errno 28] No space left on device)\n"
    assert Result.load(dspodfl.folder / "out").metrics["iteration"].max() == 4


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("run --seeds abc", "error: --seeds = 'abc': must be an integer"),
        ("run --seeds 1.5", "error: --seeds = '1.5': must be an integer"),
        ("reproduce all --seeds 0", "error: --seeds = 0: must be an integer of at least 1"),
        ("run --ranks 2 --max-restarts -1", "error: --max-restarts = -1: must be an integer of at least 0"),
        ("sweep x.toml --over a=1 --at-delay x", "error: --at-delay = 'x': must be a number"),
        ("run --bogus", "error: no such option"),
        ("sweep x.toml", "error: missing option '--over'; see "),
        ("nosuch", "error: no such command 'nosuch'"),
    ],
)
def test_a_command_line_that_cannot_be_understood_is_refused_in_one_line(words, says):
    command = [sys.executable, "-m", "dspodfl", *words.split()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and not done.stdout
    assert done.stderr.startswith(says) and done.stderr.count("\n") == 1
