"""Grids: what is varied, the cells that it makes, and studies that run them stacked and keep what is finished."""

import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.edge import TINY, merged, on_the_cpu

from dspodfl import ConfigError, InputError, run
from dspodfl.analysis.metrics import METRICS
from dspodfl.config import Config
from dspodfl.config.grid import NUMBERS, Axis, Point, assign, cells
from dspodfl.errors import DataError
from dspodfl.experiments import batches
from dspodfl.experiments.grid_folder import GridFolder
from dspodfl.experiments.sweep import Sweep
from dspodfl.study import runner, session


def claim(folder, content, **how):
    """Claim the folder of a grid, and release it."""
    with GridFolder(folder) as files:
        files.claim(content, **how)


@pytest.fixture(autouse=True)
def cpu(monkeypatch):
    on_the_cpu(monkeypatch)


def grid(*axes, **changes):
    return cells(merged(TINY, changes), axes)


RATES = Axis.of("train.learning_rate.value", [0.01, 0.1, 0.5])
REFRESH = Axis.of("rates.refresh", [0, 2])


# --- axes and cells -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "name", "values"),
    [
        ("train.learning_rate.value=0.001,0.01", "train.learning_rate.value", [0.001, 0.01]),
        ("graph.kind=ring,complete", "graph.kind", ["ring", "complete"]),
        ("rates.refresh = 0, 1000", "rates.refresh", [0, 1000]),
        ('model.name="svm"', "model.name", ["svm"]),
        ('algorithms=["dgd"],[\'rg\', "dgd"]', "algorithms", [["dgd"], ["rg", "dgd"]]),
        ("graph.allow_disconnected=true,false", "graph.allow_disconnected", [True, False]),
    ],
)
def test_what_is_varied_is_read_from_the_command_line(text, name, values):
    axis = Axis.parse(text)
    assert axis.name == name
    assert [point.changes[name] for point in axis.points] == values


@pytest.mark.parametrize("text", ["", "a", "a=", "=1", "a=1,,2", "a=1,1", "a=[1", "a=nan,1", "a=x y"])
def test_what_cannot_be_varied_is_refused_by_name(text):
    with pytest.raises(ConfigError, match="--over"):
        Axis.parse(text)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=3))
def test_cells_are_all_combinations_the_last_axis_fastest(sizes):
    axes = [Axis(f"a{n}", tuple(Point(v, {"seed": v}) for v in range(size))) for n, size in enumerate(sizes)]
    found = [tuple(cell.point.values()) for cell in cells(TINY, axes)]
    assert found == list(np.ndindex(*sizes))


def test_every_key_of_an_axis_gets_the_value():
    (one, _) = grid(Axis.of("a", [0.5, 0.7], ["rates.sgd.a", "rates.sgd.b"]))
    assert (one.config.rates.sgd.a, one.config.rates.sgd.b, one.config.rates.link.a) == (0.5, 0.5, 0.5)


def test_a_cell_that_is_no_configuration_says_which_and_why():
    with pytest.raises(ConfigError, match=r"at train.iterations = -1: train.iterations"):
        grid(Axis.of("train.iterations", [4, -1]))
    with pytest.raises(ConfigError, match="varied once"):
        grid(REFRESH, REFRESH)
    with pytest.raises(ConfigError, match="is a value, not a table"):
        grid(Axis.of("seeds.value", [1]))


def test_the_base_stays_as_it_is():
    before = json.dumps(TINY)
    grid(RATES, REFRESH)
    assert json.dumps(TINY) == before


def test_cells_have_one_name_for_one_configuration():
    names = [cell.digest for cell in grid(RATES, REFRESH)]
    assert len(set(names)) == 6
    assert names == [cell.digest for cell in grid(RATES, REFRESH)]
    raw = dict(TINY)
    assign(raw := json.loads(json.dumps(raw)), "train.learning_rate.value", 0.01)
    assert cells(raw, [])[0].digest == names[0]


# --- sweeps ---------------------------------------------------------------------------------------------------


def test_a_stacked_sweep_has_the_rows_of_each_study_alone():
    axes = [Axis.of("clients.count", [4, 6]), Axis.of("rates.refresh", [0, 2])]
    found = Sweep(grid(*axes, eval={"every": 2, "at_delay": [3.0]}), ["clients.count", "rates.refresh"])
    list(found)
    metrics = found.metrics()
    assert list(metrics.columns) == ["clients.count", "rates.refresh", *METRICS]
    for cell in found.cells:
        mine = metrics
        for name, value in cell.point.items():
            mine = mine[mine[name] == value]
        alone = run(cell.config).metrics
        pd.testing.assert_frame_equal(mine[list(METRICS)].reset_index(drop=True), alone, rtol=1e-6)


