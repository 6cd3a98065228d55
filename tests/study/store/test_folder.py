"""The files of a folder: nothing is lost, and nothing is wrong in silence."""

import base64
import errno
import hashlib
import json
import os
import shutil
import zlib
from pathlib import Path

import pandas as pd
import pytest
from tests.edge import TINY_TOML, CommandLine, tiny
from tests.study.store.test_checkpoint import small_disk

from dspodfl import Config, DataError, InputError, Result, run
from dspodfl.experiments.result import Outcome
from dspodfl.study.store import files
from dspodfl.study.store.checkpoint import FOLDER, CheckpointStore
from dspodfl.study.store.folder import Folder
from dspodfl.study.store.layout import COMPLETE, INTERRUPTED, MANIFEST, METRICS_LOG
from dspodfl.study.store.lock import LOCK, Lock
from dspodfl.study.store.manifest import Manifest
from dspodfl.ui.cli.verify import verify

SWEEP = ("sweep", "study.toml", "--over", "train.batch_size=1,2", "--out", "swept", "--quiet")


@pytest.fixture
def dspodfl(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(Result, "draw", lambda *_: set())
    (tmp_path / "study.toml").write_text(TINY_TOML)
    return CommandLine(monkeypatch, capsys, tmp_path)


@pytest.fixture
def finished(dspodfl):
    """The command line next to a finished run with models and events."""
    assert dspodfl("run", "study.toml", "--out", "out", "--quiet", "--save-models", "--record-events").code == 0
    return dspodfl


def stopped(folder, at=2, **changes):
    """A run that was interrupted, with its checkpoint."""
    run(tiny(train={"iterations": 8}, **changes), out=folder, callbacks=[lambda update: update.iteration == at])
    return folder


def died(folder, **changes):
    """A run whose process was killed: a log of metrics and a checkpoint, and no result."""
    from dspodfl import Simulation
    from dspodfl.study.store.run_folder import RunFolder

    with RunFolder(folder, {"models": True, "record": True, "beside": ""}) as run_folder:
        config = tiny(train={"iterations": 8}, checkpoint={"every_iterations": 4}, **changes)
        simulation = Simulation(config, record_events=True)
        simulation.open(run_folder, lambda: False)
        for update in simulation:
            if update.iteration == 6:
                break
    return folder


def listing(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def flip(path, bit=None):
    content = bytearray(path.read_bytes())
    place = 8 * (len(content) // 2) if bit is None else bit
    content[place // 8] ^= 1 << place % 8
    path.write_bytes(bytes(content))


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


# --- a single file --------------------------------------------------------------------------------------------


def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "file"
    files.write(path, b"old")

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    for name in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(f"dspodfl.study.store.files.os.{name}", full)
            with pytest.raises(OSError, match="No space left"):
                files.write(path, b"new")
        assert listing(tmp_path) == ["file"] and path.read_bytes() == b"old"
    with pytest.raises(FileExistsError):
        files.write(path, b"new", new=True)
    files.write(path, b"new")
    assert path.read_bytes() == b"new"


def test_a_link_is_followed_and_what_is_no_file_is_refused(tmp_path):
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    files.write(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real").read_bytes() == b"new"
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path(os.devnull), tmp_path):
        with pytest.raises(OSError, match="not a regular file"):
            files.write(path, b"new")


def test_a_name_may_be_as_long_as_the_file_system_takes(dspodfl):
    name = "n" * 250 + ".toml"
    assert dspodfl("init", name).code == 0
    assert dspodfl("check", name).code == 0


def test_init_and_report_on_a_full_disk_leave_what_was_there(finished):
    finished("show", "out")
    with small_disk(finished.folder / "small", "64k"):
        page = finished.folder / "small/page.html"
        page.write_text("the old page")
        (finished.folder / "small/filling").write_bytes(b"x" * 60_000)
        for words in (["init", "small/new.toml"], ["report", "swept", "--out", "small/page.html"]):
            if words[0] == "report":
                assert finished(*SWEEP).code == 0
            answer = finished(*words)
            assert answer.code == 2 and "No space left on device" in answer.err and answer.err.count("\n") == 1
        assert listing(finished.folder / "small") == ["filling", "page.html"] and page.read_text() == "the old page"


# --- resuming never begins again over results -----------------------------------------------------------------


@pytest.mark.parametrize("damage", [cut, flip, lambda path: path.unlink(), lambda path: path.write_bytes(b"")])
@pytest.mark.parametrize("name", ["summary.json", "metrics.parquet", MANIFEST, "config.toml", "events.npz"])
def test_a_finished_run_that_is_damaged_is_left_as_it_is(finished, name, damage):
    folder = finished.folder / "out"
    damage(folder / name)
    before = finished.written()
    answer = finished("run", "--resume", "out")
    if name == MANIFEST and not (folder / name).exists():  # as of version 0.1: whole, as far as can be told
        assert answer.code == 0 and "complete" in answer.err
    else:
        assert answer.code == 2 and answer.err.startswith(f"error: out: {name}") and answer.err.count("\n") == 1
        assert finished("show", "out").code == 2
    assert finished.written() == before


@pytest.mark.parametrize("damage", [cut, flip, lambda path: path.unlink()])
def test_a_finished_run_of_0_1_whose_summary_is_damaged_is_left_as_it_is(finished, damage):
    (finished.folder / "out" / MANIFEST).unlink()
    path = finished.folder / "out/summary.json"
    flip(path, 8) if damage is flip else damage(path)
    before = finished.written()
    answer = finished("run", "--resume", "out")
    assert answer.code == 2 and answer.err.count("\n") == 1 and "Traceback" not in answer.err
    assert finished.written() == before


@pytest.mark.parametrize("content", ["a = 1\n", TINY_TOML, ""])
def test_a_folder_that_is_no_run_but_has_a_configuration_is_refused(dspodfl, content):
    folder = dspodfl.folder / "own"
    (folder / "models").mkdir(parents=True)
    for name, text in {"config.toml": content, "events.npz": "mine", "models/net-seed1.safetensors": "mine"}.items():
        (folder / name).write_text(text)
    before = dspodfl.written()
    for words in (["--resume", "own"], ["study.toml", "--resume", "own"]):
        answer = dspodfl("run", *words)
        assert answer.code == 2 and answer.err.startswith("error: own: ")
    assert dspodfl.written() == before


def test_an_interrupted_run_without_its_checkpoints_is_not_started_again(dspodfl):
    folder = stopped(dspodfl.folder / "out")
    shutil.rmtree(folder / FOLDER)
    before = dspodfl.written()
    answer = dspodfl("run", "--resume", "out")
    assert answer.code == 2 and "checkpoints are gone" in answer.err and "dspodfl show out" in answer.err
    assert dspodfl.written() == before
    (folder / MANIFEST).unlink()  # so it is in folders of version 0.1
    assert dspodfl("run", "--resume", "out").code == 2
    assert len(Result.load(folder).metrics) == 4


def test_a_run_that_died_without_a_checkpoint_keeps_its_rows_and_what_was_asked_for(dspodfl):
    folder = died(dspodfl.folder / "out")
    whole = run(tiny(train={"iterations": 8})).metrics
    shutil.rmtree(folder / FOLDER)
    assert dspodfl("run", "--resume", "out").code == 2
    Folder(folder).note(checkpoints=())  # none was written yet
    rows = Result.load(folder).metrics
    assert rows["iteration"].max() == 6
    answer = dspodfl("run", "--resume", "out", "--json")
    assert answer.code == 0 and answer.err == "no checkpoint was written yet: starting from the beginning\n"
    found = Result.load(folder)
    assert found.metrics.equals(whole) and found.stacked and found.events


def test_a_complete_run_is_compared_with_the_configuration_that_is_given(finished):
    before = finished.written()
    for words, says in (
        (
            ["study.toml", "--set", "train.iterations=5"],
            "train.iterations = 5: must be 4, as when the run in out",
        ),
        (["--set", "train.batch_size=3"], "train.batch_size = 3: must be 2"),
        (["--seeds", "2"], "seeds = 2: must be 1"),
        (["--algorithms", "dgd"], "algorithms = ['dgd']: must be ['dspodfl', 'dgd']"),
        (["--out", "elsewhere"], "must be given without --out and --overwrite"),
    ):
        answer = finished("run", *words, "--resume", "out")
        assert answer.code == 2 and says in answer.err
    for words in ([], ["study.toml"], ["--set", "checkpoint.keep=7"], ["--set", "scale.timeout=7.0"]):
        assert finished("run", *words, "--resume", "out").code == 0
    assert finished.written() == before
    with pytest.raises(InputError, match=r"seeds = 2: must be 1"):
        run(tiny(seeds=2), resume=finished.folder / "out")
    assert run(tiny(), resume=finished.folder / "out").summary["study"]["complete"]


# --- overwriting ----------------------------------------------------------------------------------------------

FOREIGN = {
    "checkpoints/best.pt": "mine",
    "checkpoints/1000/weights.bin": "mine",
    "checkpoints/00000001/notes.txt": "mine",
    "models/net-seed1.safetensors": "mine",
    "events.npz": "mine",
    "notes.txt": "mine",
    ".hidden": "mine",
    ".lock": "mine",
    ".summary.json.swp": "mine",
}


def place(folder, contents):
    for name, text in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


@pytest.mark.parametrize("before", ["nothing", "a run", "a run of 0.1", "a run that was interrupted"])
def test_overwriting_and_resuming_leave_files_of_others_alone(dspodfl, before):
    folder = dspodfl.folder / "out"
    if before == "a run that was interrupted":
        stopped(folder)
        (folder / "events.npz").unlink(missing_ok=True)
    elif before != "nothing":
        assert dspodfl("run", "study.toml", "--out", "out", "--quiet", "--save-models").code == 0
    if before == "a run of 0.1":
        (folder / MANIFEST).unlink()
    foreign = {name: text for name, text in FOREIGN.items() if not (folder / name).parent.name.startswith("0000")}
    foreign |= {} if before == "a run that was interrupted" else FOREIGN
    place(folder, foreign)
    words = ["run", "study.toml", "--out", "out", "--quiet", "--overwrite"]
    assert dspodfl(*words, "--set", "checkpoint.every_iterations=1").code == 0
    assert {name: (folder / name).read_text() for name in foreign} == foreign
    always = {"config.toml", "metrics.parquet", "clients.parquet", "setting.npz", "summary.json", MANIFEST}
    assert set(listing(folder)) == always | foreign.keys()
    assert Result.load(folder).stacked == {}
    answer = dspodfl("verify", "out")
    assert (
        answer.code == 0 and "not ours: .hidden, .lock, .summary.json.swp, events.npz, models/net-seed1" in answer.out
    )


@pytest.mark.parametrize(
    "name", ["config.toml", "metrics.parquet", "summary.json", "network.png", METRICS_LOG, MANIFEST]
)
@pytest.mark.parametrize("content", ["mine", '{"name": "an app", "icons": []}', "[project]\nname = 'x'\n"])
def test_a_foreign_file_whose_name_is_needed_is_refused_by_name(dspodfl, name, content):
    place(dspodfl.folder / "own", {name: content})
    before = dspodfl.written()
    answer = dspodfl("run", "study.toml", "--out", "own", "--overwrite")
    assert answer.code == 2 and answer.err.count("\n") == 1
    assert f"out = 'own': must be a folder without a foreign {name}" in answer.err
    assert dspodfl.written() == before


@pytest.mark.parametrize(("option", "name"), [("--record-events", "events.npz"), ("--save-models", "models")])
def test_what_an_option_writes_is_refused_before_anything_is_computed(dspodfl, option, name):
    place(dspodfl.folder / "own", {name: "mine"})
    answer = dspodfl("run", "study.toml", "--out", "own", "--overwrite", option)
    assert answer.code == 2 and f"a foreign {name}" in answer.err
    assert dspodfl("run", "study.toml", "--out", "own", "--overwrite", "--quiet").code == 0
    assert (dspodfl.folder / "own" / name).read_text() == "mine"


def test_a_foreign_model_whose_name_is_needed_is_refused_before_anything_is_computed(dspodfl):
    foreign = {"models/dgd-seed0.safetensors": "mine"}
    place(dspodfl.folder / "own", foreign)
    answer = dspodfl("run", "study.toml", "--out", "own", "--overwrite", "--save-models")
    assert answer.code == 2 and "a foreign dgd-seed0.safetensors" in answer.err
    assert listing(dspodfl.folder / "own") == [*foreign]
    words = ["run", "study.toml", "--out", "own", "--overwrite", "--save-models", "--quiet"]
    assert dspodfl(*words, "--set", "seed=4").code == 0  # it needs other names
    assert (dspodfl.folder / "own/models/dgd-seed0.safetensors").read_text() == "mine"
    assert set(Result.load(dspodfl.folder / "own").stacked) == {("dspodfl", 4), ("dgd", 4)}


def test_a_file_of_ours_that_was_replaced_by_another_is_not_overwritten(finished):
    path = finished.folder / "out/events.npz"
    path.write_text("mine")
    answer = finished("run", "study.toml", "--out", "out", "--overwrite", "--record-events")
    assert answer.code == 2 and "a foreign events.npz" in answer.err
    assert finished("run", "study.toml", "--out", "out", "--overwrite", "--quiet").code == 0
    assert path.read_text() == "mine"


def test_the_configuration_that_a_study_is_read_from_is_not_overwritten(dspodfl):
    place(dspodfl.folder / "out", {"config.toml": TINY_TOML})
    answer = dspodfl("run", "out/config.toml", "--out", "out", "--overwrite")
    assert answer.code == 2 and "a foreign config.toml" in answer.err


def test_what_is_overwritten_stays_until_something_is_measured(finished, monkeypatch):
    before = finished.written()
    monkeypatch.setattr("dspodfl.study.runner_wave.simulate", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run(tiny(seeds=2), out=finished.folder / "out", overwrite=True)
    assert finished.written() == before


# --- folders that a killed process has left -------------------------------------------------------------------


def test_a_new_folder_has_its_configuration_from_the_start(dspodfl):
    from dspodfl import Simulation
    from dspodfl.study.store.run_folder import RunFolder

    run_folder = RunFolder(dspodfl.folder / "out", {"models": True, "record": False, "beside": ""})
    Simulation(tiny()).open(run_folder, lambda: False)
    assert set(listing(dspodfl.folder / "out")) == {"config.toml", MANIFEST, LOCK}
    lock = run_folder._files._lock  # it dies: the system releases the lock, the file stays
    lock._held.release(force=True)
    lock._held = None
    shown = dspodfl("show", "out")
    assert shown.code == 2 and shown.err == (
        "error: out: nothing was measured yet; resume it with: dspodfl run --resume out\n"
    )
    assert dspodfl("verify", "out").code == 0
    assert dspodfl("run", "--resume", "out", "--quiet").code == 0
    assert Result.load(dspodfl.folder / "out").stacked  # as it was asked for
    assert LOCK not in listing(dspodfl.folder / "out")


def test_what_a_killed_process_has_left_is_cleaned_up_on_the_next_start(dspodfl):
    folder = died(dspodfl.folder / "out")
    left = [".metrics.parquet.x7k_2abq", ".dspodfl-0123abcd", ".metrics.journal.aside", "checkpoints/.aside-00000009/x"]
    place(folder, dict.fromkeys([*left, LOCK], ""))
    (folder / left.pop()).rename(folder / "checkpoints/.aside-00000009/state-000.safetensors")
    (dspodfl.folder / ".dspodfl-new-01234567").mkdir()
    lock = Lock(folder)
    lock.take()
    assert dspodfl("run", "--resume", "out").code == 2  # a live process is at it
    assert {*left} <= set(listing(folder))
    lock.release()
    assert dspodfl("run", "--resume", "out", "--quiet").code == 0
    assert not [name for name in listing(folder) if Path(name).name.startswith(".")] and not (folder / FOLDER).exists()
    assert dspodfl("run", "study.toml", "--out", "new", "--quiet").code == 0
    assert not (dspodfl.folder / ".dspodfl-new-01234567").exists()


def test_a_folder_with_nothing_but_a_dead_lock_is_taken_as_new(dspodfl):
    for number, name in enumerate([LOCK, ".lock"]):
        place(dspodfl.folder / f"out{number}", {name: "123", ".metrics.parquet.x7k_2abq": ""})
        assert dspodfl("run", "study.toml", "--out", f"out{number}", "--quiet").code == 0
        assert not [found for found in listing(dspodfl.folder / f"out{number}") if found.startswith(".")]
    place(dspodfl.folder / "other", {LOCK: "123", "file": ""})
    assert dspodfl("run", "study.toml", "--out", "other", "--quiet").code == 2


def test_what_a_complete_run_needs_no_more_is_deleted_when_it_is_noticed(finished):
    folder = finished.folder / "out"
    before = finished.written()
    id_ = Folder(folder).manifest().id
    other = died(finished.folder / "other")
    shutil.copytree(other / FOLDER, folder / FOLDER)
    (folder / METRICS_LOG).write_bytes((other / METRICS_LOG).read_bytes())
    Folder(other).note(id=id_)
    assert finished("run", "--resume", "out", "--quiet").code == 0  # of another run: not ours to delete
    assert (folder / METRICS_LOG).exists() and (folder / FOLDER).exists()
    from dspodfl.study.store.metrics_log import _line

    record = json.loads((folder / METRICS_LOG).read_text().splitlines()[0])
    record["header"]["id"] = id_
    del record["crc32"]
    (folder / METRICS_LOG).write_bytes(_line(record))
    Folder(folder).note(checkpoints=CheckpointStore(folder).files._inside(FOLDER) and ("00000001",))
    assert finished("run", "--resume", "out", "--quiet").code == 0
    assert not (folder / METRICS_LOG).exists() and not (folder / FOLDER).exists()
    shutil.rmtree(other)
    assert finished.written() == before


# --- damage ---------------------------------------------------------------------------------------------------


def test_every_file_of_a_finished_run_is_verified_and_damage_is_named(finished):
    folder = finished.folder / "out"
    assert finished("verify", "out").out == "out: run, 9 files, whole\n"
    for name in listing(folder):
        content = (folder / name).read_bytes()
        flip(folder / name)
        answer = finished("verify", "out")
        assert answer.code == 2 and answer.err.count("\n") == 1 and f"out: {name} " in answer.err, name
        with pytest.raises(DataError, match=name):
            Result.load(folder)
        assert finished("show", "out").code == 2
        (folder / name).write_bytes(content)
    assert finished("verify", "out").code == 0


def test_without_a_manifest_a_flipped_bit_of_a_table_is_found_or_changes_no_value(finished):
    """The pages of a table have checksums of their own."""
    folder = finished.folder / "out"
    (folder / MANIFEST).unlink()
    assert "no checksums to compare with (version 0.1)" in finished("verify", "out").out
    content, whole, found = (folder / "metrics.parquet").read_bytes(), Result.load(folder).metrics, 0
    for bit in range(8 * 4, 8 * 4500, 233):
        flip(folder / "metrics.parquet", bit)
        try:
            assert Result.load(folder).metrics.equals(whole), bit
        except DataError:
            found += 1
        (folder / "metrics.parquet").write_bytes(content)
    assert found > 50


def test_the_pictures_of_a_report_are_verified(dspodfl, monkeypatch):
    monkeypatch.undo()
    monkeypatch.chdir(dspodfl.folder)
    assert dspodfl("run", "study.toml", "--out", "out", "--quiet").code == 0
    assert dspodfl("report", "out").code == 0
    for name in ("network.png", "accuracy_vs_delay.svg", "summary.json", "config.toml"):
        content = (dspodfl.folder / "out" / name).read_bytes()
        flip(dspodfl.folder / "out" / name)
        answer = dspodfl("report", "out")
        if name in ("summary.json", "config.toml"):
            assert answer.code == 2 and f"{name} is damaged" in answer.err
        else:  # the page says so in its place, and does not show what is damaged
            page = (dspodfl.folder / "report.html").read_text(encoding="utf-8")
            assert answer.code == 0 and f"{name} is damaged" in page
            assert base64.b64encode((dspodfl.folder / "out" / name).read_bytes()).decode() not in page
        (dspodfl.folder / "out" / name).write_bytes(content)
    flip(dspodfl.folder / "out/network.png")
    assert dspodfl("verify", "out").code == 2
    assert dspodfl("show", "out").code == 0  # it is drawn again
    assert dspodfl("verify", "out").code == 0


@pytest.fixture
def swept(dspodfl):
    assert dspodfl(*SWEEP).code == 0
    return dspodfl


def test_every_file_of_a_sweep_and_its_cells_is_verified(swept):
    folder = swept.folder / "swept"
    answer = swept("verify", "swept")
    assert answer.code == 0
    assert answer.out == "swept: experiment, 7 files, whole\nswept/cells: cells, 3 files, whole\n"
    for name in listing(folder):
        content = (folder / name).read_bytes()
        flip(folder / name)
        answer = swept("verify", "swept")
        assert answer.code == 2 and Path(name).name in answer.err, name
        (folder / name).write_bytes(content)


def test_a_damaged_cell_or_table_of_a_sweep_is_not_read(swept):
    folder = swept.folder / "swept"
    for name in ("metrics.parquet", "table.csv", "result.json"):
        content = (folder / name).read_bytes()
        flip(folder / name)
        with pytest.raises(DataError, match=name):
            Outcome.load(folder)
        assert swept("report", "swept").code == 2
        (folder / name).write_bytes(content)
    cell = next((folder / "cells").glob("*.parquet"))
    flip(cell)
    answer = swept(*SWEEP)
    assert answer.code == 2 and cell.name in answer.err and "delete it, and the cell is run again" in answer.err
    cell.unlink()
    assert swept(*SWEEP).code == 0 and swept("verify", "swept").code == 0


def test_a_cell_says_what_it_is(swept):
    cell = next((swept.folder / "swept/cells").glob("*.parquet"))
    about = pd.read_parquet(cell).attrs["about"]
    assert (about["kind"], about["format"], about["digest"]) == ("cell", 1, cell.stem)
    assert Config(**about["config"]).train.batch_size in (1, 2)
    assert about["versions"]["torch"] and "commit" in about


def test_damaged_checkpoints_and_logs_are_named(tmp_path, monkeypatch):
    folder = died(tmp_path / "out")
    (found,) = verify(folder)
    assert not found.damage
    checkpoint = folder / "checkpoints/00000001"
    for path in (checkpoint / "state-000.safetensors", checkpoint / MANIFEST, folder / METRICS_LOG):
        content = path.read_bytes()
        flip(path)
        (found,) = verify(folder)
        assert len(found.damage) == 1 and ("00000001" in found.damage[0] or METRICS_LOG in found.damage[0])
        path.write_bytes(content)


def test_rows_that_a_damaged_log_has_lost_are_said_and_measured_again(dspodfl):
    folder = died(dspodfl.folder / "out")
    lines = (folder / METRICS_LOG).read_bytes().splitlines(keepends=True)
    lines[3:5] = [line.replace(b'"seed":0', b'"seed":1') for line in lines[3:5]]
    (folder / METRICS_LOG).write_bytes(b"".join(lines))
    said = f"out: {METRICS_LOG}: lines 4 to 5 damaged, 2 rows are lost (after iteration 0, before iteration 4)\n"
    shown = dspodfl("show", "out")
    assert shown.code == 0 and shown.err == said
    assert Result.load(folder).metrics["iteration"].unique().tolist() == [0, 4, 6]
    answer = dspodfl("run", "--resume", "out", "--json")
    assert answer.code == 0 and answer.err == said
    assert Result.load(folder).metrics.equals(run(tiny(train={"iterations": 8})).metrics)


def test_the_theory_says_so_too(dspodfl):
    ridge = TINY_TOML.replace('"synthetic"', '"ridge"').replace("test_samples = 20\nfeatures = 3\nclasses = 4", "")
    (dspodfl.folder / "ridge.toml").write_text(ridge.replace("samples = 60", "samples = 60\ndimension = 3"))
    from dspodfl.config import load

    run(load(dspodfl.folder / "ridge.toml"), out=dspodfl.folder / "out", callbacks=[lambda update: False])
    words = ("theory", "bound", "ridge.toml", "--compare", "out", "--algorithms", "dgd")
    assert dspodfl(*words, "--set", "checkpoint.keep=9", "--set", "scale.timeout=9.0").code == 0
    flip(dspodfl.folder / "out/metrics.parquet")
    assert dspodfl(*words).code == 2
    ridge = {"data": {"name": "ridge", "samples": 60, "dimension": 3}, "model": {"name": "linear"}}
    folder = died(dspodfl.folder / "died", **ridge)
    lines = (folder / METRICS_LOG).read_bytes().splitlines(keepends=True)
    (folder / METRICS_LOG).write_bytes(b"".join([*lines[:3], b"nonsense\n", b"\n", *lines[5:]]))
    answer = dspodfl("theory", "bound", "died/config.toml", "--compare", "died")
    assert (
        answer.code == 0
        and "lines 4 to 5 damaged, 2 rows are lost (after iteration 0, before iteration 4)" in answer.err
    )


@pytest.mark.parametrize("end", [b"", b'{"n":8,"algo'])
def test_half_a_line_at_the_end_is_no_damage(dspodfl, end):
    folder = died(dspodfl.folder / "out")
    content = (folder / METRICS_LOG).read_bytes()
    (folder / METRICS_LOG).write_bytes(content[:-30] if not end else content + end)
    assert dspodfl("show", "out").err == "" and dspodfl("verify", "out").code == 0
    assert dspodfl("run", "--resume", "out", "--quiet").err == ""


def test_a_log_whose_first_line_is_damaged_is_resumed_from_the_checkpoint(dspodfl):
    folder = died(dspodfl.folder / "out")
    flip(folder / METRICS_LOG, 80)
    answer = dspodfl("show", "out")
    assert answer.code == 2 and "line 1 damaged" in answer.err and "can be resumed" in answer.err
    assert dspodfl("run", "--resume", "out", "--quiet").code == 0
    assert Result.load(folder).metrics.equals(run(tiny(train={"iterations": 8})).metrics)


def as_version_0_1_wrote_it(folder):
    """Replace the log of metrics of a run by the one that version 0.1 would have written."""
    header, *rows = map(json.loads, (folder / METRICS_LOG).read_text().splitlines())
    columns = list(dict.fromkeys(key for key in rows[0] if key not in ("n", "study", "crc32")))
    records = [{"header": header["header"] | {"columns": columns}}]
    for n in range(0, len(rows), 2):  # two runs: an evaluation
        both = [[row[name] for name in columns] for row in rows[n : n + 2]]
        records.append({"n": n, "rows": both, **rows[n + 1]["study"]})
    texts = [json.dumps(record).encode() for record in records]
    lines = [text + b"\t%08x\n" % zlib.crc32(text) for text in texts]
    (folder / "metrics.journal").write_bytes(b"".join(lines))
    (folder / METRICS_LOG).unlink()
    return lines


def test_a_log_of_version_0_1_is_read_and_a_run_with_it_is_resumed(dspodfl):
    folder = died(dspodfl.folder / "out")
    before = Result.load(folder)
    as_version_0_1_wrote_it(folder)
    found = Result.load(folder)
    assert found.metrics.equals(before.metrics) and found.summary == before.summary
    assert dspodfl("show", "out").code == dspodfl("verify", "out").code == 0
    assert "not finished" in dspodfl("report", "out", "-o", "page.html").err
    answer = dspodfl("run", "--resume", "out", "--quiet")
    assert (answer.code, answer.err) == (0, "")
    assert Result.load(folder).metrics.equals(run(tiny(train={"iterations": 8})).metrics)
    assert not (folder / "metrics.journal").exists() and not (folder / METRICS_LOG).exists()


def test_rows_that_a_damaged_log_of_version_0_1_has_lost_are_said_and_measured_again(dspodfl):
    folder = died(dspodfl.folder / "out")
    lines = as_version_0_1_wrote_it(folder)
    (folder / "metrics.journal").write_bytes(b"".join([*lines[:2], lines[2][:40] + b"\n", *lines[3:]]))
    said = "out: metrics.journal: line 3 damaged, 2 rows are lost (after iteration 0, before iteration 4)\n"
    assert dspodfl("show", "out").err == said
    answer = dspodfl("run", "--resume", "out", "--quiet")
    assert (answer.code, answer.err) == (0, said)
    assert Result.load(folder).metrics.equals(run(tiny(train={"iterations": 8})).metrics)


def test_a_log_of_a_later_format_is_refused_in_one_line_and_stays_as_it_is(dspodfl):
    from dspodfl.study.store.metrics_log import _line

    folder = died(dspodfl.folder / "out")
    first, *rest = (folder / METRICS_LOG).read_bytes().splitlines(keepends=True)
    record = json.loads(first) | {"format": 2}
    del record["crc32"]
    (folder / METRICS_LOG).write_bytes(b"".join([_line(record), *rest]))
    before = listing(folder)
    for words in (["show", "out"], ["run", "--resume", "out", "--quiet"]):
        answer = dspodfl(*words)
        assert answer.code == 2 and answer.err.count("\n") == 1
        assert "metrics.jsonl: written by a later version of dspodfl (format 2, here 1)" in answer.err
    assert listing(folder) == before


def test_the_log_is_read_by_pandas(tmp_path):
    folder = died(tmp_path / "out")
    table = pd.read_json(folder / METRICS_LOG, lines=True).dropna(subset="algorithm")
    found = Result.load(folder).metrics
    assert table["iteration"].tolist() == sorted(found["iteration"])
    assert sorted(table["loss"]) == pytest.approx(sorted(found["loss"]), rel=1e-12)


# --- the manifest ---------------------------------------------------------------------------------------------


def test_every_flipped_bit_of_a_manifest_is_found(tmp_path):
    about = {"config": "é = 1", "options": {"models": True}}
    manifest = Manifest("run", COMPLETE, "1a", about, {"a": {"bytes": 1, "sha256": "00"}}, {}, {}, ("00000001",))
    content = manifest.serialized()
    assert Manifest.parse(content, tmp_path / MANIFEST) == manifest
    for bit in range(8 * len(content)):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DataError, match=MANIFEST):
            Manifest.parse(bytes(flipped), tmp_path / MANIFEST)


def test_a_manifest_of_a_later_version_is_refused(finished):
    path = finished.folder / "out" / MANIFEST
    path.write_text(path.read_text().replace('"format": 1', '"format": 2'))
    answer = finished("show", "out")
    assert answer.code == 2 and "written by a later version of dspodfl (format 2, here 1)" in answer.err


def test_a_change_that_is_cut_short_leaves_each_file_old_or_new(tmp_path, monkeypatch):
    files_ = Folder(tmp_path, "theory")
    with files_.change(state=COMPLETE) as change:
        change.write("result.json", b"old")
        change.write("table.csv", b"old")
    real, count = os.replace, [0]
    for last in range(4):
        count[0] = 0

        def dying(*given, last=last):
            count[0] += 1
            if count[0] > last:
                raise KeyboardInterrupt
            real(*given)

        def again(content=f"new {last}".encode()):
            with files_.change() as change:
                for name in ("result.json", "table.csv"):
                    change.write(name, content)

        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", dying)
            with pytest.raises(KeyboardInterrupt):
                again()
        manifest = files_.manifest()
        assert all(files_.problem(name, manifest) is None for name in manifest.names), last
        again()
        assert {(tmp_path / name).read_bytes() for name in ("result.json", "table.csv")} == {f"new {last}".encode()}
        assert files_.manifest().writing == {}


def test_a_folder_of_another_kind_is_refused_plainly(finished, swept):
    answer = finished("run", "--resume", "swept")
    assert answer.code == 2 and "not the folder of a run, but of kind 'experiment'" in answer.err
    answer = finished("show", "swept")  # which shows a folder of any kind
    assert answer.code == 0 and "swept" in answer.out and "batch size (samples per SGD step)" in answer.out
    assert finished("verify", "nowhere").code == 2 and finished("verify", ".").code == 0


def test_the_theory_s_folder_is_not_taken_for_a_sweep(dspodfl):
    answer = dspodfl("theory", "bound", "study.toml", "--out", "told", "--algorithms", "dgd")
    assert answer.code == 0
    record = json.loads((dspodfl.folder / "told/result.json").read_text())
    assert (record["kind"], record["format"]) == ("theory bound", 1)
    for manifest in (True, False):
        answer = dspodfl("report", "told")
        why = "a result of the theory, which has no section here"
        why += "" if manifest else "; its manifest.json is missing"
        assert answer.code == 2 and answer.err.endswith(f"told: {why}\n")
        answer = dspodfl("show", "told")
        assert answer.code == 0 and answer.out.startswith("theory bound: told\n")
        if manifest:
            assert dspodfl("verify", "told").out == "told: theory, 4 files, whole\n"
            (dspodfl.folder / "told" / MANIFEST).unlink()
    assert dspodfl("verify", "told").out.startswith("told: theory, 3 files, can be read, but have no checksums")
    (dspodfl.folder / "told/result.json").write_text(json.dumps(record | {"format": 2}))
    answer = dspodfl("show", "told")
    assert (
        answer.code == 2
        and answer.err.count("\n") == 1
        and "result.json is of kind 'theory bound', format 2" in answer.err
    )


# --- types, names, disks --------------------------------------------------------------------------------------


def wrong(key, value):
    def change(summary):
        *tables, last = key.split(".")
        table = summary
        for name in tables:
            table = table[name]
        table[last] = value

    return change


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("study", value) for value in (None, [], 1, "x", {})),
        *(("algorithms", value) for value in (None, [], 1, "x", {}, {"dgd": 1}, {"dgd": {}})),
        *(("study.wall_seconds", value) for value in (None, "1", [1])),
        *(("study.iterations", value) for value in ("4", 4.5, None, -1)),
        ("study.seeds", 3),
        ("study.complete", "yes"),
        ("study.device", 1),
        *(("algorithms.dgd.targets", value) for value in (None, {}, [1], [{}], "x")),
        *(("algorithms.dgd.final_accuracy", value) for value in (None, 0.5, {}, {"mean": "x", "std": 0})),
        ("algorithms.dgd.final_delay", {"delay_total": None}),
        ("algorithms.dgd.seeds", "1"),
        ("kind", "sweep"),
        ("format", "x"),
        ("format", 9),
    ],
)
def test_a_summary_of_wrong_types_is_refused_by_field(finished, key, value):
    folder = finished.folder / "out"
    (folder / MANIFEST).unlink()  # it would be found by its checksum
    summary = json.loads((folder / "summary.json").read_text())
    wrong(key, value)(summary)
    (folder / "summary.json").write_text(json.dumps(summary))
    for words in (["show", "out"], ["run", "--resume", "out"]):
        answer = finished(*words)
        assert answer.code == 2 and answer.err.count("\n") == 1 and "Traceback" not in answer.err
        assert "summary.json" in answer.err and (key.rpartition(".")[2] in answer.err or "kind" in answer.err)


@pytest.mark.parametrize(("key", "value"), [("about", 3), ("axes", "x"), ("verdicts", {}), ("title", 1), ("kind", [])])
def test_a_result_of_wrong_types_is_refused_by_field(swept, key, value):
    folder = swept.folder / "swept"
    (folder / MANIFEST).unlink()
    record = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps(record | {key: value}))
    answer = swept("report", "swept")
    assert answer.code == 2 and key in answer.err and answer.err.count("\n") == 1


