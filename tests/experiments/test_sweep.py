"""Sweeps are sessions: they save checkpoints, are resumed inside a cell, and run on several ranks, to the same bits."""

import gc
import os
import signal
import subprocess
import sys
import weakref

import pandas as pd
import pytest
from tests.edge import TINY, TINY_TOML, CommandLine, merged, on_the_cpu
from tests.teams import together

from dspodfl import InputError
from dspodfl.config.grid import Axis, cells
from dspodfl.experiments import batches, sweep
from dspodfl.experiments.grid_folder import GridFolder
from dspodfl.experiments.sweep import Sweep
from dspodfl.study import session

LENGTHS = Axis.of("train.iterations", [4, 8, 12])
"""Cells that end one after the other."""
RATES = Axis.of("train.learning_rate.value", [0.01, 0.1])


@pytest.fixture(autouse=True)
def cpu(monkeypatch):
    on_the_cpu(monkeypatch)


@pytest.fixture
def dspodfl(monkeypatch, capsys, tmp_path):
    (tmp_path / "study.toml").write_text(TINY_TOML)
    return CommandLine(monkeypatch, capsys, tmp_path)


def grid(*axes, **changes):
    return cells(merged(TINY, changes), axes or (LENGTHS, RATES))


def tables(run):
    """The rows of every cell, without where and how fast they were computed."""
    found = {digest: table.copy() for digest, table in run._found.items()}
    for table in found.values():
        table.attrs = {}
    return found


def same(one, other, exact=True):
    """Compare the rows of cells, to the last bit; not exactly: to rounding."""
    assert one.keys() == other.keys()
    how = {"check_exact": True} if exact else {"rtol": 1e-6}
    for digest, table in one.items():
        pd.testing.assert_frame_equal(table, other[digest], **how)


def whole(found):
    run = Sweep(found, [])
    list(run)
    return tables(run)


def in_folder(found, folder, stop=None, **more):
    """Run a grid in a folder, as the command line does."""
    with GridFolder(folder) as files:
        run = Sweep(found, [], folder / "cells", folder=files, stop=stop, **more)
        run.prepare()
        files.claim({"cells": [cell.digest for cell in found]}, overwrite=False)
        list(run)
    return run


def after(calls):
    """Whether to stop: not before it was asked so often."""
    count = iter(range(10**9))
    return lambda: next(count) >= calls


@pytest.mark.parametrize("calls", [0, 3, 6, 9, 13, 20])
def test_a_sweep_that_was_stopped_is_resumed_to_the_same_bits(calls, tmp_path):
    found = grid()
    first = in_folder(found, tmp_path / "out", after(calls))
    kept = {path.name for path in (tmp_path / "out" / "cells").glob("*.parquet")}
    assert kept == {f"{cell.digest}.parquet" for cell in first.finished}
    if first.stopped:
        assert len(kept) < len(found)
    again = in_folder(found, tmp_path / "out")
    assert not again.stopped
    same(tables(again), whole(found))
    assert not (tmp_path / "out" / "checkpoints").exists()


def test_it_goes_on_where_it_was_and_not_from_the_beginning(tmp_path):
    found, ticks, before = grid(), [], []
    first = in_folder(found, tmp_path / "out", lambda: len(before) >= 6, tick=lambda done, of: before.append(done))
    assert first.stopped and 0 < len(first.finished) < len(found)
    again = in_folder(found, tmp_path / "out", tick=lambda done, of: ticks.append(done))
    assert again.notes[0].startswith("resuming 6 cells from their checkpoint of iteration ")
    at = int(again.notes[0].rsplit(" ", 1)[1])
    assert 4 <= at < 12 and ticks == list(range(at + 1, 13))


