"""``python -m benchmarks nodes``: what is measured and how it is shown, at sizes that take no time."""

import json
import os

import pytest
from benchmarks import markdown, nodes, nodes_runs, nodes_wire
from benchmarks.__main__ import main

from dspodfl.nodes import NodeView
from dspodfl.problem.data import load
from dspodfl.study import build


def test_a_swap_between_two_processes_is_timed_and_its_bytes_are_counted():
    found = nodes_wire.swap(4000, 5)
    assert found.model_bytes == 4000 and len(found.seconds) == 4 and found.median > 0 and found.cpu > 0
    assert found.ratio is None or found.ratio > 1


@pytest.mark.parametrize(("value", "target", "met"), [(1.0, 2.0, True), (3.0, 2.0, False), (3.0, None, None)])
def test_a_figure_is_compared_with_its_target(value, target, met):
    assert nodes.Figure("x", value, "ms", target).met is met


def test_the_exit_code_says_whether_targets_are_met_and_figures_are_written(monkeypatch, tmp_path, capsys):
    figures = {"good": nodes.Figure("fast", 1.0, "ms", 2.0), "bad": nodes.Figure("slow", 3.0, "ms", 2.0)}
    monkeypatch.setattr(nodes, "GROUPS", {name: lambda _, name=name: [figures[name]] for name in figures})
    assert main(["nodes", "--only", "good"]) == 0
    assert main(["nodes", "--json", str(tmp_path / "f.json")]) == 1
    assert [one["met"] for one in json.loads((tmp_path / "f.json").read_text())] == [True, False]
    assert "not met" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["--only", "none"], ["--json", "/no/such/f.json"]])
def test_what_cannot_be_asked_for_exits_with_2(words, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["nodes", *words])
    assert stopped.value.code == 2 and "error:" in capsys.readouterr().err


def test_figures_become_a_table_of_the_page(tmp_path, capsys):
    file = tmp_path / "f.json"
    file.write_text(
        '[{"what": "x", "value": 3.0, "unit": "ms", "target": 2.0, "peer": "p", "note": "n", "met": false}]'
    )
    assert markdown.main([str(file)]) == 0
    assert "| x | 3 ms | ≤ 2 ms | **not met** | p | n |" in capsys.readouterr().out


def test_an_iteration_is_what_lies_between_the_first_and_the_last_sight_of_a_run_under_way():
    pace = nodes_runs.Pace()
    for at, k, cpu in (
        (1.0, 0, 0.5),
        (2.0, 100, 0.6),
        (2.0, 100, 0.6),
        (4.0, 300, 0.8),
        (5.0, 400, 0.9),
        (9.0, 400, 1.9),
    ):
        pace.watch([NodeView(0, status={"at": at, "k": k, "cpu": cpu})])
    clock, cpu = pace.iteration()
    assert clock == pytest.approx(0.01) and cpu == pytest.approx(0.001)


def test_the_study_has_ten_nodes_and_sixteen_links(tmp_path):
    graph = build(nodes_runs.config(tmp_path, 5, data={"name": "fmnist-mini"}))[1].settings[0].rates.graph
    assert (graph.clients, graph.links) == (nodes_runs.CLIENTS, nodes_runs.LINKS) == (10, 16)


def test_the_memory_of_a_process_is_read():
    assert 10e6 < nodes_runs.proportional_bytes(os.getpid()) < 10e9


def test_images_stand_in_for_a_dataset_that_is_not_here(tmp_path, monkeypatch):
    monkeypatch.setenv("DSPODFL_DATA", "")
    nodes_runs._stand_in(tmp_path)
    assert load("fmnist").x_train.shape == (60_000, 1, 28, 28)
