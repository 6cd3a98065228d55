"""The command show: it reads everything that the program wrote, at the cost that is asked for."""

import json

import numpy as np
import pandas as pd
import pytest
from tests.edge import TINY_TOML, CommandLine, on_the_cpu

from dspodfl import Result

RIDGE = """
seeds = 2
clients = { count = 4 }
graph = { kind = "ring" }
data = { name = "ridge", samples = 40, dimension = 3 }
train = { iterations = 6, learning_rate = { value = 0.001 } }
eval = { every = 2 }
"""


@pytest.fixture
def dspodfl(monkeypatch, capsys, tmp_path):
    on_the_cpu(monkeypatch)
    monkeypatch.setattr(Result, "draw", lambda *_: set())
    (tmp_path / "study.toml").write_text(TINY_TOML)
    (tmp_path / "ridge.toml").write_text(RIDGE)
    return CommandLine(monkeypatch, capsys, tmp_path)


def test_a_run_is_shown_at_a_cost(dspodfl):
    dspodfl("run", "study.toml", "--quiet", "--seeds", 2, "--out", "out")
    metrics = pd.read_parquet(dspodfl.folder / "out" / "metrics.parquet")
    for cost, head in (("iteration=2", "iteration 2"), ("delay=1", "delay 1"), ("normalized_delay=1", "delay 1"),
                       ("bytes=1", "1 B sent")):  # fmt: skip
        answer = dspodfl("show", "out", "--at", cost)
        assert answer.code == 0 and head in answer.out
    two = metrics[(metrics["iteration"] == 2) & (metrics["algorithm"] == "dspodfl")]["accuracy"]
    answer = dspodfl("show", "out", "--at", "iteration=2")
    assert f"{two.mean():.3f} ± {np.std(two, ddof=1):.3f}" in answer.out


def test_runs_that_do_not_reach_the_cost_are_counted_and_named(dspodfl):
    dspodfl("run", "study.toml", "--quiet", "--seeds", 2, "--out", "out")
    answer = dspodfl("show", "out", "--at", "delay=1e9")
    assert answer.code == 0 and "No run gets to delay 1.0e+09." in answer.out
    assert "– 0/2" in answer.out and "DSpodFL seeds 0 and 1 ended at delay " in answer.out


@pytest.mark.parametrize("cost", ["delay", "delay=0", "dealy=5", "delay=nan", "iteration=1.5", ""])
def test_a_cost_that_is_none_is_one_line_and_exit_2(dspodfl, cost):
    dspodfl("run", "study.toml", "--quiet", "--out", "out")
    answer = dspodfl("show", "out", "--at", cost)
    assert answer.code == 2 and answer.out == ""
    assert answer.err.startswith(f"error: --at = {cost!r}: must be KIND=VALUE") and answer.err.count("\n") == 1


def test_the_table_of_a_run_in_python_is_that_of_the_command(dspodfl):
    dspodfl("run", "study.toml", "--quiet", "--seeds", 2, "--out", "out")
    from dspodfl.analysis.comparison import compare, table

    result = Result.load(dspodfl.folder / "out")
    made = table(compare(result.metrics, result.config, result.summary["study"]), result.title, result.config)
    answer = dspodfl("show", "out")
    assert made.sentence and made.sentence in answer.out and made.caption in answer.out


def test_a_sweep_is_shown_as_it_was_printed(dspodfl):
    over = ("--over", "train.learning_rate.value=0.01,0.1", "--seeds", 2, "--out", "grid")
    printed = dspodfl("sweep", "study.toml", *over)
    answer = dspodfl("show", "grid")
    assert answer.code == 0 and answer.out == printed.out
    assert "Accuracy: mean ± std over 2 seeds, after 4 iterations." in answer.out
    assert answer.out.startswith("study over learning rate α\n") and "train." not in answer.out
    assert "first reaches 1." in dspodfl("show", "grid", "--at", "delay=1").out