@pytest.mark.parametrize("waves", [False, True])
def test_a_sweep_that_died_is_resumed_from_its_last_checkpoint(waves, tmp_path, monkeypatch):
    found = grid(checkpoint={"every_iterations": 3})
    expected = whole(found)
    if waves:
        from tests.study.test_waves import in_waves

        in_waves(monkeypatch, 4)

    def dies(done, of):
        if done == 8:
            raise RuntimeError("a power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        in_folder(found, tmp_path / "out", tick=dies)
    again = in_folder(found, tmp_path / "out")
    assert again.notes == [f"resuming 6 cells from their checkpoint of iteration {3 if waves else 6}"]
    same(tables(again), expected)


def test_every_stack_of_cells_has_its_own_checkpoints(tmp_path, monkeypatch):
    monkeypatch.setitem(batches.FLOP_PER_BATCH, "cpu", 1.0)
    found = grid(checkpoint={"every_iterations": 2})
    dead = []

    def dies(done, of):
        if done == 4 + 4 + 8 + 5 and not dead:
            dead.append(done)
            raise RuntimeError("a power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        in_folder(found, tmp_path / "out", tick=dies)
    again = in_folder(found, tmp_path / "out", tick=dies)
    assert again.notes == ["resuming 1 cells from their checkpoint of iteration 4"]
    same(tables(again), whole(found))


def test_a_checkpoint_of_cells_that_are_not_in_the_grid_is_not_resumed_from(tmp_path):
    found = grid()
    assert in_folder(found, tmp_path / "out", after(9)).stopped
    other = grid(LENGTHS, seed=5)
    with GridFolder(tmp_path / "out") as files:
        run = Sweep(other, [], tmp_path / "out" / "cells", folder=files)
        run.prepare()
        files.claim({"cells": [cell.digest for cell in other]}, overwrite=True)
        list(run)
    assert run.notes == []
    same(tables(run), whole(other))
    assert not (tmp_path / "out" / "checkpoints").exists()


def test_a_damaged_checkpoint_is_said_and_its_cells_are_run_again(tmp_path):
    found = grid()
    assert in_folder(found, tmp_path / "out", after(9)).stopped
    (manifest,) = (tmp_path / "out" / "checkpoints").glob("*/manifest.json")
    manifest.write_bytes(manifest.read_bytes().replace(b'"iteration": ', b'"iteration": 1'))
    again = in_folder(found, tmp_path / "out")
    assert "manifest.json is not what was written" in again.notes[0]
    same(tables(again), whole(found))


def test_one_process_at_a_time_writes_to_a_grid_s_folder(tmp_path):
    content = {"cells": []}
    with GridFolder(tmp_path / "out") as files:
        files.claim(content, overwrite=False)
        with pytest.raises(InputError, match=rf"no other sweep or reproduction is writing to \(process {os.getpid()}"):
            GridFolder(tmp_path / "out").claim(content, overwrite=False)
    GridFolder(tmp_path / "out").claim(content, overwrite=False)


# --- ranks ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("split", ["runs", "clients"])
@pytest.mark.parametrize("ranks", [2, 3])
def test_cells_of_several_ranks_are_those_of_one_process(ranks, split, tmp_path):
    found = grid(scale={"split": split})

    def work(team):
        run = Sweep(found, [], tmp_path / "cells", team=team)
        list(run)
        return run

    runs = together(ranks, work)
    assert all(len(run.finished) == len(found) for run in runs)
    same(tables(runs[0]), whole(found), exact=split == "runs")
    assert len(list((tmp_path / "cells").glob("*.parquet"))) == len(found)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_rank_keeps_the_samples_of_its_own_clients_alone(ranks, monkeypatch):
    found = grid(LENGTHS, scale={"split": "clients"})
    whole, real = [], sweep.build

    def built(*given, **more):
        config, study = real(*given, **more)
        whole.extend(weakref.ref(setting.data.dataset) for setting in study.settings)
        return config, study

    monkeypatch.setattr(sweep, "build", built)

    def work(team):
        cells = iter(Sweep(found, [], team=team))
        next(cells)
        team.barrier()
        gc.collect()
        kept = sum(dataset() is not None for dataset in whole)
        team.barrier()
        list(cells)
        return kept

    held = together(ranks, work)
    assert len(whole) == ranks * sum(cell.config.seeds for cell in found)
    assert held == ([len(whole)] if ranks == 1 else [0, 0])


def on_ranks(ranks, found, folder, stop=lambda rank: None):
    def work(team):
        with GridFolder(folder) as files:
            run = Sweep(found, [], folder / "cells", folder=files, stop=stop(team.rank), team=team)
            run.prepare()
            if team.rank == 0:
                files.claim({"cells": [cell.digest for cell in found]}, overwrite=False)
            team.barrier()
            list(run)
            team.barrier()
        return run

    return together(ranks, work)


@pytest.mark.parametrize("later", [1, 2, 3])
@pytest.mark.parametrize("who", [0, 1])
def test_a_sweep_of_two_ranks_is_stopped_by_either_and_resumed_on_any_number(who, later, tmp_path):
    found = grid()
    stop = lambda rank: after(6) if rank == who else lambda: False  # noqa: E731
    runs = on_ranks(2, found, tmp_path / "out", stop)
    assert all(run.stopped for run in runs)
    again = on_ranks(later, found, tmp_path / "out")[0]
    assert "resuming 6 cells from their checkpoint" in again.notes[0]
    assert not again.stopped
    same(tables(again), whole(found))
    assert not (tmp_path / "out" / "checkpoints").exists()


def test_runs_that_cannot_be_split_are_refused_before_anything_runs():
    found = grid(Axis.of("seed", [0]), algorithms=["dgd"], scale={"split": "runs"})
    with pytest.raises(InputError, match="there are 1 runs for 2 ranks"):
        together(2, lambda team: Sweep(found, [], team=team).prepare())


# --- the command line -----------------------------------------------------------------------------------------

WORDS = (
    "sweep",
    "study.toml",
    "--over",
    "train.iterations=4,8",
    "--over",
    "train.learning_rate=0.01,0.1",
    "--out",
    "s",
)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_sweep_is_resumed_by_the_same_command(number, code, dspodfl, monkeypatch):
    assert dspodfl(*WORDS[:-1], "whole").code == 0
    real = session.StudyProgress.advance

    def interrupted(self, iteration, *more):
        if iteration == 5:
            signal.raise_signal(number)
        real(self, iteration, *more)

    with monkeypatch.context() as patched:
        patched.setattr(session.StudyProgress, "advance", interrupted)
        answer = dspodfl(*WORDS)
    assert answer.code == code
    assert "interrupted; 2 of 4 cells are finished and kept in s/cells: the same command resumes it" in answer.err
    assert list((dspodfl.folder / "s" / "checkpoints").iterdir())
    assert dspodfl("verify", "s").code == 0
    answer = dspodfl(*WORDS)
    assert answer.code == 0 and "resuming 4 cells from their checkpoint" in answer.err
    one, other = (pd.read_parquet(dspodfl.folder / name / "metrics.parquet") for name in ("s", "whole"))
    pd.testing.assert_frame_equal(one, other, check_exact=True)
    assert sorted(path.name for path in (dspodfl.folder / "s").iterdir()) == sorted(
        path.name for path in (dspodfl.folder / "whole").iterdir()
    )


def test_a_damaged_checkpoint_of_a_sweep_is_named_by_verify(dspodfl):
    assert in_folder(grid(), dspodfl.folder / "s", after(9)).stopped
    assert dspodfl("verify", "s").code == 0
    (shard,) = (dspodfl.folder / "s" / "checkpoints").glob("*/state-000.safetensors")
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    answer = dspodfl("verify", "s")
    assert answer.code == 2 and "state-000.safetensors is not what was written" in answer.err


def test_a_sweep_runs_on_processes(dspodfl, tmp_path):
    assert dspodfl(*WORDS[:-1], "one", "--device", "cpu").code == 0
    split = ("--ranks", "2", "--set", "scale.split='runs'")
    command = [sys.executable, "-m", "dspodfl", *WORDS[:-1], "two", "--device", "cpu", *split]
    answer = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert answer.returncode == 0, answer.stderr
    one, two = (pd.read_parquet(tmp_path / name / "metrics.parquet") for name in ("one", "two"))
    pd.testing.assert_frame_equal(one, two, check_exact=True)
    listings = [
        sorted(p.relative_to(tmp_path / name).as_posix() for p in (tmp_path / name).rglob("*"))
        for name in ("one", "two")
    ]
    assert listings[0] == listings[1]


def test_ranks_that_make_no_sense_are_refused(dspodfl):
    assert "ranks = 0: must be an integer of at least 1" in dspodfl(*WORDS, "--ranks", 0).err
    answer = dspodfl("reproduce", "fmnist-iid", "--quick", "--max-restarts", 1)
    assert (answer.code, "ranks = None" in answer.err) == (2, True)