def test_cells_of_one_kind_are_one_study(monkeypatch):
    seen = []
    real = session.measure
    monkeypatch.setattr(session, "measure", lambda s, *more: seen.append(len(s.runs)) or real(s, *more))
    list(Sweep(grid(RATES, REFRESH), []))
    assert seen == [6 * 2]  # two algorithms, one seed
    seen.clear()
    list(Sweep(grid(Axis.of("train.batch_size", [1, 2]), RATES), []))
    assert seen == [6, 6]  # batches of two sizes cannot be stacked


def test_datasets_are_held_once(monkeypatch):
    from dspodfl.problem.data import DATASETS

    loads = []
    entry = DATASETS["fmnist-mini"]
    monkeypatch.setattr(
        type(entry), "make", lambda self, *a, real=type(entry).make: loads.append(self.name) or real(self, *a)
    )
    list(Sweep(grid(REFRESH, data={"name": "fmnist-mini", "partition": {"kind": "iid"}}, train={"iterations": 1}), []))
    assert loads.count("fmnist-mini") == 1


def test_what_is_finished_is_not_run_again(tmp_path, monkeypatch):
    monkeypatch.setitem(batches.FLOP_PER_BATCH, "cpu", 1.0)  # every cell by itself
    first = Sweep(grid(RATES), ["train.learning_rate.value"], tmp_path)
    for cell in first:
        if cell.point["train.learning_rate.value"] == 0.1:
            break
    assert len(first.finished) == 2
    ran = []
    real = session.measure
    monkeypatch.setattr(
        session, "measure", lambda s, *more: ran.append(s.runs[0].learning_rate.value) or real(s, *more)
    )
    second = Sweep(grid(RATES), ["train.learning_rate.value"], tmp_path)
    assert len(second.finished) == 2
    assert [cell.point["train.learning_rate.value"] for cell in second] == [0.5]
    assert ran == [0.5]
    whole = Sweep(grid(RATES), ["train.learning_rate.value"])
    list(whole)
    pd.testing.assert_frame_equal(second.metrics(), whole.metrics())
    assert list(Sweep(grid(RATES), [], tmp_path)) == []


def test_a_cell_is_kept_as_soon_as_its_wave_is_done(monkeypatch, tmp_path):
    from dspodfl.study.waves import Plan

    found = grid(REFRESH, eval={"every": 4})
    monkeypatch.setattr(runner, "make_plan", lambda *a: Plan((), ([0, 1], [2, 3]), 1, 1, 1))
    running = iter(Sweep(found, [], tmp_path))
    assert next(running).point == {"rates.refresh": 0}
    assert len(list(tmp_path.glob("*.parquet"))) == 1


def test_a_damaged_cell_is_named(tmp_path):
    (cell,) = grid()
    (tmp_path / f"{cell.digest}.parquet").write_bytes(b"nothing")
    with pytest.raises(DataError, match="delete it"):
        Sweep([cell], [], tmp_path)


def test_progress_counts_what_is_left(monkeypatch):
    monkeypatch.setitem(batches.FLOP_PER_BATCH, "cpu", 1.0)
    heard = []
    list(Sweep(grid(RATES), [], tick=lambda done, whole: heard.append((done, whole))))
    assert heard == [(k, 12) for k in range(1, 13)]


def test_equal_cells_are_run_once(monkeypatch):
    twice = [*grid(RATES), *grid(RATES)]
    seen = []
    real = session.measure
    monkeypatch.setattr(session, "measure", lambda s, *more: seen.append(len(s.runs)) or real(s, *more))
    found = Sweep(twice, ["train.learning_rate.value"])
    list(found)
    assert seen == [6]
    assert len(found.finished) == 6


# --- folders --------------------------------------------------------------------------------------------------


