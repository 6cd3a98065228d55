"""``dspodfl up``: all nodes of a study as processes; what it writes is what ``dspodfl run`` writes."""

import json
import os
import signal
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from tests.nodes.harness import World, config
from tests.nodes.processes import plain, until
from tests.study.test_collection import OF_MODELS

from dspodfl import Config, Result, run
from dspodfl.config import dumps
from dspodfl.nodes import StoredModels

TOLERANCE = 1e-5


class Up:
    """``dspodfl up`` of a study in a folder, as a process."""

    def __init__(self, farm, folder, study, *words):
        self.farm, self.folder, self.study = farm, folder, study
        self.out, self.errors = folder / "out", folder / "up.err"
        self.file = folder / "study.toml"
        self.file.write_text(dumps(study.model_dump(mode="json", exclude_unset=True)))
        self.words = words

    def start(self, *words):
        given = ["up", self.file, "--out", self.out, *self.words, *words]
        self.number = self.farm.start(given, self.errors)
        return self

    def wait(self):
        return self.farm.wait(self.number)

    @property
    def said(self):
        return self.errors.read_text() if self.errors.exists() else ""

    def pids(self):
        """Node -> the process that it had last."""
        found = {}
        for path in self.out.glob("nodes/*/events.jsonl"):
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            starts = [line["pid"] for line in lines if line["event"] == "listening"]
            if starts:
                found[int(path.parent.name)] = starts[-1]
        return found

    def reached(self, i, k, name="*"):
        assert self.farm.code(self.number) is None, self.said
        paths = sorted(self.out.glob(f"nodes/{i}/models/{name}.rows"))
        try:
            return bool(paths) and len(StoredModels.read(paths[0]).iterations) >= k
        except Exception:  # it is being written
            return False

    def assert_equal(self):
        """Models as in the plain loop, tables as those of the simulator."""
        resolved = World(self.study, self.folder)
        for number, one in enumerate(resolved.study.runs):
            wanted = plain(self.study, number)
            for i in range(one.clients):
                name = f"{one.algorithm}-seed{one.seed}.rows"
                stored = StoredModels.read(self.out / "nodes" / str(i) / "models" / name)
                every = self.study.eval.every
                assert stored.iterations == list(range(every, len(wanted) + 1, every))
                for k in stored.iterations:
                    assert torch.equal(torch.from_numpy(stored.at(k).model.copy()), wanted[k - 1][i]), (name, i, k)
        assert_as_simulated(self.study, Result.load(self.out))


def assert_as_simulated(study, found):
    """Events, delays and bytes exactly; what models are needed for to the tolerance of the engine."""
    simulated = run(study.model_copy(update={"nodes": None}), device="cpu")
    exact = [name for name in simulated.metrics if name not in OF_MODELS]
    pd.testing.assert_frame_equal(found.metrics[exact], simulated.metrics[exact], check_exact=True)
    for name in OF_MODELS:
        one, other = (np.asarray(r.metrics[name], dtype=float) for r in (found, simulated))
        step = 0.011 if name.startswith("accuracy") else 0.0  # a sample on the border may fall to either side
        np.testing.assert_allclose(one, other, rtol=TOLERANCE, atol=TOLERANCE + step, err_msg=name)
    of_models = [name for name in found.clients if found.clients[name].dtype.kind == "f"]
    one, other = (r.clients.drop(columns=["labels", *of_models]) for r in (found, simulated))
    pd.testing.assert_frame_equal(one, other, check_exact=True)
    for name in of_models:
        np.testing.assert_allclose(found.clients[name], simulated.clients[name], atol=0.011, err_msg=name)


@pytest.fixture(scope="module")
def several():
    return config(["dspodfl", "dgd", "gradient_tracking", "choco"], iterations=16, clients=3, seeds=2)


def test_several_algorithms_and_seeds_as_in_the_simulator(farm, several, tmp_path):
    up = Up(farm, tmp_path, several).start()
    assert up.wait() == 0, up.said
    up.assert_equal()
    for words in (["show", up.out], ["verify", up.out]):
        number = farm.start(words, tmp_path / "other.err")
        assert farm.wait(number) == 0, (tmp_path / "other.err").read_text()
    before = {path: path.stat().st_mtime_ns for path in up.out.glob("nodes/*/models/*")}
    assert up.start().wait() == 0, up.said
    assert {path: path.stat().st_mtime_ns for path in up.out.glob("nodes/*/models/*")} == before
    assert f"{up.out}/nodes: all nodes have finished; nothing is trained" in up.said