def test_a_path_that_is_not_utf_8_is_refused_before_anything_is_written(dspodfl):
    name = os.fsdecode(b"out-\xff")
    for words in (
        ["run", "study.toml", "--out", name],
        ["sweep", "study.toml", "--over", "train.batch_size=1,2", "--out", name],
        ["theory", "bound", "study.toml", "--out", name],
        ["run", "--resume", name],
        ["show", name],
    ):
        answer = dspodfl(*words)
        assert answer.code == 2 and answer.err.count("\n") == 1, words
    assert listing(dspodfl.folder) == ["study.toml"]


def test_names_of_thousands_of_characters_are_one_line_and_exit_2(dspodfl):
    long = "x" * 5000
    for words in (
        ["run", "study.toml", "--out", long],
        ["run", "--resume", long],
        ["run", long],
        ["show", long],
        ["verify", long],
        ["init", long],
        ["report", long],
        ["report", "study.toml", "--out", long],
        ["sweep", "study.toml", "--over", "train.batch_size=1,2", "--out", long],
        ["theory", "bound", "study.toml", "--out", long],
        ["theory", "bound", "study.toml", "--compare", long],
    ):
        answer = dspodfl(*words)
        assert answer.code == 2 and answer.err.count("\n") == 1 and "Traceback" not in answer.err, words
    assert listing(dspodfl.folder) == ["study.toml"]


