"""A run that is interrupted, or dies, goes on from its folder as if nothing had happened."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from tests.edge import TINY_TOML, CommandLine, merged, on_the_cpu, tiny
from tests.ui.test_cli import ALONE, ALWAYS, changes, listing

from dspodfl import Config, InputError, Result, run
from dspodfl.errors.signals import Interrupted
from dspodfl.study.store import checkpoint
from dspodfl.study.store.checkpoint import FOLDER, CheckpointStore, load
from dspodfl.study.store.folder import Folder
from dspodfl.study.store.layout import METRICS_LOG
from dspodfl.study.store.lock import LOCK, Lock

SPY = """
import os, signal
from pathlib import Path
from dspodfl.algorithms.schedules import dgd

def watch(k, part, rates):
    if k.min() >= 500 and not Path("calm").exists():
        for name in Path("signals").read_text().split():
            os.kill(os.getpid(), getattr(signal, name))
    return dgd(k, part, rates)
"""
"""DGD, in whose third block of iterations signals come."""
STUDY = (
    TINY_TOML.replace('"dgd"', '"spy:watch"')
    .replace("iterations = 4", "iterations = 900")
    .replace("every = 2", "every = 150")
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of the study in one go."""
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        on_the_cpu(patch)
        patch.chdir(folder)
        patch.syspath_prepend(str(folder))
        patch.setattr(sys, "dont_write_bytecode", True)
        patch.setattr(Result, "draw", lambda *_: set())
        (folder / "spy.py").write_text(SPY)
        (folder / "calm").touch()
        (folder / "study.toml").write_text(STUDY)
        from dspodfl.config import load as config

        run(config(folder / "study.toml"), record_events=True).save(folder / "out")
        del sys.modules["spy"]
    return folder / "out"


@pytest.fixture
def dspodfl(monkeypatch, capsys, tmp_path):
    """The command line in a folder with the study, in which a SIGINT comes."""
    monkeypatch.setattr(Result, "draw", lambda *_: set())
    (tmp_path / "study.toml").write_text(STUDY)
    (tmp_path / "spy.py").write_text(SPY)
    (tmp_path / "signals").write_text("SIGINT")
    return CommandLine(monkeypatch, capsys, tmp_path)


def metrics(folder):
    return pd.read_parquet(folder / "metrics.parquet")


# --- Ctrl-C and SIGTERM ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_signal_puts_away_where_the_run_stands_and_resume_goes_on_to_the_same_bytes(name, code, dspodfl, whole):
    (dspodfl.folder / "signals").write_text(name)
    answer = dspodfl("run", "study.toml", "--out", "out", "--quiet", "--save-models", "--record-events")
    folder = dspodfl.folder / "out"
    about = json.loads((folder / "summary.json").read_text())["study"]
    assert answer.code == code
    where = f"interrupted after iteration {about['interrupted_at']}"
    assert answer.err == f"{where}; what was measured so far is in out; resume with: dspodfl run --resume out\n"
    assert (about["interrupted_at"], about["iterations_done"], about["complete"]) == (501, 450, False)
    assert metrics(folder)["iteration"].max() == 450
    assert load(CheckpointStore(folder).committed()[0]).iteration == about["interrupted_at"]
    assert not (folder / METRICS_LOG).exists() and not (folder / LOCK).exists()
    (dspodfl.folder / "calm").touch()
    answer = dspodfl("run", "--resume", "out", "--quiet")
    assert (answer.code, answer.out, answer.err) == (0, "", "")
    for file in ("metrics.parquet", "clients.parquet", "setting.npz"):
        assert (folder / file).read_bytes() == (whole / file).read_bytes()
    # As it was asked for: with models and events, though they were not asked for again.
    one, other = Result.load(folder), Result.load(whole)
    for key in other.stacked:
        assert all((value == one.stacked[key][part]).all() for part, value in other.stacked[key].items())
        assert np.array_equal(one.events[key][0].v, other.events[key][0].v)
        assert np.array_equal(one.events[key][0].v_hat, other.events[key][0].v_hat)
    assert one.summary["study"]["complete"] and one.summary["study"]["interrupted_at"] is None
    assert one.summary["study"]["wall_seconds"] > about["wall_seconds"]
    assert one.summary["algorithms"] == other.summary["algorithms"]
    assert not (folder / FOLDER).exists()


