"""The experiments of the paper: every file is valid, says what it is, and runs at toy size."""

import json
import signal
import tomllib
from pathlib import Path

import pandas as pd
import pytest
from tests.edge import TINY_TOML, CommandLine, on_the_cpu

from dspodfl import ConfigError, InputError
from dspodfl.algorithms import ALGORITHMS, PAPER
from dspodfl.analysis.metrics import METRICS
from dspodfl.experiments import batches, claims, sweep
from dspodfl.experiments import definition as experiments
from dspodfl.experiments.definition import named, names
from dspodfl.experiments.result import ExperimentResult, read
from dspodfl.experiments.sweep import Sweep
from dspodfl.study import session
from dspodfl.ui.cli import grids

ALL = [named(name) for name in names()]
IDS = [e.name for e in ALL]
OF_THE_PAPER = [e for e in ALL if e.paper]


@pytest.fixture(autouse=True)
def cpu(monkeypatch):
    on_the_cpu(monkeypatch)


@pytest.fixture
def dspodfl(monkeypatch, capsys, tmp_path):
    (tmp_path / "study.toml").write_text(TINY_TOML)
    return CommandLine(monkeypatch, capsys, tmp_path)


def toy(experiment):
    """Changes that make it run in no time."""
    if experiment.dataset == "ridge":
        return {"train.until": {"iterations": 3}, "eval.every": 1}
    partition = experiment.base.get("data", {}).get("partition", {"kind": "iid"})
    data = {"name": "synthetic", "samples": 600, "test_samples": 50, "classes": 10, "features": 4}
    more = {"train.iterations": 3, "eval.every": 1, "data": {**data, "partition": partition}, "model": {"name": "svm"}}
    return more


@pytest.mark.parametrize("experiment", ALL, ids=IDS)
def test_every_experiment_runs_at_toy_size_and_is_read_and_judged(experiment, monkeypatch):
    grid = experiment.cells(quick=True, seeds=1, more=toy(experiment))
    assert len(grid) <= len(experiment.cells())
    run = Sweep(grid, experiment.axes)
    assert len(list(run)) == len({cell.digest for cell in grid})
    outcome = ExperimentResult.of(experiment, grid, run.metrics(), run.about())
    assert len(outcome.aggregates)
    assert set(outcome.aggregates["algorithm"]) == {label for cell in grid for label in cell.config.labels}
    assert [c.kind for c in outcome.checks] == [c.kind for c in experiment.check]
    assert all(c.sentence for c in outcome.checks)


@pytest.mark.parametrize("experiment", OF_THE_PAPER, ids=[e.name for e in OF_THE_PAPER])
def test_every_experiment_of_the_paper_says_what_it_is(experiment):
    assert experiment.title and len(experiment.claim) > 20
    assert experiment.check, "nothing is judged"
    assert experiment.dataset in ("fmnist", "cifar10")
    assert experiment.seeds >= (10 if experiment.dataset == "fmnist" else 3)
    for cell in experiment.cells():
        assert cell.config.data.name == experiment.dataset
        assert cell.config.algorithms == list(PAPER)
        assert cell.config.model.name == ("svm" if experiment.dataset == "fmnist" else "vgg11")
        for iteration in experiment.read.iterations:
            every = cell.config.eval.every
            assert iteration % every == 0 or iteration == cell.config.train.iterations
    for printed in experiment.printed:
        assert printed.algorithm in ALGORITHMS


def test_all_means_those_of_the_paper_and_the_others_stand_last_in_the_list():
    others = [e.name for e in ALL if not e.paper]
    assert others == ["algorithms-fmnist", "algorithms-ridge"] == IDS[-2:]
    assert experiments.paper_names() == IDS[:-2]
    selected, _ = grids._selected(grids.ReproduceOptions(["all"]))
    assert sorted(e.name for e in selected) == sorted(IDS[:-2])
    selected, left = grids._selected(grids.ReproduceOptions(others, quick=True))
    assert [e.name for e in selected] == others and not left
    page = (Path(__file__).parents[2] / "docs" / "paper.md").read_text(encoding="utf-8")
    assert not [name for name in others if name in page]


