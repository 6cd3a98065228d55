"""Several processes are one: on gloo, with two and three ranks, and in spite of signals."""

import os
import pickle
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from tests.edge import CommandLine
from tests.on_ranks import mixed_twice

from dspodfl import Config, InputError, Result
from dspodfl import run as run_alone
from dspodfl.config.toml import dumps
from dspodfl.engine import LocalTransport
from dspodfl.network import GRAPHS
from dspodfl.study.result import Key
from dspodfl.study.store.checkpoint import CheckpointStore
from dspodfl.study.store.run_folder import RunFolder
from dspodfl.ui.cli.options import Output
from dspodfl.ui.cli.run import RunOptions, _after_restart, _folder_state, launch_run

EXACT = ["algorithm", "seed", "iteration", "sgd_steps", "link_uses", "bytes", "diverged"]
EXACT += [f"delay_{part}{how}" for part in ("processing", "transmission", "total") for how in ("", "_normalized")]
ALL = ["dspodfl", "dgd", "rg", "sporadic_sgd", "dfedavg"]
BASE = {
    "seeds": 1,
    "algorithms": ["dspodfl"],
    "clients": {"count": 9},
    "graph": {"kind": "geometric", "radius": 0.6},
    "data": {"name": "synthetic", "samples": 120, "test_samples": 40, "features": 6, "partition": {"kind": "iid"}},
    "train": {"iterations": 12, "batch_size": 4, "learning_rate": {"kind": "constant", "value": 0.1}},
    "eval": {"every": 5},
}
CLIENTS, RUNS = {"scale": {"split": "clients"}}, {"scale": {"split": "runs"}}
OWN = {
    "regular": {"degree": 4},
    "small_world": {"rewire": 0.3},
    "erdos_renyi": {"p": 0.5},
    "geometric": {"radius": 0.6},
}


def merged(one, other):
    out = dict(one)
    for key, value in other.items():
        out[key] = merged(out[key], value) if isinstance(value, dict) and isinstance(out.get(key), dict) else value
    return out


def studies():
    """Name -> changes: every algorithm, graph, order, kind of model and split."""
    cases = {
        "all algorithms": CLIENTS | {"algorithms": ALL, "seeds": 2},
        "runs": RUNS | {"algorithms": ALL, "seeds": 2, "eval": {"every": 5, "at_delay": [9.0, 17.5]}},
        "delays": CLIENTS | {"algorithms": ["dspodfl", "rg"], "eval": {"every": 5, "at_delay": [9.0, 17.5]}},
        "gated": CLIENTS
        | {
            "algorithms": ["dspodfl", {"name": "ef_hc", "settings": {"r": 2.0}}],
            "train": {"iterations": 30, "until": {"delay": 60.0}, "precision": "fp64"},
            "eval": {"every": 5, "at_delay": [9.0, 17.5]},
        },
        "auto": {},
        "refresh": CLIENTS | {"rates": {"refresh": 4, "link_draw": "two_sided"}},
        "fp64": CLIENTS | {"train": {"precision": "fp64"}},
        "bf16": CLIENTS | {"train": {"precision": "bf16"}},
        "mlp": CLIENTS | {"model": {"name": "mlp", "hidden": [5]}, "algorithms": ["dspodfl", "dfedavg"]},
        "ridge": CLIENTS
        | {"data": {"name": "ridge", "samples": 20, "test_samples": 30, "dimension": 4}, "model": {"name": "linear"}},
        "lost": RUNS
        | {
            "seeds": 3,
            "model": {"name": "logistic", "l2": 1.0},
            "train": {"learning_rate": {"kind": "constant", "value": 1e30}},
        },
    }
    cases["lost clients"] = merged(cases["lost"], CLIENTS)
    for order in ("combine_then_adapt", "adapt_then_combine"):
        cases[order] = CLIENTS | {"train": {"order": order}}
    for kind in GRAPHS:
        cases[kind] = CLIENTS | {"graph": {"kind": kind} | OWN.get(kind, {}), "rates": {"seed": 3}}
    for dynamics in (
        {"kind": "switching", "graphs": [{"kind": "ring"}], "period": 3},
        {"kind": "bernoulli", "up": 0.5},
        {"kind": "markov", "up": 0.5, "down": 0.3},
        {"kind": "waypoint", "speed": [0.01, 0.1]},
    ):
        cases[dynamics["kind"]] = CLIENTS | {"graph": {"dynamics": dynamics}}
    images = {"name": "fmnist-mini", "partition": {"kind": "shared", "samples": 3}}
    cases["cnn"] = CLIENTS | {"model": {"name": "cnn", "channels": [2, 3]}, "data": images, "train": {"iterations": 4}}
    out = {}
    for name, changes in cases.items():
        base = BASE if changes.get("data", {}).get("name") is None else {k: v for k, v in BASE.items() if k != "data"}
        if changes.get("graph", {}).get("kind"):
            base = {k: v for k, v in base.items() if k != "graph"}
        out[name] = merged(base, changes)
    return out