def test_what_the_theory_wrote_is_shown(dspodfl):
    dspodfl("theory", "bound", "ridge.toml", "--out", "bound")
    dspodfl("theory", "sweep", "ridge.toml", "--over", "train.learning_rate.value=0.001,0.01", "--out", "grid")
    bound, grid = dspodfl("show", "bound"), dspodfl("show", "grid")
    assert bound.code == grid.code == 0
    assert "strongly convex" in bound.out and "ρ̃" in bound.out and "DSpodFL" in bound.out
    assert grid.out.startswith("theory: grid over learning rate α\n") and "train." not in grid.out
    assert "0.001" in grid.out
    refused = dspodfl("show", "bound", "--at", "delay=5")
    assert refused.code == 2 and "--at = 'delay 5'" in refused.err


def test_a_folder_of_several_is_shown_one_after_the_other(dspodfl):
    dspodfl("run", "study.toml", "--quiet", "--out", "all/a")
    dspodfl("sweep", "study.toml", "--quiet", "--over", "train.learning_rate.value=0.01,0.1", "--out", "all/b")
    (dspodfl.folder / "all" / "notes").mkdir()
    answer = dspodfl("show", "all")
    assert answer.code == 0
    assert "synthetic" in answer.out and "study over learning rate α\n" in answer.out
    (dspodfl.folder / "all" / "a" / "summary.json").write_text("{")
    damaged = dspodfl("show", "all")
    assert damaged.code == 2 and "study over learning rate α\n" in damaged.out
    assert damaged.err.startswith("error: all/a: ")


def test_a_sweep_that_is_not_finished_is_said_to_be(dspodfl):
    (dspodfl.folder / "grid").mkdir()
    (dspodfl.folder / "grid" / "grid.json").write_text("{}")
    answer = dspodfl("show", "grid")
    assert answer.code == 0 and "not finished" in answer.out


@pytest.mark.parametrize("name", ["empty", "nowhere", "study.toml"])
def test_a_folder_of_something_else_is_refused_with_what_is_looked_for(dspodfl, name):
    (dspodfl.folder / "empty").mkdir()
    answer = dspodfl("show", name)
    assert answer.code == 2 and answer.out == ""
    assert answer.err.startswith(
        f"error: directory = '{name}': must be a folder that dspodfl wrote: a run (summary.json"
    )


@pytest.mark.parametrize(
    "content", ["{", "[]", "{}", '{"guaranteed": true}', '{"rows": 5, "axes": ["a"]}', '{"rows": [], "axes": []}', "9"]
)
def test_a_damaged_result_is_one_line_and_exit_2(dspodfl, content):
    (dspodfl.folder / "bad").mkdir()
    (dspodfl.folder / "bad" / "result.json").write_text(content)
    answer = dspodfl("show", "bad")
    assert answer.code == 2 and answer.err.startswith("error: bad: ") and answer.err.count("\n") == 1


def test_a_summary_with_wrong_types_is_one_line_and_exit_2(dspodfl):
    dspodfl("run", "study.toml", "--quiet", "--out", "out")
    file = dspodfl.folder / "out" / "summary.json"
    whole = json.loads(file.read_text())
    for wrong in (5, None, "x", []):
        file.write_text(json.dumps(whole | {"study": wrong}))
        answer = dspodfl("show", "out")
        assert answer.code == 2 and answer.err.startswith("error: out: ")


def test_pictures_that_cannot_be_drawn_do_not_keep_the_table_from_being_printed(dspodfl, monkeypatch):
    dspodfl("run", "study.toml", "--quiet", "--out", "out")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Result, "draw", full)
    answer = dspodfl("show", "out")
    assert answer.code == 0 and "DSpodFL" in answer.out and "No space left on device" in answer.err


@pytest.mark.parametrize("name", ["result.json", "summary.json", "manifest.json", "grid.json"])
def test_json_that_nests_too_deep_is_one_line_that_names_the_folder(dspodfl, name):
    folder = dspodfl.folder / "odd"
    folder.mkdir()
    (folder / name).write_text("[" * 100_000)
    sweep = ("sweep", "study.toml", "--over", "train.batch_size=1,2", "--out", "odd")
    for words in (("show", "odd"), ("report", "odd"), ("verify", "odd"), sweep):
        answer = dspodfl(*words)
        if words[0] == "show" and name == "grid.json":  # what is in it is not read: it is not finished
            assert answer.code == 0
        else:
            assert answer.code == 2 and answer.err.count("\n") == 1 and "odd" in answer.err, words
