"""Checkpoints: a run that goes on from any of them is the run in one go, and a damaged one is found out."""

import json
import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tests.edge import merged, on_the_cpu, tiny
from tests.study.test_waves import in_waves
from torch import nn

from dspodfl import DataError, Result, Simulation, run
from dspodfl._kernels.cpu import linear as compiled
from dspodfl.algorithms.schedules import dspodfl as sporadic
from dspodfl.engine import state
from dspodfl.study.store import checkpoint
from dspodfl.study.store.checkpoint import FOLDER, MANIFEST, CheckpointStore, load
from dspodfl.study.store.resume import Unfinished
from dspodfl.study.store.run_folder import RunFolder

EVERYTHING = {
    "algorithms": ["dspodfl", "dgd", "rg", "sporadic_sgd", "dfedavg"],
    "seeds": 2,
    "train": {"iterations": 9},
    "eval": {"every": 4, "at_delay": [3.0, 9.0]},
}
EACH = {"checkpoint": {"every_iterations": 1, "keep": 1000}}


@pytest.fixture(autouse=True)
def plainly(monkeypatch):
    """On the CPU, and without pictures, which take most of the time."""
    on_the_cpu(monkeypatch)
    monkeypatch.setattr(Result, "draw", lambda *_: set())


def save_checkpoint(folder, changes, **more):
    """Run a study, putting away where it stands after each iteration; gives the checkpoints, the oldest first."""
    with RunFolder(folder, {}) as run_folder:
        simulation = Simulation(tiny(**merged(changes, EACH)), **more)
        simulation.open(run_folder, lambda: False)
        for _ in simulation:
            pass
    return CheckpointStore(folder).committed()[::-1]


def gone_on(folder, path, changes, **more):
    """Go on from one of the checkpoints."""
    found = load(path)
    with RunFolder(folder, {}) as run_folder:
        run_folder.reopen()
        simulation = Simulation(tiny(**changes), **more)
        simulation.open(run_folder, lambda: False, before=Unfinished(folder, found, found.about["config"], {}))
        for _ in simulation:
            pass
    return simulation.result()


def assert_same(one, other):
    assert one.metrics.equals(other.metrics)  # to the last bit
    assert one.clients.equals(other.clients)
    assert one.summary["algorithms"] == other.summary["algorithms"]
    assert one.stacked.keys() == other.stacked.keys() and one.events.keys() == other.events.keys()
    for key, tensors in one.stacked.items():
        for name, value in tensors.items():
            assert value.numpy().tobytes() == other.stacked[key][name].numpy().tobytes()
    for key, (events, _) in one.events.items():
        assert np.array_equal(events.v, other.events[key][0].v)
        assert np.array_equal(events.v_hat, other.events[key][0].v_hat)


def assert_any_is_gone_on_from(folder, changes, count=9, every=4, **more):
    """A study goes on to the last bit from each ``every``-th of its checkpoints, and from the last."""
    whole = run(tiny(**changes), **more)
    paths = save_checkpoint(folder, changes, **more)
    assert len(paths) == count  # after each iteration but the last, of every wave but the last
    for path in dict.fromkeys([*paths[::every], paths[-1]]):
        assert_same(gone_on(folder, path, changes, **more), whole)


# --- going on -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["svm", "logistic", "mlp"])
def test_a_study_goes_on_from_every_iteration_to_the_last_bit(model, tmp_path):
    changes = merged(EVERYTHING, {"model": {"name": model}})
    assert_any_is_gone_on_from(tmp_path / "out", changes, count=8, every=1, record_events=True)


@pytest.mark.parametrize("order", ["combine_then_adapt", "adapt_then_combine"])
def test_it_does_in_every_order_of_mixing_and_stepping(order, tmp_path):
    assert_any_is_gone_on_from(tmp_path / "out", merged(EVERYTHING, {"train": {"order": order}}), count=8)


def test_it_does_without_a_compiler(tmp_path, monkeypatch):
    monkeypatch.setattr(compiled, "available", lambda: False)
    assert_any_is_gone_on_from(tmp_path / "out", EVERYTHING, count=8)


def test_it_does_where_runs_diverge(tmp_path):
    changes = {
        "data": {"name": "ridge", "samples": 20, "dimension": 3},
        "train": {"iterations": 9, "learning_rate": {"kind": "constant", "value": 1e12}},
        "rates": {"sgd": {"law": "list", "values": [1e-6, 1e-6, 1e-6, 1e-6]}},
    }
    assert run(tiny(**changes)).metrics.groupby("algorithm")["diverged"].any().to_dict() == {
        "dgd": True,
        "dspodfl": False,
    }
    assert_any_is_gone_on_from(tmp_path / "out", changes, count=8)