def test_the_second_signal_stops_at_once_and_spoils_nothing(dspodfl, whole):
    (dspodfl.folder / "signals").write_text("SIGINT SIGTERM")
    answer = dspodfl("run", "study.toml", "--out", "out", "--quiet", *changes("checkpoint.every_iterations=200"))
    assert answer.code == 143
    assert answer.err == "interrupted immediately; resume with: dspodfl run --resume out\n"
    folder = dspodfl.folder / "out"
    assert load(CheckpointStore(folder).committed()[0]).iteration == 400
    assert Result.load(folder).metrics["iteration"].max() == 450
    (dspodfl.folder / "calm").touch()
    assert dspodfl("run", "--resume", "out", "--quiet").code == 0
    assert metrics(folder).equals(metrics(whole))


def test_a_signal_that_comes_while_a_checkpoint_is_written_stops_at_once_and_leaves_the_one_before(
    dspodfl, whole, monkeypatch
):
    real = checkpoint.write

    def interrupting(path, content):
        if path.name == "manifest.json" and b'"iteration": 501' in content:
            signal.raise_signal(signal.SIGINT)
        real(path, content)

    monkeypatch.setattr(checkpoint, "write", interrupting)
    answer = dspodfl("run", "study.toml", "--out", "out", "--quiet", *changes("checkpoint.every_iterations=200"))
    assert (answer.code, answer.err) == (130, "interrupted immediately; resume with: dspodfl run --resume out\n")
    folder = dspodfl.folder / "out"
    assert [path.name for path in sorted((folder / FOLDER).iterdir())] == ["00000001", "00000002"]
    assert load(CheckpointStore(folder).committed()[0]).iteration == 400
    (dspodfl.folder / "calm").touch()
    assert dspodfl("run", "--resume", "out", "--quiet").code == 0
    assert metrics(folder).equals(metrics(whole))


def test_what_a_process_left_that_died_while_it_wrote_a_checkpoint_is_swept_away(stopped, whole):
    (newest,) = CheckpointStore(stopped.folder / "out").committed()
    half = shutil.copytree(newest, newest.with_name(".aside-00000002"))
    (half / "manifest.json").unlink()
    (half.with_name(".aside-00000007")).mkdir()
    (stopped.folder / "calm").unlink()
    assert stopped("run", "--resume", "out", "--quiet").code == 130
    assert sorted(path.name for path in newest.parent.iterdir()) == ["00000001", "00000002"]
    (stopped.folder / "calm").touch()
    assert stopped("run", "--resume", "out", "--quiet").code == 0
    assert metrics(stopped.folder / "out").equals(metrics(whole))


def test_a_run_can_be_interrupted_again_and_again(dspodfl, whole):
    spy = SPY.replace("k.min() >= 500 and not", "k.min() % 250 == 0 and k.min() and not")
    (dspodfl.folder / "spy.py").write_text(spy)
    assert dspodfl("run", "study.toml", "--out", "out", "--quiet").code == 130
    places = []
    while True:
        places.append(load(CheckpointStore(dspodfl.folder / "out").committed()[0]).iteration)
        if len(places) > 8:
            (dspodfl.folder / "calm").touch()
        answer = dspodfl("run", "--resume", "out", "--quiet")
        if answer.code == 0:
            break
        assert answer.code == 130
    assert places == sorted(set(places)) and len(places) > 2  # each got further
    assert metrics(dspodfl.folder / "out").equals(metrics(whole))


# --- kill -9 --------------------------------------------------------------------------------------------------


def killed(folder, *words):
    """A study in a process of its own that kills itself on its way."""
    (folder / "study.toml").write_text(STUDY)
    (folder / "spy.py").write_text(SPY)
    (folder / "signals").write_text("SIGKILL")
    command = [sys.executable, "-m", "dspodfl", "run", "study.toml", "--out", "out", "--quiet", *words]
    found = subprocess.run(command, cwd=folder, env=ALONE, capture_output=True, text=True, check=False)
    assert found.returncode == -signal.SIGKILL, found.stderr


