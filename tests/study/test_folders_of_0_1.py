"""Folders of version 0.1 are still read: shown, verified, reported, and resumed."""

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest
from tests.edge import CommandLine

from dspodfl.study.store.folder import Folder
from dspodfl.study.store.layout import COMPLETE

OLD = Path(__file__).parents[1] / "data_0_1"
SWEEP = ("sweep", "study.toml", "--over", "train.batch_size=1,2", "--over", "clients.count=5,6", "-o", "sweep")


@pytest.fixture
def dspodfl(monkeypatch, capsys, tmp_path):
    """The command line in a copy of the folders."""
    shutil.copytree(OLD, tmp_path, dirs_exist_ok=True)
    return CommandLine(monkeypatch, capsys, tmp_path)


@pytest.mark.parametrize("folder", ["run", "sweep", "unfinished"])
def test_a_folder_is_shown_and_verified(folder, dspodfl):
    shown = dspodfl("show", folder)
    assert shown.code == 0 and "DSpodFL" in shown.out, shown.err
    found = dspodfl("verify", folder)
    assert found.code == 0 and "version 0.1" in found.out, found.err


def test_a_finished_run_is_reported_before_and_after_it_is_shown(dspodfl):
    for _ in range(2):
        answer = dspodfl("report", "run", "sweep", "-o", "page.html")
        assert (answer.code, answer.err) == (0, "")
        (dspodfl.folder / "page.html").unlink()
        assert dspodfl("show", "run").code == 0


def test_an_interrupted_run_is_reported_as_far_as_it_got(dspodfl):
    assert dspodfl("report", "unfinished", "-o", "page.html").code == 0
    assert "191,001" in (dspodfl.folder / "page.html").read_text()


def test_a_finished_run_is_not_replaced(dspodfl):
    for _ in range(2):
        answer = dspodfl("run", "study.toml", "-o", "run")
        assert answer.code == 2 and "--overwrite" in answer.err
        assert dspodfl("show", "run").code == 0


def test_the_present_code_computes_what_0_1_computed(dspodfl):
    assert dspodfl("run", "study.toml", "-o", "now", "--quiet").code == 0
    old, new = (pd.read_parquet(dspodfl.folder / name / "metrics.parquet") for name in ("run", "now"))
    pd.testing.assert_frame_equal(old, new[list(old.columns)], check_dtype=False, rtol=1e-6)


def test_a_sweep_finds_its_finished_cells(dspodfl):
    before = {file.name: file.read_bytes() for file in (dspodfl.folder / "sweep" / "cells").iterdir()}
    answer = dspodfl(*SWEEP)
    assert answer.code == 0 and "4 of 4 cells were finished before" in answer.err
    after = {file.name: file.read_bytes() for file in (dspodfl.folder / "sweep" / "cells").iterdir()}
    assert after == before
    old, new = (pd.read_csv(folder / "sweep" / "table.csv") for folder in (OLD, dspodfl.folder))
    shared = [name for name in old if name in new and name != "accuracy_std"]  # of a sample since, not of all seeds
    pd.testing.assert_frame_equal(new[shared], old[shared])


def test_an_unfinished_run_is_resumed_from_its_checkpoint(dspodfl):
    answer = dspodfl("run", "--resume", "unfinished")
    assert answer.code == 0, answer.err
    about = json.loads((dspodfl.folder / "unfinished" / "summary.json").read_text())["study"]
    assert about["complete"] and about["iterations_done"] == 200_000
    old, new = (pd.read_parquet(folder / "unfinished" / "metrics.parquet") for folder in (OLD, dspodfl.folder))
    shared = new.merge(old[["algorithm", "seed", "iteration"]])
    assert len(shared) == len(old) and len(new) == len(old) + 4
    assert shared["bytes"].tolist() == old["bytes"].tolist()
    assert dspodfl("verify", "unfinished").code == 0


def test_the_cells_that_reproductions_share_are_no_result_by_themselves(dspodfl):
    """`reproduce` writes a folder for each experiment and one for the cells of all; `show` takes the whole."""
    parent = dspodfl.folder / "reproduced"
    shutil.copytree(OLD / "sweep", parent / "fmnist-iid")
    shutil.copytree(OLD / "sweep" / "cells", parent / "cells")
    with Folder(parent / "cells", "cells").change(state=COMPLETE) as change:
        change.write("more.parquet", next((OLD / "sweep" / "cells").glob("*.parquet")).read_bytes())
    answer = dspodfl("show", "reproduced")
    assert answer.code == 0 and "DSpodFL" in answer.out and "cells" not in answer.err, answer.err