def test_it_does_in_every_wave(tmp_path, monkeypatch):
    in_waves(monkeypatch, 3)
    assert_any_is_gone_on_from(tmp_path / "out", EVERYTHING, count=9 + 9 + 8, record_events=True)


def test_it_does_in_waves_that_another_memory_would_not_make(tmp_path, monkeypatch):
    """The plan is part of the checkpoint: what is free when a run goes on changes nothing."""
    with monkeypatch.context() as cramped:
        in_waves(cramped, 2)
        whole = run(tiny(**EVERYTHING))
        paths = save_checkpoint(tmp_path / "out", EVERYTHING)
    again = gone_on(tmp_path / "out", paths[11], EVERYTHING)
    assert_same(again, whole)
    assert again.summary["study"]["plan"]["waves"] == [5, 5]


def test_it_does_with_models_data_graphs_and_schedules_of_one_s_own(tmp_path):
    random = np.random.default_rng(0)
    own = {
        "model": lambda input_shape, outputs: nn.Linear(input_shape[0], outputs),
        "data": (random.normal(size=(60, 3)), np.arange(60) % 3, random.normal(size=(20, 3)), np.arange(20) % 3),
        "schedules": {"mine": lambda k, part, rates: sporadic(k, part, rates)},
    }
    changes = {"train": {"iterations": 4}, "data": {"name": "synthetic", "partition": {"kind": "iid"}}}
    assert_any_is_gone_on_from(tmp_path / "out", changes, count=3, **own)


def test_shards_are_cut_where_they_would_be_large(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "_MAX_NUMBERS_IN_A_SHARD", 100)
    monkeypatch.setattr(state, "MAX_ELEMENTS_PER_PIECE", 20)
    whole = run(tiny(**EVERYTHING))
    paths = save_checkpoint(tmp_path / "out", EVERYTHING)
    shards = sorted(path.name for path in paths[4].glob("state-*"))
    assert len(shards) > 5
    content = json.loads((paths[4] / MANIFEST).read_text())
    assert sum(n for name in shards for n in content["files"][name]["runs"].values()) == 10 * 4
    assert_same(gone_on(tmp_path / "out", paths[4], EVERYTHING), whole)


def test_finished_waves_are_linked_not_written_again(tmp_path, monkeypatch):
    in_waves(monkeypatch, 2)
    paths = save_checkpoint(tmp_path / "out", EVERYTHING)
    first, second = (path / "wave-000-000.safetensors" for path in paths[-2:])
    assert first.stat().st_ino == second.stat().st_ino


# --- what is kept ---------------------------------------------------------------------------------------------


def test_a_manifest_says_what_the_study_is_and_where_it_stands(tmp_path):
    path = save_checkpoint(tmp_path / "out", EVERYTHING)[3]
    content = json.loads((path / MANIFEST).read_text())
    assert content["iteration"] == 4
    assert content["config"]["train"]["iterations"] == 9
    assert content["versions"]["torch"] and content["device"].startswith("cpu")
    assert content["runs"][0] == ["dspodfl", 0]
    assert set(content["files"]) == {path.name for path in path.iterdir()} - {MANIFEST}
    assert all(len(entry["sha256"]) == 64 for entry in content["files"].values())
    assert content["files"]["state-000.safetensors"]["runs"] == {str(r): 4 for r in range(10)}
    assert load(path).metrics["iteration"].max() == 4


@pytest.mark.parametrize("keep", [1, 3])
def test_the_newest_are_kept_and_nothing_else(keep, tmp_path):
    changes = merged(EVERYTHING, {"checkpoint": {"every_iterations": 2, "keep": keep}})
    with RunFolder(tmp_path / "out", {}) as run_folder:
        simulation = Simulation(tiny(**changes))
        simulation.open(run_folder, lambda: False)
        for _ in simulation:
            pass
    found = [load(path).iteration for path in CheckpointStore(tmp_path / "out").committed()]
    assert found == [8, 6, 4, 2][:keep]
    assert len(list((tmp_path / "out" / FOLDER).iterdir())) == keep


# --- damage ---------------------------------------------------------------------------------------------------


def cut_short(path):
    path.write_bytes(path.read_bytes()[:-1])


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


def other_manifest(path):
    path.write_text(path.read_text().replace('"iterations": 9', '"iterations": 10'))