def test_a_run_that_is_killed_is_readable_plottable_and_gone_on_with(dspodfl, whole, monkeypatch):
    monkeypatch.undo()  # the pictures are drawn
    monkeypatch.chdir(dspodfl.folder)
    on_the_cpu(monkeypatch)
    killed(dspodfl.folder, *changes("checkpoint.every_iterations=200"))
    folder = dspodfl.folder / "out"
    assert not (folder / "summary.json").exists() and (folder / METRICS_LOG).is_file()
    shown = dspodfl("show", "out")
    assert shown.code == 0
    assert "after 450 of 900 iterations" in shown.out
    last = "unfinished: it was last measured at iteration 450 of 900; its newest checkpoint is of iteration 400; "
    assert shown.out.endswith(f"{last}resume with: dspodfl run --resume out\n")
    for name in ("accuracy_vs_delay.png", "accuracy_vs_delay.svg", "network.png"):
        assert (folder / name).stat().st_size > 1000
    dead = Result.load(folder)
    expected = metrics(whole)
    assert dead.metrics.equals(expected[expected["iteration"] <= 450].reset_index(drop=True))
    (dspodfl.folder / "calm").touch()
    answer = dspodfl("run", "--resume", "out", "--quiet")
    assert (answer.code, answer.out, answer.err) == (0, "", "")
    assert metrics(folder).equals(expected)
    assert listing(folder) == ALWAYS


def test_a_run_that_is_killed_before_its_first_checkpoint_begins_anew_and_says_so(dspodfl, whole):
    killed(dspodfl.folder)
    (dspodfl.folder / "calm").touch()
    shown = dspodfl("show", "out")
    assert "no checkpoint was written yet; resume with: dspodfl run --resume out" in shown.out
    answer = dspodfl("run", "--resume", "out", "--json")
    assert answer.code == 0 and answer.err == "no checkpoint was written yet: starting from the beginning\n"
    assert metrics(dspodfl.folder / "out").equals(metrics(whole))


def test_what_was_measured_after_the_last_checkpoint_stays_readable_while_the_run_goes_on(dspodfl):
    killed(dspodfl.folder, *changes("checkpoint.every_iterations=200", "eval.every=50"))
    folder = dspodfl.folder / "out"
    before = Result.load(folder).metrics
    assert before["iteration"].max() == 500
    (dspodfl.folder / "spy.py").write_text(SPY.replace("500", "250").replace("getattr(signal, name)", "signal.SIGINT"))
    (dspodfl.folder / "signals").write_text("first second")  # at once, before anything is measured again
    assert dspodfl("run", "--resume", "out", "--quiet").code == 130
    assert Result.load(folder).metrics.equals(before)


# --- what is refused ------------------------------------------------------------------------------------------


@pytest.fixture
def stopped(dspodfl):
    """The command line beside a run that was interrupted."""
    assert dspodfl("run", "study.toml", "--out", "out", "--quiet").code == 130
    (dspodfl.folder / "calm").touch()
    return dspodfl


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--set", "train.iterations=1000"], "train.iterations = 1000: must be 900, as when the run in out began"),
        (["--seeds", "2"], "seeds = 2: must be 1, as when"),
        (["--algorithms", "dspodfl"], "algorithms = ['dspodfl']: must be ['dspodfl', 'spy:watch'], as when"),
        (["--set", "train.learning_rate.value=0.5"], "train.learning_rate.value = 0.5: must be 0.01, as when"),
        (["--set", "graph={kind='complete'}"], "graph.kind = 'complete': must be 'ring', as when"),
        (["--out", "elsewhere"], "--resume = 'out': must be given without --out and --overwrite"),
        (["--overwrite"], "--resume = 'out': must be given without --out and --overwrite"),
    ],
)
def test_a_changed_study_is_refused_and_its_key_named(words, says, stopped):
    before = stopped.written()
    answer = stopped("run", "--resume", "out", *words)
    assert answer.code == 2 and answer.out == ""
    assert says in answer.err and answer.err.count("\n") == 1
    assert stopped.written() == before


def test_a_configuration_that_was_edited_in_the_folder_is_refused(stopped):
    path = stopped.folder / "out/config.toml"
    path.write_text(path.read_text().replace("batch_size = 2", "batch_size = 3"))
    answer = stopped("run", "--resume", "out")
    assert answer.code == 2 and "train.batch_size = 3: must be 2, as when the run in out began" in answer.err