def answered(ranks, cases, folder):
    """What ``tests.on_ranks`` finds on so many processes."""
    (folder / "cases").write_bytes(pickle.dumps(cases))
    words = [
        sys.executable,
        "-W",
        "error::UserWarning",
        "-c",
        LAUNCH,
        str(ranks),
        str(folder / "cases"),
        str(folder / "found"),
    ]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False, cwd=ROOT, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr[-4000:]
    return pickle.loads((folder / "found").read_bytes())


ROOT = Path(__file__).parents[2]
ENVIRONMENT = os.environ | {
    "PYTHONPATH": os.pathsep.join([str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
}
LAUNCH = """
import sys
from dspodfl.engine.transport.torch_distributed import launch
sys.exit(launch(int(sys.argv[1]), sys.argv[2:], module="tests.on_ranks"))
"""

SHORT = merged(BASE, {"algorithms": ["dspodfl", "dfedavg"], "train": {"iterations": 7}, "eval": {"every": 3}})


@pytest.mark.parametrize("ranks", [pytest.param(2, marks=pytest.mark.long), 3])
def test_several_ranks_are_one(ranks, tmp_path):
    """Everything that is asked of a team, by one team: to launch it takes longer than all it does."""
    found = ranks, tmp_path, answers_of(ranks, tmp_path)
    for name in studies():
        a_study_on_several_ranks_is_the_study_on_one(found, name)
    linear_models_on_the_cpu_are_the_same_to_the_bit_where_runs_are_divided(found)
    each_rank_holds_the_samples_of_its_own_clients_alone(found)
    the_traffic_expected_from_the_rates_is_sent(found)
    the_transport_does_what_it_says(found)
    a_rule_that_mixes_twice_is_the_rule_on_one(found)
    for split in ("clients", "runs"):
        a_run_resumed_at_any_iteration_on_as_many_ranks_is_the_same_to_the_bit(found, split)
        a_run_resumed_on_another_number_of_ranks_has_the_same_events(found, split)
    what_cannot_be_divided_is_refused_on_every_rank(found)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("split", ["clients", "runs"])
@pytest.mark.parametrize("model", ["svm", "mlp"])
def test_as_many_ranks_as_gpus_talk_by_nccl(model, split, tmp_path):
    """With one GPU that is a team of one: nothing crosses, but whatever is put together goes through NCCL."""
    ranks = torch.cuda.device_count()
    changes = merged(SHORT, {"seeds": ranks, "model": {"name": model}, "scale": {"split": split}})
    config = Config(**changes)
    (tmp_path / "study.toml").write_text(dumps(config.model_dump()))
    words = (
        f"--standalone --nproc-per-node={ranks} -m dspodfl run {tmp_path}/study.toml --out {tmp_path}/out --device cuda"
    )
    torchrun = [sys.executable, "-m", "torch.distributed.run", *words.split()]
    done = subprocess.run(torchrun, capture_output=True, text=True, timeout=300, check=False, cwd=ROOT, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr[-4000:]
    same_but_for_rounding(Result.load(tmp_path / "out").metrics, run_alone(config, device="cuda").metrics, 1e-3)


def answers_of(ranks, folder):
    cases = {name: ("run", {"changes": changes}) for name, changes in studies().items()}
    cases["talked"] = ("talked", {})
    cases["mixed twice"] = ("mixed_twice", {"changes": merged(SHORT, CLIENTS)})
    for split in ("clients", "runs"):
        changes = merged(SHORT, {"seeds": 2, "scale": {"split": split}})
        cases[f"resumed {split}"] = ("resumed", {"folder": str(folder / split), "changes": changes})
    cases["few runs"] = ("refused", {"changes": merged(BASE, RUNS)})
    cases["few clients"] = (
        "refused",
        {"changes": merged(BASE, CLIENTS | {"clients": {"count": 1}, "graph": {"allow_disconnected": True}})},
    )
    return answered(ranks, cases, folder)


def same_but_for_rounding(one: pd.DataFrame, other: pd.DataFrame, close=2e-5):
    assert one[EXACT].equals(other[EXACT])
    for name in set(one.columns) - set(EXACT):
        a, b = one[name].to_numpy(float), other[name].to_numpy(float)
        assert np.allclose(a, b, rtol=close, atol=close, equal_nan=True), name


def a_study_on_several_ranks_is_the_study_on_one(found, name):
    ranks, _, answers = found
    changes, answer = studies()[name], answers[name]
    alone = run_alone(Config(**changes), device="cpu", record_events=True)
    same_but_for_rounding(answer["metrics"], alone.metrics, 0.05 if name == "bf16" else 2e-5)
    assert answer["clients"].drop(columns="final_accuracy").equals(alone.clients.drop(columns="final_accuracy"))
    keys: list[Key] = list(alone.stacked)
    assert answer["models"].keys() == alone.stacked.keys()
    lost = alone.metrics.groupby("algorithm")["diverged"].any()
    for key in keys:
        for tensor, values in alone.stacked[key].items():
            close = 0.02 if name == "bf16" else 1e-12 if name == "fp64" else 5e-6
            if not lost[key[0]]:
                assert torch.allclose(answer["models"][key][tensor], values, rtol=close, atol=close), (key, tensor)
        events, _ = alone.events[key]
        if key in answer["events"]:
            assert np.array_equal(answer["events"][key][0], events.v)
            assert np.array_equal(answer["events"][key][1], events.v_hat)
    split = changes.get("scale", {}).get("split", "clients")
    about = answer["summary"]["study"]["scale"]
    assert (about["split"], about["ranks"]) == (split, ranks)
    assert sum(about[f"{split}_of_rank"]) == len(alone.stacked) * (9 if split == "clients" else 1)


def linear_models_on_the_cpu_are_the_same_to_the_bit_where_runs_are_divided(found):
    _, _, answers = found
    alone = run_alone(Config(**studies()["runs"]), device="cpu")
    for key, tensors in alone.stacked.items():
        assert all(torch.equal(answers["runs"]["models"][key][name], values) for name, values in tensors.items())


def each_rank_holds_the_samples_of_its_own_clients_alone(found):
    ranks, _, answers = found
    held = answers["auto"]["held"]  # of a partition that leaves 120 mod 9 samples out
    assert len(held) == ranks and sum(held) == 117 and max(held) < 117


def the_traffic_expected_from_the_rates_is_sent(found):
    _, _, answers = found
    about = [answers[name]["summary"]["study"]["scale"] for name in ("all algorithms", "refresh", "complete", "markov")]
    sent, expected = (sum(one[key] for one in about) for key in ("bytes_sent", "bytes_expected"))
    assert sent > 0
    assert abs(sent - expected) < 0.1 * expected  # so few iterations; 2% of many are in benchmarks


def the_transport_does_what_it_says(found):
    ranks, _, answers = found
    for rank, said in enumerate(answers["talked"]):
        others = [other for other in range(ranks) if other != rank]
        assert said["came"] == [None if other == rank else [[float(other)] * 3] * (1 + rank) for other in range(ranks)]
        assert said["sent"] == sum(4 * 3 * (1 + other) for other in others)
        assert said["all_reduce_sum"] == [ranks, sum(range(ranks))]
        assert said["all_gather"] == [[other] * (other + 1) for other in range(ranks)]
        assert (said["broadcast"], said["any"]) == (0, (True, False))
        assert said["bells"] == (False, True, False)


def a_rule_that_mixes_twice_is_the_rule_on_one(found):
    _, _, answers = found
    alone = mixed_twice(LocalTransport(), merged(SHORT, CLIENTS))
    same_but_for_rounding(answers["mixed twice"]["metrics"], alone["metrics"])
    for key, tensors in alone["models"].items():
        for name, values in tensors.items():
            assert torch.allclose(answers["mixed twice"]["models"][key][name], values, rtol=5e-6, atol=5e-6)


def a_run_resumed_at_any_iteration_on_as_many_ranks_is_the_same_to_the_bit(found, split):
    _, _, answers = found
    same = answers[f"resumed {split}"]["same"]
    assert [iteration for iteration, _, _ in same] == list(range(1, 7))
    assert all(metrics and models for _, metrics, models in same), same


def a_run_resumed_on_another_number_of_ranks_has_the_same_events(found, split):
    ranks, folder, answers = found
    newest = CheckpointStore(folder / split).committed()[0]
    files = sorted(path.name for path in newest.glob("state-*"))
    assert files == [f"state-{rank:04d}-000.safetensors" for rank in range(ranks)]
    with pytest.warns(UserWarning, match="another place"):
        alone = run_alone(resume=folder / split, device="cpu")
    same_but_for_rounding(alone.metrics, answers[f"resumed {split}"]["whole"]["metrics"])


def what_cannot_be_divided_is_refused_on_every_rank(found):
    ranks, _, answers = found
    assert (
        answers["few runs"] == [f"scale.split = 'runs': must be 'clients': there are 1 runs for {ranks} ranks"] * ranks
    )
    assert (
        answers["few clients"]
        == [f"ranks = {ranks}: must be at most 1, the number of clients of a run that is split"] * ranks
    )


# --- the command line, and signals ----------------------------------------------------------------------------

LONG = merged(
    BASE,
    {
        "clients": {"count": 12},
        "train": {"iterations": 6000},
        "eval": {"every": 500},
        "checkpoint": {"every_iterations": 100, "keep": 2},
        "scale": {"split": "clients", "timeout": 20.0},
    },
)


def write_toml(path, tables):
    """A configuration as a file."""
    from dspodfl.config import dumps

    path.write_text(dumps(Config(**tables).model_dump()))
    return path


def start(*words):
    """The command line in a process of its own."""
    command = [sys.executable, "-m", "dspodfl", "run", *map(str, words), "--device", "cpu", "--quiet"]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=ENVIRONMENT)


def ranks_of(launcher):
    """The processes that a launcher has started."""
    import psutil

    return [child for child in psutil.Process(launcher.pid).children() if "dspodfl" in " ".join(child.cmdline())]


def wait_for(condition, what, seconds=90):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what} did not come"
        time.sleep(0.02)


def assert_gone_on(out):
    """The run in a folder comes to its end in one process, with the events of a run that nothing happened to."""
    with pytest.warns(UserWarning, match="another place"):
        run_alone(resume=out, device="cpu")
    whole = run_alone(Config(**LONG), device="cpu").metrics
    found = Result.load(out).metrics
    assert found[EXACT].equals(whole[EXACT])
    assert np.allclose(found["accuracy"], whole["accuracy"], atol=0.05)  # rounding grows in so many iterations


def test_after_a_kill_the_others_stop_a_restart_goes_on_and_a_second_kill_is_said_plainly(tmp_path):
    config = write_toml(tmp_path / "long.toml", LONG)
    out = tmp_path / "out"
    run = start(config, "--ranks", 2, "--max-restarts", 1, "--out", out)
    wait_for(lambda: CheckpointStore(out).committed(), "the first checkpoint")
    before = ranks_of(run)
    before[1].kill()
    wait_for(lambda: not any(process.is_running() for process in before), "the end of the others")
    seen = CheckpointStore(out).newest_iteration()[0]
    assert seen is not None and seen < 6000
    wait_for(lambda: (CheckpointStore(out).newest_iteration()[0] or 0) > seen, "a checkpoint after the restart")
    ranks_of(run)[0].kill()
    _, said = run.communicate(timeout=60)
    assert run.returncode == 1, said
    assert (
        said.strip()
        .splitlines()[-1]
        .startswith(
            "error: rank 0 was killed (SIGKILL), and the others were stopped; resume with: dspodfl run --resume"
        )
    )
    assert "Traceback" not in said
    assert Result.load(out).summary["study"]["complete"] is False  # what a dead run has measured can be read
    assert_gone_on(out)


def test_sigterm_puts_away_where_all_ranks_stand_and_another_number_of_ranks_goes_on(tmp_path):
    config = write_toml(tmp_path / "long.toml", LONG)
    out = tmp_path / "out"
    run = start(config, "--ranks", 2, "--out", out)
    wait_for(lambda: CheckpointStore(out).committed(), "the first checkpoint")
    run.terminate()
    _, said = run.communicate(timeout=60)
    assert run.returncode == 143, said
    assert "interrupted after iteration" in said and "Traceback" not in said
    about = Result.load(out).summary["study"]
    assert about["complete"] is False and about["interrupted_at"] == CheckpointStore(out).newest_iteration()[0]
    assert_gone_on(out)


DIES_ONCE = """
import os
from torch import nn

def net(input_shape, outputs):
    if (os.environ.get("RANK"), os.environ.get("TORCHELASTIC_RESTART_COUNT")) == ("1", "0"):
        os._exit(1)
    return nn.Sequential(nn.Flatten(), nn.Linear(input_shape[0], outputs))
"""


@pytest.mark.parametrize("finished", [pytest.param(True, marks=pytest.mark.long), False])
def test_a_restart_before_the_first_rows_overwrites_the_old_run_and_does_not_resume_it(finished, tmp_path):
    out, old, new = tmp_path / "out", merged(BASE, {"seed": 7}), merged(BASE, CLIENTS)
    (tmp_path / "own_dies.py").write_text(DIES_ONCE)
    if finished:
        run_alone(Config(**old), out=out, device="cpu")
    else:
        run_alone(Config(**old), out=out, device="cpu", callbacks=[lambda update: update.iteration == 5])
    config = write_toml(tmp_path / "new.toml", merged(new, {"model": {"factory": "own_dies:net"}}))
    run = start(config, "--ranks", 2, "--max-restarts", 1, "--out", out, "--overwrite")
    _, said = run.communicate(timeout=120)
    assert run.returncode == 0, said
    found = Result.load(out)
    assert found.summary["study"]["complete"] and found.metrics["seed"].unique().tolist() == [0]
    assert found.metrics["iteration"].max() == 12


def test_a_restart_goes_on_with_its_own_run_alone_and_overwrites_only_what_it_may(tmp_path):
    asked = RunOptions(device="cpu", output=Output(tmp_path / "out", overwrite=True, quiet=True))
    assert _after_restart(asked, tmp_path / "out", _folder_state(tmp_path / "out", "mine")) == asked
    with RunFolder(tmp_path / "out", {"launch": "mine"}) as run_folder:
        run_folder.create(overwrite=False)
        assert (_folder_state(tmp_path / "out", "mine"), _folder_state(tmp_path / "out", "another")) == (
            "begun",
            "else",
        )
        resumed = _after_restart(asked, tmp_path / "out", "begun")
        assert (resumed.resume, resumed.output.out, resumed.output.overwrite) == (tmp_path / "out", None, False)
    careful = replace(asked, output=replace(asked.output, overwrite=False))
    assert _after_restart(careful, tmp_path / "out", "else") == careful
    assert _after_restart(careful, tmp_path / "out", "nothing").output.overwrite


def test_what_is_wrong_is_said_once_for_all_ranks(tmp_path):
    config = write_toml(tmp_path / "few.toml", merged(BASE, CLIENTS))
    run = start(
        config,
        "--ranks",
        2,
        "--set",
        "clients.count=1",
        "--set",
        "graph.allow_disconnected=true",
        "--out",
        tmp_path / "out",
    )
    _, said = run.communicate(timeout=60)
    assert run.returncode == 2, said
    assert said.strip() == "error: ranks = 2: must be at most 1, the number of clients of a run that is split"
    assert not (tmp_path / "out").exists()


def test_torch_distributed_is_known_in_one_module_alone():
    source = ROOT / "src" / "dspodfl"
    knows = [
        path.name
        for path in source.rglob("*.py")
        if "import torch.distributed" in (text := path.read_text()) or "from torch.distributed" in text
    ]
    assert knows == ["torch_distributed.py"]


def test_ranks_that_make_no_sense_are_refused(tmp_path, monkeypatch, capsys):
    line = CommandLine(monkeypatch, capsys, tmp_path)
    assert "ranks = 0: must be an integer of at least 1" in line("run", "--ranks", 0).err
    assert (
        "ranks = None: must be an integer of at least 1 where --max-restarts is given"
        in line("run", "--max-restarts", 2).err
    )
    assert "max-restarts = -1: must be an integer of at least 0" in line("run", "--ranks", 2, "--max-restarts", -1).err
    answer = line("run", "--ranks", 2, "--set", "clients.count=x")
    assert answer.code == 2 and "clients.count = 'x'" in answer.err  # before anything is launched
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match="a launcher has started this process"):
        launch_run(RunOptions(device="cpu", output=Output(quiet=True)), 2, 0)