@pytest.fixture
def one():
    return config("dspodfl", iterations=400, clients=3, eval={"every": 4}, checkpoint={"every_iterations": 20})


def test_control_c_saves_and_the_same_command_resumes(farm, one, tmp_path):
    up = Up(farm, tmp_path, one).start()
    until(lambda: up.reached(0, 2))
    farm.signal(up.number, signal.SIGINT)
    assert up.wait() == 130, up.said
    assert up.said.splitlines()[-1] == f"interrupted; resume with the same command and --out {up.out}"
    assert all(not alive(pid) for pid in up.pids().values())
    assert up.start().wait() == 0, up.said
    resumed = (up.out / "nodes" / "0" / "events.jsonl").read_text()
    assert '"event": "resumed"' in resumed
    up.assert_equal()


def alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def test_nodes_that_die_are_started_again_but_not_for_ever(farm, one, tmp_path):
    up = Up(farm, tmp_path, one, "--max-restarts", 1).start()
    until(lambda: up.reached(1, 2))
    first = up.pids()[1]
    os.kill(first, signal.SIGKILL)
    second = until(lambda: up.pids().get(1) not in (None, first) and up.pids()[1])
    os.kill(second, signal.SIGKILL)
    assert up.wait() == 1, up.said
    assert up.said.splitlines()[-1] == "error: node 1 died 2 times, the last time by signal 9; --max-restarts 1"
    assert "node 1 died (signal 9); it is started again" in up.said
    assert all(not alive(pid) for pid in up.pids().values())
    assert up.start().wait() == 0, up.said
    up.assert_equal()


@pytest.mark.parametrize("early", [False, True])
def test_nothing_stays_behind_a_killed_up(early, farm, one, tmp_path):
    study = one.model_copy(update={"train": one.train.model_copy(update={"iterations": 3000})})
    up = Up(farm, tmp_path, study).start()
    until(lambda: len(up.pids()) == 3 if early else up.reached(0, 2))
    pids = up.pids()
    parents = {int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) for pid in pids.values()}
    assert len(parents) == 1
    farm.signal(up.number, signal.SIGKILL)
    assert up.wait() == -9
    until(lambda: not any(alive(pid) for pid in (*pids.values(), *parents)))


def test_divergence_is_marked_as_in_the_simulator(farm, tmp_path):
    rate = {"learning_rate": {"kind": "constant", "value": 1e30}}
    data = {"name": "ridge", "samples": 60, "test_samples": 20}
    tables = config("dgd", iterations=12, clients=3, train=rate).model_dump(exclude_unset=True)
    study = Config(**{**tables, "data": data, "model": {"name": "linear"}})
    up = Up(farm, tmp_path, study).start()
    code = up.wait()
    simulated = run(study, device="cpu")
    wanted = simulated.metrics[["algorithm", "seed", "iteration", "diverged"]]
    found = Result.load(up.out).metrics
    assert wanted["diverged"].any()
    pd.testing.assert_frame_equal(found[wanted.columns], wanted, check_exact=True)
    number = farm.start(["run", up.file, "--out", tmp_path / "run", "--device", "cpu"], tmp_path / "run.err")
    assert farm.wait(number) == code, up.said
    assert "diverged" in up.said


def test_started_twice_on_one_folder(farm, one, tmp_path):
    """The second finds the folder in use, and leaves the first alone."""
    up = Up(farm, tmp_path, one).start()
    until(lambda: up.reached(0, 2))
    number = farm.start(["up", up.file, "--out", up.out], tmp_path / "second.err")
    assert farm.wait(number) == 2
    assert "a folder that no other process uses now" in (tmp_path / "second.err").read_text()
    assert up.wait() == 0, up.said
    up.assert_equal()


def test_time_is_said(farm, one, tmp_path):
    began = time.monotonic()
    up = Up(farm, tmp_path, config("dspodfl", iterations=4, clients=3)).start()
    assert up.wait() == 0, up.said
    seconds = Result.load(up.out).summary["study"]["seconds"]["training"]
    assert 0 < seconds < time.monotonic() - began