def test_a_configuration_that_is_gone_from_the_folder_is_asked_for_and_may_be_given(stopped, whole):
    (stopped.folder / "out/config.toml").unlink()
    answer = stopped("run", "--resume", "out")
    assert answer.code == 2 and "out: config.toml is missing; name the one that the run began with" in answer.err
    assert stopped("run", "study.toml", "--resume", "out", "--quiet").code == 0
    assert metrics(stopped.folder / "out").equals(metrics(whole))


def test_the_same_study_may_be_named_again_and_checkpoints_may_be_others(stopped, whole):
    words = ["--quiet", *changes("checkpoint={every_iterations=50,keep=1}")]
    assert stopped("run", "study.toml", "--resume", "out", *words).code == 0
    assert metrics(stopped.folder / "out").equals(metrics(whole))
    assert Result.load(stopped.folder / "out").config["checkpoint"]["every_iterations"] == 50


@pytest.mark.parametrize(
    ("folder", "says"),
    [
        ("nowhere", "--resume = 'nowhere': must be the folder of a run"),
        ("study.toml", "--resume = 'study.toml': must be the folder of a run"),
        ("empty", "empty: not the folder of a run (no config.toml in it)"),
    ],
)
def test_a_folder_without_a_run_is_refused(folder, says, dspodfl):
    (dspodfl.folder / "empty").mkdir()
    answer = dspodfl("run", "--resume", folder)
    assert answer.code == 2 and says in answer.err
    assert list((dspodfl.folder / "empty").iterdir()) == []


def test_a_run_that_is_complete_is_shown_again_and_nothing_is_run(dspodfl):
    (dspodfl.folder / "calm").touch()
    printed = dspodfl("run", "study.toml", "--out", "out").out
    before = dspodfl.written()
    answer = dspodfl("run", "--resume", "out")
    assert (answer.code, answer.out) == (0, printed)
    assert answer.err == "the run in out is complete; nothing is left to do\n"
    assert json.loads(dspodfl("run", "--resume", "out", "--json").out)["study"]["complete"]
    assert dspodfl.written() == before


def test_two_runs_do_not_write_to_one_folder(stopped):
    lock = Lock(stopped.folder / "out")
    lock.take()
    before = stopped.written()
    busy = f"must be a folder that no other run is writing to (process {os.getpid()} is)"
    for words in (["--resume", "out"], ["study.toml", "--out", "out", "--overwrite"]):
        answer = stopped("run", *words)
        assert answer.code == 2 and answer.err.count("\n") == 1 and busy in answer.err
    shown = stopped("show", "out")
    assert f"running: process {os.getpid()} is at it; it was last measured at iteration 450 of 900\n" in shown.out
    assert {k: v for k, v in stopped.written().items() if k in before} == before
    lock.release()
    assert stopped("run", "--resume", "out", "--quiet").code == 0


def test_a_damaged_checkpoint_is_said_on_the_command_line(stopped, whole):
    (newest,) = CheckpointStore(stopped.folder / "out").committed()
    shutil.copytree(newest, newest.with_name("00000002"))
    Folder(stopped.folder / "out").note(checkpoints=("00000001", "00000002"))
    (newest.with_name("00000002") / "state-000.safetensors").write_bytes(b"")
    answer = stopped("run", "--resume", "out", "--json")
    assert answer.code == 0
    said = r"out/checkpoints/00000002: state-000.safetensors is not what was written \(its SHA-256 differs\); resuming"
    assert re.fullmatch(rf"{said} from the one of iteration [\d,]+ instead\n", answer.err)
    assert metrics(stopped.folder / "out").equals(metrics(whole))


def test_damage_everywhere_is_an_error_on_the_command_line(stopped):
    for path in CheckpointStore(stopped.folder / "out").committed():
        (path / "manifest.json").write_text("{")
    before = stopped.written()
    answer = stopped("run", "--resume", "out")
    assert answer.code == 2 and "Traceback" not in answer.err
    assert "no whole checkpoint is left" in answer.err
    assert stopped.written() == before
    assert "no checkpoint was written yet (out/checkpoints/" in stopped("show", "out").out


def test_a_new_run_takes_the_place_of_an_unfinished_one_where_that_is_wanted(stopped):
    answer = stopped("run", "study.toml", "--out", "out", "--quiet")
    assert answer.code == 2 and "--overwrite" in answer.err
    assert CheckpointStore(stopped.folder / "out").committed()
    words = ["--out", "out", "--overwrite", "--quiet", *changes("seed=3", "train.iterations=150")]
    assert stopped("run", "study.toml", *words).code == 0
    assert set(metrics(stopped.folder / "out")["seed"]) == {3}
    assert listing(stopped.folder / "out") == [name for name in ALWAYS if not name.endswith(("png", "svg"))]