def test_a_folder_is_taken_for_one_grid(tmp_path):
    claim(tmp_path / "a", {"cells": [1]}, overwrite=False)
    claim(tmp_path / "a", {"cells": [1]}, overwrite=False)  # gone on with
    with pytest.raises(InputError, match="same grid"):
        claim(tmp_path / "a", {"cells": [2]}, overwrite=False)
    claim(tmp_path / "a", {"cells": [2]}, overwrite=True)
    claim(tmp_path / "a", {"cells": [2]}, overwrite=False)
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="a file of that name"):
        claim(tmp_path / "file", {}, overwrite=True)


def test_a_grid_is_made_of_configurations():
    assert all(isinstance(cell.config, Config) for cell in grid(RATES))


# --- cells of another version ---------------------------------------------------------------------------------


def test_the_former_name_of_a_cell_is_the_one_that_version_0_1_gave_it():
    """Known answers, computed by 0.1.0."""
    rest = {"train": {"iterations": 4000, "until_delay": 5000.0}, "eval": {"every": 4000, "at_delay": [2500, 5000]}}
    ridge = {"seeds": 1, "data": {"name": "ridge"}, "graph": {"kind": "ring"}, "train": {"iterations": 40}}
    answers = {"14974cbcd1c58496": {"train": {"iterations": 2000}}, "7db1a5a256ea0fce": rest, "3ae4eb70a56ad38e": ridge}
    assert {cells(raw, [])[0].former_digest: raw for raw in answers.values()} == answers
    for new in ({}, {"train": {"until": {"bytes": 5.0}, "iterations": 9}}, {"train": {"until": {"delay": 5.0}}}):
        assert cells(new, [])[0].former_digest is None


def test_a_finished_cell_of_version_0_1_is_found_and_its_repeated_rows_are_left_out(tmp_path):
    changes = {"train": {"iterations": 9, "until_delay": 12.0}, "eval": {"every": 1}}
    (cell,) = grid(**changes)
    run = Sweep([cell], [])
    list(run)
    metrics = run.metrics()
    resting = []
    for _, rows in metrics.groupby(["algorithm", "seed"], sort=False):
        last = rows.iloc[-1:]
        resting += [rows, *(last.assign(iteration=k) for k in range(int(last["iteration"].iloc[0]) + 1, 10))]
    pd.concat(resting, ignore_index=True).to_parquet(tmp_path / f"{cell.former_digest}.parquet", index=False)
    again = Sweep([cell], [], tmp_path)
    assert again.finished == [cell]
    pd.testing.assert_frame_equal(again.metrics(), metrics)


def test_cells_of_other_numbers_are_run_again(tmp_path, monkeypatch):
    (cell,) = grid()
    list(Sweep([cell], [], tmp_path))
    assert Sweep([cell], [], tmp_path).finished
    monkeypatch.setattr("dspodfl.config.grid.NUMBERS", 2)
    (same,) = grid()
    assert not Sweep([same], [], tmp_path).finished and same.former_digest is None


def test_a_key_that_is_new_and_at_its_default_does_not_change_the_name_of_a_cell():
    """What a name is made of is what differs from the defaults."""
    (cell,) = grid()
    content = cell.config.model_dump(mode="json", exclude_defaults=True)
    assert "checkpoint" not in content and "precision" not in content["train"] and "points" not in content["eval"]


def test_the_numbers_of_a_small_study_are_those_of_their_version():
    """Where this fails, the same configuration gives other numbers: raise `NUMBERS`, and write the new ones here."""
    (cell,) = grid(algorithms=["dspodfl", "dfedavg"], train={"iterations": 6}, eval={"every": 6})
    run = Sweep([cell], [])
    list(run)
    last = run.metrics().groupby("algorithm").last()
    assert NUMBERS == 1
    assert last["delay_total"].to_dict() == pytest.approx(DELAYS, rel=1e-12)
    assert last["loss"].to_dict() == pytest.approx(LOSSES, rel=1e-5)
    known = {"batch_size": 16, "dfedavg_period": "auto", "order": "simultaneous", "precision": "auto"}
    defaults = Config().model_dump(mode="json")
    assert {key: defaults["train"][key] for key in known} == known
    assert defaults["train"]["learning_rate"] == {"kind": "constant", "value": 0.01}
    assert defaults["graph"]["radius"] == 0.4 and defaults["rates"]["floor"] == 1e-6 and defaults["seeds"] == 3


DELAYS = {"dfedavg": 206.53788743100458, "dspodfl": 6.720567597236286}
LOSSES = {"dfedavg": 0.753867552243173, "dspodfl": 0.7798162701539695}
