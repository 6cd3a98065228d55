"""``dspodfl node``: one run of the study, chosen where there are several; what is wrong is one line and exit code 2."""

import pytest
from tests.edge import CommandLine, tiny

from dspodfl.errors import InputError
from dspodfl.study import build
from dspodfl.ui.cli.node import one_run


@pytest.fixture(scope="module")
def study():
    return build(tiny(seeds=3, seed=5))[1]


def chosen(study, *words):
    return [(run.algorithm, run.seed) for run in one_run(study, *words).runs]


def test_a_node_trains_the_run_that_is_chosen(study):
    assert chosen(study, "dgd", 6) == [("dgd", 6)]
    assert chosen(study, "dspodfl", 7) == [("dspodfl", 7)]


def test_nothing_needs_to_be_chosen_where_there_is_one():
    assert chosen(build(tiny(algorithms=["rg"], seed=2))[1], None, None) == [("rg", 2)]


@pytest.mark.parametrize(
    ("words", "field", "named"),
    [
        ((None, 5), "--algorithm", "dspodfl, dgd"),
        (("dgd", None), "--seed", "5, 6, 7"),
        (("rg", 5), "--algorithm", "dspodfl, dgd"),
        (("dgd", 4), "--seed", "5, 6, 7"),
    ],
)
def test_what_is_not_there_or_not_chosen_is_refused_with_what_there_is(study, words, field, named):
    with pytest.raises(InputError) as error:
        one_run(study, *words)
    assert error.value.field == field and named in error.value.allowed


STUDY = """
seeds = 1
algorithms = ["dspodfl"]
[clients]
count = 3
[graph]
kind = "ring"
[data]
name = "synthetic"
partition = { kind = "iid" }
[train]
iterations = 2
"""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--id", "0"), "nodes.peer = '0 entries': must be an entry for each neighbour: node 1"),
        (("--id", "3"), "--id = 3: must be a node of the graph, from 0 to 2"),
        (("--id", "x"), "--id = 'x': must be an integer"),
        ((), "missing option '--id'"),
        (("--id", "0", "--seed", "9"), "--seed = 9: must be one that the study has: 0"),
        (("--id", "0", "--data", "nowhere"), "nowhere: no such folder"),
        (("--id", "0", "--set", "nodes.retain=much"), "nodes.retain"),
        (("--id", "0", "--set", 'algorithms=["fedavg"]'), "fedavg has a server"),
    ],
)
def test_wrong_input_is_one_line(monkeypatch, capsys, tmp_path, words, said):
    dspodfl = CommandLine(monkeypatch, capsys, tmp_path)
    (tmp_path / "study.toml").write_text(STUDY)
    answer = dspodfl("node", "study.toml", *words)
    (line,) = [line for line in answer.err.splitlines() if line.strip()]
    assert answer.code == 2 and line.startswith("error: ") and said in line
    assert sorted(path.name for path in tmp_path.iterdir()) == ["study.toml"]