# --- from Python ----------------------------------------------------------------------------------------------


@pytest.fixture
def plainly(monkeypatch):
    on_the_cpu(monkeypatch)
    monkeypatch.setattr(Result, "draw", lambda *_: set())


LONGER = {"train": {"iterations": 40}, "eval": {"every": 5}}


def test_a_run_of_python_is_kept_in_a_folder_and_gone_on_with(plainly, tmp_path):
    config, folder = tiny(**LONGER), tmp_path / "out"
    expected = run(config)
    part = run(config, out=folder, callbacks=[lambda update: update.iteration == 15])
    assert part.metrics["iteration"].max() == 15 and not part.summary["study"]["complete"]
    again = run(resume=folder)
    assert again.metrics.equals(expected.metrics)
    assert Result.load(folder).metrics.equals(expected.metrics)
    assert run(resume=folder).metrics.equals(expected.metrics)  # complete: it is read
    with pytest.raises(InputError, match="folder that does not exist yet"):
        run(config, out=folder)
    assert run(config, out=folder, overwrite=True).metrics.equals(expected.metrics)


def test_a_changed_study_is_refused_from_python_too(plainly, tmp_path):
    run(tiny(**LONGER), out=tmp_path / "out", callbacks=[lambda update: True])
    with pytest.raises(InputError, match=r"eval.every = 6: must be 5, as when the run"):
        run(tiny(**merged(LONGER, {"eval": {"every": 6}})), resume=tmp_path / "out")
    with pytest.raises(InputError, match="a run that is resumed stays in its folder"):
        run(out=tmp_path / "new", resume=tmp_path / "out")


def test_ctrl_c_in_python_puts_away_where_the_run_stands_and_is_raised(plainly, tmp_path):
    def stop(update):
        if update.iteration == 10:
            signal.raise_signal(signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(Interrupted):
        run(tiny(**LONGER), out=tmp_path / "out", callbacks=[stop])
    assert signal.getsignal(signal.SIGINT) is before
    assert load(CheckpointStore(tmp_path / "out").committed()[0]).iteration == 10
    assert Result.load(tmp_path / "out").summary["study"]["interrupted_at"] == 10
    assert run(resume=tmp_path / "out").metrics.equals(run(tiny(**LONGER)).metrics)


def test_what_was_brought_in_python_is_brought_again(plainly, tmp_path):
    from dspodfl.algorithms.schedules import dgd

    random = np.random.default_rng(0)
    own = {
        "data": (random.normal(size=(60, 3)), np.arange(60) % 3, random.normal(size=(20, 3)), np.arange(20) % 3),
        "schedules": {"mine": lambda k, part, rates: dgd(k, part, rates)},
    }
    config = Config(
        seeds=1,
        clients={"count": 4},
        graph={"kind": "ring"},
        data={"partition": {"kind": "iid"}},
        train={"iterations": 40},
        eval={"every": 5},
    )
    expected = run(config, **own)
    run(config, out=tmp_path / "out", callbacks=[lambda update: update.iteration == 15], **own)
    assert run(resume=tmp_path / "out", **own).metrics.equals(expected.metrics)


def test_a_checkpoint_of_another_place_is_gone_on_with_and_said(plainly, tmp_path, monkeypatch):
    folder = tmp_path / "out"
    run(tiny(**LONGER), out=folder, callbacks=[lambda update: update.iteration == 15])
    monkeypatch.setattr(sys.modules["dspodfl.study.provenance"], "__version__", "9.9")
    said = r"of another place \(dspodfl \S+, here 9.9\): events are the same, models to rounding"
    with pytest.warns(UserWarning, match=said):
        assert run(resume=folder).metrics.equals(run(tiny(**LONGER)).metrics)


def test_a_run_that_nobody_waits_for_leaves_no_folder(plainly, tmp_path):
    with pytest.raises(InputError):
        run(tiny(data={"name": "npz", "path": str(tmp_path / "none")}), out=tmp_path / "some/where")
    assert not (tmp_path / "some").exists()