def test_an_algorithm_may_have_a_name_of_any_length(tmp_path, monkeypatch):
    from dspodfl.algorithms.schedules import dgd

    monkeypatch.setattr(Result, "draw", lambda *_: set())
    names = ["a" * 5000, "a" * 4999 + "b", "../../up", "ß" * 90]
    result = run(tiny(), schedules={name: lambda k, part, rates: dgd(k, part, rates) for name in names})
    result.save(tmp_path / "out")
    assert set(Result.load(tmp_path / "out").stacked) >= {(name, 0) for name in names}


def test_a_sweep_on_a_full_disk_is_one_line(dspodfl):
    with small_disk(dspodfl.folder / "small", "48k"):
        answer = dspodfl("sweep", "study.toml", "--over", "train.batch_size=1,2,3", "--out", "small/swept", "--quiet")
        assert answer.code == 2 and "could not be written ([Errno 28] No space left" in answer.err
        assert answer.err.count("\n") == 1
        assert not [name for name in listing(dspodfl.folder / "small") if "dspodfl-" in name]


def test_show_prints_what_it_can_where_nothing_can_be_written(finished, monkeypatch):
    def full(*_):
        raise OSError(errno.EROFS, "Read-only file system")

    printed = finished("show", "out").out
    monkeypatch.setattr(Result, "draw", full)
    answer = finished("show", "out")
    assert answer.code == 0 and answer.err == "the pictures were not drawn: Read-only file system\n"
    assert answer.out == "".join(line for line in printed.splitlines(keepends=True) if not line.startswith("picture"))