def test_quick_needs_no_data_but_the_bundled_sample():
    for experiment in ALL:
        if experiment.dataset == "fmnist":
            assert {cell.config.data.name for cell in experiment.cells(quick=True)} == {"fmnist-mini"}


def test_everything_that_the_paper_shows_has_its_file():
    kinds = {(e.dataset, e.kind) for e in OF_THE_PAPER}
    assert kinds == {(d, k) for d in ("fmnist", "cifar10") for k in experiments.KINDS if k != "tuned"}
    swept = {(e.dataset, axis) for e in ALL for over in e.over for axis in (over.keys or [over.name])}
    for key in ("data.partition.per_client", "graph.radius", "clients.count", "train.learning_rate.value"):
        assert {("fmnist", key), ("cifar10", key)} <= swept
    assert {check.kind for e in ALL for check in e.check} <= set(claims.kinds())


@pytest.mark.parametrize("kind", [kind for kind in experiments.KINDS if kind != "tuned"])  # that is in test_tuning.py
def test_every_kind_has_a_figure(kind, tmp_path):
    experiment = next(e for e in ALL if e.kind == kind)
    grid = experiment.cells(quick=True, seeds=2, more=toy(experiment))
    run = Sweep(grid, experiment.axes)
    list(run)
    folder = ExperimentResult.of(experiment, grid, run.metrics(), run.about()).save(tmp_path / "out")
    assert (folder / "figure.png").read_bytes()[:4] == b"\x89PNG"
    assert (folder / "figure.svg").read_text().startswith("<?xml")


def test_an_experiment_that_is_none_is_refused_with_what_is_wrong(tmp_path):
    for text, why in (
        ("title = 1", "title"),
        ('kind = "sweep"', "over|Field required"),
        ("nonsense = 1", "nonsense"),
        ("title = ", "cannot be read"),
        ('setting = "mnist"', "setting = 'mnist': must be one of cifar10-iid, .*fmnist-sweep"),
        ('setting = "fmnist-iid"\n[base.train]\niterations = 1', "base: must be left out where a setting is named"),
    ):
        path = tmp_path / "bad.toml"
        path.write_text(text)
        with pytest.raises(ConfigError, match=why):
            experiments.read(path)
    with pytest.raises(InputError, match=r"did you mean 'fmnist-iid'"):
        named("fmnist-iit")


def test_a_file_says_what_is_its_own_and_its_setting_the_rest(tmp_path):
    path = tmp_path / "mine.toml"
    own = 'title = "t"\npaper = ""\nclaim = ""\nkind = "curves"\nsetting = "fmnist-sweep"\n'
    path.write_text(own + 'seeds = 4\n[set]\n"rates.sgd" = { law = "uniform" }\n"clients.count" = 7\n')
    found, plain = (
        experiments.read(path),
        tomllib.loads((experiments.folder() / "settings/fmnist-sweep.toml").read_text()),
    )
    assert (found.dataset, found.seeds, found.read.at_delay) == ("fmnist", 4, plain["read"]["at_delay"])
    assert found.base["rates"] == plain["base"]["rates"] | {"sgd": {"law": "uniform"}}
    assert found.base["clients"] == {"count": 7} and found.base["eval"] == plain["base"]["eval"]


def test_nothing_measured_reads_as_nothing():
    assert read(ALL[0], pd.DataFrame()).empty


# --- the command line -----------------------------------------------------------------------------------------


def test_the_list_names_every_experiment(dspodfl):
    answer = dspodfl("reproduce", "--list")
    assert answer.code == 0
    assert [line.split()[0] for line in answer.out.splitlines()] == IDS
    assert dspodfl("reproduce").code == 2
    assert dspodfl("reproduce", "nothing").code == 2
    assert dspodfl("reproduce", "fmnist-iid", "--seeds", "0").code == 2


def small(monkeypatch):
    """Make the experiments toys."""
    real = experiments.Experiment.cells
    monkeypatch.setattr(
        experiments.Experiment,
        "cells",
        lambda self, **how: real(self, quick=True, seeds=how.get("seeds") or 1, more=toy(self)),
    )


