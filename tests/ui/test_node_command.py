"""``dspodfl node``: what is wrong is one line and exit code 2."""

import pytest
from tests.edge import CommandLine

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
        (("--id", "0", "--seed", "9"), "--seed = 9: must be one of 0"),
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