def test_a_foreign_picture_is_not_drawn_over(finished, monkeypatch):
    monkeypatch.undo()
    monkeypatch.chdir(finished.folder)
    place(finished.folder / "out", {"network.png": "mine"})
    answer = finished("show", "out")
    assert answer.code == 0 and "the pictures were not drawn" in answer.err and "a foreign network.png" in answer.err
    assert (finished.folder / "out/network.png").read_text() == "mine"


def test_a_run_of_very_many_rows_is_warned_of(dspodfl, monkeypatch):
    monkeypatch.setattr("dspodfl.study.store.rows.MANY", 5)
    answer = dspodfl("run", "study.toml", "--out", "out", "--json")
    assert answer.code == 0 and "about 6 rows will be measured" in answer.err and "eval.every" in answer.err


def test_an_interruption_says_nothing_was_written_only_where_it_is_so(dspodfl, monkeypatch):
    from dspodfl.errors.signals import Interrupted
    from dspodfl.study import simulation

    def stop(*_, **__):
        raise Interrupted(15)

    stopped(dspodfl.folder / "out")
    monkeypatch.setattr(simulation, "build", stop)
    answer = dspodfl("run", "study.toml", "--out", "new")
    assert answer.err == "interrupted before anything was measured; nothing was written\n"
    answer = dspodfl("run", "--resume", "out")
    before = "interrupted before anything was measured; out is as it was"
    assert answer.err == f"{before}; resume with: dspodfl run --resume out\n"
    answer = dspodfl("run", "study.toml", "--out", "out", "--overwrite")
    assert answer.err == f"{before}\n"
    assert Folder(dspodfl.folder / "out").manifest().state == INTERRUPTED


def test_a_folder_of_0_1_is_read_resumed_and_overwritten(dspodfl):
    folder = stopped(dspodfl.folder / "out")
    (folder / MANIFEST).unlink()
    assert CheckpointStore(folder).committed()
    assert dspodfl("show", "out").code == 0
    assert dspodfl("run", "--resume", "out", "--quiet").code == 0
    assert Result.load(folder).metrics.equals(run(tiny(train={"iterations": 8})).metrics)
    assert dspodfl("verify", "out").code == 0 and not (folder / FOLDER).exists()
    (folder / MANIFEST).unlink()
    assert dspodfl("run", "study.toml", "--out", "out", "--overwrite", "--quiet").code == 0
    assert dspodfl("verify", "out").code == 0 and not (folder / "models").exists()


def test_hashes_are_those_of_the_files(finished):
    folder = finished.folder / "out"
    manifest = json.loads((folder / MANIFEST).read_text())
    assert (manifest["kind"], manifest["format"], manifest["state"]) == ("run", 1, "complete")
    assert set(manifest["files"]) == set(listing(folder)) - {MANIFEST}
    for name, entry in manifest["files"].items():
        content = (folder / name).read_bytes()
        assert entry == {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