def test_reproduce_writes_a_folder_an_experiment_and_goes_on_where_it_was(dspodfl, monkeypatch):
    small(monkeypatch)
    answer = dspodfl("reproduce", "fmnist-labels-uniform", "fmnist-iid-table-accuracy", "--out", "rep")
    assert answer.code == 0, answer.err
    for name in ("fmnist-labels-uniform", "fmnist-iid-table-accuracy"):
        found = json.loads((dspodfl.folder / "rep" / name / "result.json").read_text())
        assert found["verdicts"] and found["about"]["finished"] == found["about"]["cells"]
    monkeypatch.setattr(session, "measure", lambda *_: pytest.fail("run again"))
    again = dspodfl("reproduce", "fmnist-labels-uniform", "--out", "rep")
    assert again.code == 0 and "were finished before" in again.err
    other = dspodfl("reproduce", "fmnist-labels-uniform", "--seeds", "2", "--out", "rep")
    assert other.code == 2 and "same grid" in other.err


def test_quick_says_what_it_leaves_out(dspodfl, monkeypatch):
    small(monkeypatch)
    answer = dspodfl("reproduce", "cifar10-iid", "--quick", "--out", "rep")
    assert answer.code == 2 and "NAME = 'cifar10-iid': must be an experiment on Fashion-MNIST" in answer.err
    assert not (dspodfl.folder / "rep").exists()
    answer = dspodfl("reproduce", "cifar10-iid", "fmnist-iid", "--quick", "--out", "rep")
    assert answer.code == 0 and "left out by --quick, which has no data for them: cifar10-iid" in answer.err
    assert "1 experiment in" in answer.err
    assert not (dspodfl.folder / "rep" / "cifar10-iid").exists()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_sweep_keeps_what_is_finished(number, code, dspodfl, monkeypatch):
    monkeypatch.setitem(batches.FLOP_PER_BATCH, "cpu", 1.0)
    real, count = session.measure, []

    def interrupted(made, *more):
        count.append(1)
        if len(count) == 3:
            signal.raise_signal(number)
        return real(made, *more)

    monkeypatch.setattr(session, "measure", interrupted)
    words = ("sweep", "study.toml", "--over", "train.learning_rate.value=0.01,0.1,0.5", "--out", "s")
    answer = dspodfl(*words)
    assert answer.code == code
    assert "2 of 3 cells are finished and kept" in answer.err.replace("\n", " ")
    answer = dspodfl(*words)
    assert answer.code == 0 and "2 of 3 cells were finished before" in answer.err.replace("\n", " ")
    metrics = pd.read_parquet(dspodfl.folder / "s" / "metrics.parquet")
    assert metrics["train.learning_rate.value"].nunique() == 3
    assert len(count) == 4


def test_a_sweep_of_one_s_own_reads_at_a_delay(dspodfl):
    over = ("--over", "train.learning_rate.value=0.01,0.5", "--over", "rates.refresh=0,2")
    answer = dspodfl("sweep", "study.toml", *over, "--at-delay", "4", "--out", "s")
    assert answer.code == 0, answer.err
    table = pd.read_csv(dspodfl.folder / "s" / "table.csv")
    assert len(table) == 2 * 2 * 2 and set(table["delay"]) == {4.0}
    assert (table["reached"] <= table["seeds"]).all()
    assert answer.out.startswith("study over learning rate α, iterations between redraws of the rates (0: never)\n")
    metrics = pd.read_parquet(dspodfl.folder / "s" / "metrics.parquet")
    assert set(metrics.columns[:2]) == {"train.learning_rate.value", "rates.refresh"}


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--over", "nothing=1"), "nothing"),
        (("--over", "train.iterations=0,4"), "train.iterations = 0"),
        (("--over", "seed"), "--over"),
        (("--over", "rates.refresh=0,2", "--at-delay", "-1"), "--at-delay"),
        (("--over", "rates.refresh=0,2", "--device", "tpu"), "device"),
    ],
)
def test_bad_sweeps_are_refused_and_nothing_is_written(words, why, dspodfl):
    before = dspodfl.written()
    answer = dspodfl("sweep", "study.toml", *words, "--out", "s")
    assert answer.code == 2 and why in answer.err and "Traceback" not in answer.err
    assert dspodfl.written() == before


