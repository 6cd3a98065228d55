"""``python -m benchmarks nodes``: what is measured and how it is shown, at sizes that take no time."""

import json

import pytest
from benchmarks import nodes, nodes_wire
from benchmarks.__main__ import main


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