DAMAGE = {
    "a shard cut short": ("state-000.safetensors", cut_short, "SHA-256 differs"),
    "a bit of a shard": ("state-000.safetensors", flip, "SHA-256 differs"),
    "a missing shard": ("state-000.safetensors", lambda path: path.unlink(), "state-000.safetensors is missing"),
    "a bit of the metrics": ("metrics.parquet", flip, "SHA-256 differs"),
    "missing accuracies": ("accuracies.safetensors", lambda path: path.unlink(), "is missing"),
    "a manifest cut short": (MANIFEST, lambda path: path.write_text(path.read_text()[:100]), "cannot be read"),
    "an empty manifest": (MANIFEST, lambda path: path.write_bytes(b""), "cannot be read"),
    "a manifest of something else": (MANIFEST, lambda path: path.write_text("[1]"), "cannot be read"),
    "no manifest": (MANIFEST, lambda path: path.unlink(), "cannot be read"),
    "a manifest that says otherwise": (MANIFEST, other_manifest, "SHA-256 differs"),
}


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A folder with the checkpoints of iterations 6 and 8 of a run that did not end."""
    folder = tmp_path_factory.mktemp("stopped") / "out"
    with pytest.MonkeyPatch.context() as patch:
        on_the_cpu(patch)
        changes = merged(EVERYTHING, {"checkpoint": {"every_iterations": 2, "every_minutes": 0.0}})
        with RunFolder(folder, {}) as run_folder:
            simulation = Simulation(tiny(**changes))
            simulation.open(run_folder, lambda: simulation.progress.iteration == 8)
            for _ in simulation:
                pass
    return folder


@pytest.fixture
def folder(stopped, tmp_path):
    return shutil.copytree(stopped, tmp_path / "out")


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_checkpoint_is_said_and_the_one_before_it_is_gone_on_from(what, folder):
    name, damage, says = DAMAGE[what]
    newest, before = CheckpointStore(folder).committed()
    damage(newest / name)
    with pytest.warns(UserWarning, match="resuming from the one of iteration 6 instead") as heard:
        again = run(resume=folder)
    assert says in str(heard[0].message) and newest.name in str(heard[0].message)
    whole = run(tiny(**EVERYTHING))
    assert again.metrics.equals(whole.metrics)
    assert not before.exists()  # it is complete


@pytest.mark.parametrize("what", DAMAGE)
def test_where_all_are_damaged_nothing_is_touched(what, folder):
    name, damage, says = DAMAGE[what]
    for path in CheckpointStore(folder).committed():
        damage(path / name)
    left = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(DataError, match=f"(?s){says}.*no whole checkpoint is left"):
        run(resume=folder)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == left


def test_a_checkpoint_of_a_later_version_is_refused_and_not_passed_over(folder):
    path = CheckpointStore(folder).committed()[0] / MANIFEST
    path.write_text(path.read_text().replace('"format": 2', '"format": 4'))
    with pytest.raises(DataError, match=r"written by a later version of dspodfl \(format 4, here 3\)"):
        run(resume=folder)


def test_a_manifest_of_another_kind_is_not_a_checkpoint(folder):
    path = CheckpointStore(folder).committed()[0]
    content = checkpoint.manifest(path) | {"kind": "run"}
    (path / MANIFEST).write_bytes(checkpoint.signed(content))
    with pytest.raises(DataError, match="is of kind 'run', not of a checkpoint"):
        load(path)


def test_a_shard_without_some_of_its_clients_is_found_out(tmp_path):
    made = save_checkpoint(tmp_path / "out", EVERYTHING)[3]
    found = load(made)
    pieces = list(found.pieces())
    store = CheckpointStore(tmp_path / "again")
    temporary = store.temporary()
    parts = ("state-r0", pieces[:4]), ("state-r1", pieces[4:])
    entries = {k: v for name, some in parts for k, v in checkpoint.shards(temporary, name, some).items()}
    path = store.commit(temporary, found, entries)
    assert [piece.run for piece in load(path).pieces()] == list(range(10))  # shards of several writers are one
    temporary = store.temporary()
    half = checkpoint.shards(temporary, "state-r0", pieces) | checkpoint.shards(temporary, "state-r1", pieces[:1])
    with pytest.raises(DataError, match="run 0 does not have each of its 8 clients once"):
        load(store.commit(temporary, found, half))


# --- full and unwritable disks --------------------------------------------------------------------------------


def assert_goes_on(folder, changes):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Result, "draw", lambda *_: set())
        assert run(resume=folder).metrics.equals(run(tiny(**changes)).metrics)


@pytest.mark.parametrize("place", ["write", "sync"])
def test_a_disk_that_is_full_ends_the_run_and_leaves_the_last_checkpoint_whole(place, tmp_path, monkeypatch):
    """At any file of a checkpoint: what was there before is there afterwards, and nothing else."""
    changes = merged(EVERYTHING, {"checkpoint": {"every_iterations": 2, "keep": 1}})
    real = getattr(checkpoint, place)
    for fails in range(4 if place == "write" else 2):
        calls = []

        def full(*given, calls=calls, fails=fails):
            calls.append(given[0])
            if FOLDER in str(given[0]) and len(calls) > (4 if place == "write" else 2) + fails:
                raise OSError(28, "No space left on device")
            return real(*given)

        folder = tmp_path / f"{place}{fails}"
        with monkeypatch.context() as patch:
            patch.setattr(checkpoint, place, full)
            with pytest.raises(DataError, match=r"a checkpoint could not be written .*No space left on device"):
                run(tiny(**changes), out=folder)
        store = CheckpointStore(folder)
        assert [load(path).iteration for path in store.committed()] in ([2], [4, 2])  # the second may be there already
        assert not list(store.folder.glob(".*"))
        assert_goes_on(folder, changes)


@contextmanager
def largest_file(size):
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_file_that_cannot_grow_ends_the_run_and_leaves_it_readable(tmp_path):
    changes = merged(EVERYTHING, {"train": {"iterations": 90}, "eval": {"every": 1}})
    with (
        largest_file(30_000),
        pytest.raises(DataError, match=r"what was measured could not be written \(.*File too large"),
    ):
        run(tiny(**changes), out=tmp_path / "out")
    found = Result.load(tmp_path / "out")
    assert 1 <= found.summary["study"]["iterations_done"] < 90
    with pytest.warns(UserWarning, match="starting from the beginning"):
        assert_goes_on(tmp_path / "out", changes)


@contextmanager
def small_disk(folder, size):
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip("needs the right to mount a small disk")
    try:
        yield
    finally:
        subprocess.run(["umount", folder], check=True)


def test_a_real_disk_that_fills_up_leaves_the_last_checkpoint_whole(tmp_path):
    changes = merged(EVERYTHING, {"checkpoint": {"every_iterations": 1, "keep": 3}})
    with small_disk(tmp_path / "small", "160k"):
        folder = tmp_path / "small" / "out"
        with pytest.raises(DataError, match=r"could not be written .*No space left on device"):
            run(tiny(**changes), out=folder)
        whole = [load(path).iteration for path in CheckpointStore(folder).committed()]  # no more: their files stay open
        assert whole and not list((folder / FOLDER).glob(".*"))
        shutil.copytree(folder, tmp_path / "rescued")
    assert_goes_on(tmp_path / "rescued", changes)


def test_only_the_clients_that_are_asked_for_are_read(folder):
    """Shards are mapped from their files, so that ranks can share them."""
    found = load(CheckpointStore(folder).committed()[0])
    mapped = Path("/proc/self/maps").read_text()
    assert all(str(path) in mapped for path in CheckpointStore(folder).committed()[0].glob("state-*"))
    assert sum(len(piece.client) for piece in found.pieces())


def test_a_disk_that_is_read_only_is_an_error_that_says_so(folder, tmp_path):
    with small_disk(tmp_path / "small", "1m"):
        there = shutil.copytree(folder, tmp_path / "small" / "out")
        subprocess.run(["mount", "-o", "remount,ro", tmp_path / "small"], check=True)
        with pytest.raises(ValueError, match=r"--resume = .*must be a folder that can be written \(.*Read-only"):
            run(resume=there)
        with pytest.raises(ValueError, match=r"out = .*must be a folder that can be written \(.*Read-only"):
            run(tiny(), out=tmp_path / "small" / "new")


def test_checkpoints_that_were_removed_are_not_started_without(folder):
    """What was measured stays as it is, whether or not something else has the name."""
    shutil.rmtree(folder / FOLDER)
    for _ in range(2):
        left = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        with pytest.raises(DataError, match="its checkpoints are gone: it cannot be resumed"):
            run(resume=folder)
        assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == left
        (folder / FOLDER).write_text("a file")
    assert pd.notna(Result.load(folder).metrics["loss"]).all()


def test_checkpoints_that_cannot_be_a_folder_are_an_error(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / FOLDER).write_text("a file")
    with pytest.raises(ValueError, match=r"a folder without a foreign checkpoints"):
        run(tiny(), out=tmp_path / "out", overwrite=True)
    assert [path.name for path in (tmp_path / "out").iterdir()] == [FOLDER]


def test_rows_are_written_again_only_now_and_then(tmp_path):
    """Most of them are links to those of the checkpoint before."""
    changes = merged(EVERYTHING, {"train": {"iterations": 33}, "eval": {"every": 1}})
    paths = save_checkpoint(tmp_path / "out", changes)
    assert len(paths) == 32
    written = {path.stat().st_ino: len(pd.read_parquet(path)) for one in paths for path in one.glob("metrics*.parquet")}
    assert sum(written.values()) < 33 * 10 * 6  # instead of 33 · 10 · 16
    for path in paths:
        assert len(load(path).metrics) == 10 * (load(path).iteration + 1)
        assert len(list(path.glob("metrics*.parquet"))) <= 6
    assert gone_on(tmp_path / "out", paths[20], changes).metrics.equals(run(tiny(**changes)).metrics)