def test_the_page_says_why_where_a_claim_is_not_borne_out_in_full():
    text = (Path(__file__).parents[2] / "docs" / "paper.md").read_text(encoding="utf-8")
    sections = text.split("\n### ")[1:]
    assert len(sections) >= 30
    for section in sections:
        heading = section.splitlines()[0]
        assert heading.endswith(": holds") or "\nWhy: " in section, heading


@pytest.mark.parametrize(
    ("about", "told"), [({"seeds": 2}, True), ({"seeds": 3}, False), ({"seeds": 2, "quick": True}, False)]
)
def test_what_is_known_of_the_full_run_is_said_of_that_one_alone(about, told):
    experiment = named("fmnist-iid").model_copy(update={"explanation": "It is so.", "seeds": 2})
    metrics = pd.DataFrame(columns=METRICS)
    found = ExperimentResult.of(experiment, experiment.cells(), metrics, about)
    assert found.explanation == ("It is so." if told else "")


def test_cells_that_were_finished_before_keep_where_they_come_from(tmp_path, monkeypatch):
    experiment = next(e for e in ALL if e.kind == "sweep")
    grid = experiment.cells(quick=True, seeds=1, more=toy(experiment))
    first = Sweep(grid[:1], experiment.axes, tmp_path)
    list(first)
    about = first.about()
    assert about["wall_seconds"] > 0 and about["device"].startswith("cpu")
    monkeypatch.setattr(sweep, "provenance", lambda device: {"device": "another", "versions": {}, "commit": "abc"})
    again = Sweep(grid[:1], experiment.axes, tmp_path)
    list(again)
    assert again.about() == about
    more = Sweep(grid[:2], experiment.axes, tmp_path)
    list(more)
    assert more.about()["device"] == f"{about['device']}, another"
    assert more.about()["wall_seconds"] > about["wall_seconds"]


def test_what_an_experiment_is_compared_with_is_found_beside_it(tmp_path):
    found = {}
    for name, quick in (("fmnist-radius-uniform", True), ("fmnist-radius-50", True), ("fmnist-radius-50", False)):
        experiment = named(name)
        grid = experiment.cells(quick=True, seeds=1, more=toy(experiment))
        run = Sweep(grid, experiment.axes, tmp_path / "cells")
        list(run)
        about = run.about() | {"quick": quick}
        outcome = ExperimentResult.of(experiment, grid, run.metrics(), about, tmp_path / name)
        outcome.save(tmp_path / name)
        found[name, quick] = {c.kind: c for c in outcome.checks}
    # too few iterations to be read at the delay: but it was looked at
    assert "must have been read, here and there" in found["fmnist-radius-50", True]["lead"].sentence
    assert "must have been reproduced" in found["fmnist-radius-50", False]["lead"].sentence  # that one was quick
    (tmp_path / "fmnist-radius-uniform" / "result.json").write_text("{")
    damaged = ExperimentResult.of(experiment, grid, run.metrics(), run.about() | {"quick": True}, tmp_path / name)
    assert "must have been reproduced" in {c.kind: c for c in damaged.checks}["lead"].sentence  # and nothing is lost


def test_an_experiment_with_an_unknown_claim_kind_is_refused_before_it_runs(tmp_path, monkeypatch):
    text = (experiments.folder() / "fmnist-iid.toml").read_text().replace('kind = "ahead"', 'kind = "aheda"')
    (tmp_path / "mine.toml").write_text(text)
    (tmp_path / "settings").symlink_to(experiments.folder() / "settings")
    monkeypatch.setattr(experiments, "folder", lambda: tmp_path)
    with pytest.raises(ConfigError, match=r"mine.toml: check.kind = 'aheda': must be one of ahead, .*'ahead'"):
        experiments.named("mine")
