"""docs/nodes.md is true: its commands work, its tables are those of the program."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from tests.edge import CommandLine
from tests.nodes.harness import config

from dspodfl.algorithms import ALGORITHMS
from dspodfl.engine import runs_on_nodes
from dspodfl.nodes import process
from dspodfl.nodes.supervisor import free_ports
from dspodfl.study import build

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/nodes.md").read_text()
SECONDS = 240
SMALL = ("--set", "train.until={ iterations = 12 }", "--set", "eval.every=6")
"""Changes of a study that keep it short."""
LOCAL = 'ssh() { mkdir -p "$1" && (cd "$1" && "${@:2}"); }; scp() { cp "${@//.local:/.local/}"; }; set -e\n'
"""The commands between machines, with a folder for each machine."""


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def section(title):
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def commands(title):
    """The commands of a section, each as its words."""
    lines = [line for text in re.findall(r"```sh\n(.*?)```", section(title), re.DOTALL) for line in text.splitlines()]
    assert all(line.startswith("dspodfl ") for line in lines) and lines
    return [shlex.split(line)[1:] for line in lines]


def shell(title, word):
    """The block of a section, for a shell, that has a word."""
    (found,) = [text for text in re.findall(r"```text\n(.*?)```", section(title), re.DOTALL) if word in text]
    return found


def started(words, folder):
    """Start a command in a process of its own."""
    paths = os.pathsep.join([str(ROOT / "src"), *(path for path in sys.path if path)])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "dspodfl", *words]
    return subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True)


def finished(process):
    _, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, err
    return err


def in_shell(text, folder):
    subprocess.run(["bash", "-c", LOCAL + text], cwd=folder, check=True)


@pytest.fixture
def dspodfl(monkeypatch, capsys, tmp_path):
    return CommandLine(monkeypatch, capsys, tmp_path)


def test_the_commands_for_three_boards_work(dspodfl, tmp_path):
    title = "Three Raspberry Pis"
    new, check, node, collect, show, verify = commands(title)
    answer = dspodfl(*new)
    assert answer.code == 0
    text = blocks("toml")[0].replace("iterations = 2000", "iterations = 12")
    for i, port in enumerate(free_ports(3)):
        assert f'certificate = "keys/{i}.crt"' in answer.out
        text = text.replace(f"pi{i}.local:7733", f"127.0.0.1:{port}")
    (tmp_path / "study.toml").write_text(text)
    assert dspodfl(*check).code == 0
    in_shell(shell(title, "mkdir -p study"), tmp_path)
    boards = [tmp_path / f"pi{i}.local" / "study" for i in range(3)]
    assert [(board / "node.key").stat().st_mode & 0o777 for board in boards] == [0o600] * 3
    assert node[-1] == "0"
    nodes = [started([*node[:-1], str(i)], board) for i, board in enumerate(boards)]
    for i, one in enumerate(nodes):
        assert f"node {i}: finished; its models are in runs/three-pis-node{i}" in finished(one)
    in_shell(shell(title, "scp -r"), tmp_path)
    for words in (collect, show, verify):
        answer = dspodfl(*words)
        assert answer.code == 0, answer.err
    assert (tmp_path / "runs/three-pis/metrics.parquet").exists()


def test_the_commands_for_one_machine_work(dspodfl, tmp_path):
    up, show = commands("All nodes on one machine")
    small = ["--set", "clients.count=3", "--set", "graph.kind=ring", "--set", "data.partition.kind=iid", *SMALL]
    finished(started([*up, *small, "--quiet"], tmp_path))
    assert dspodfl(*show).code == 0


def test_the_commands_for_an_organisation_work(dspodfl, tmp_path):
    made = [dspodfl(*words) for words in commands("An organisation with its own CA")]
    assert [answer.code for answer in made] == [0] * len(made)
    assert "node 3 of run 'hospital-study-7'" in made[-1].out
    tls = "tls = { certificate = "
    assert tls in made[0].out and tls in blocks("toml")[1]


def test_the_table_of_algorithms_is_that_of_the_registry():
    rows = re.findall(r"^\| (`.*`) \| (yes|no: .*) \|$", section("Which algorithms run on nodes"), re.MULTILINE)
    said = {name: why for names, why in rows for name in re.findall(r"`(\w+)`", names)}
    found = {}
    for name in ALGORITHMS:
        kind = {"relay": "path", "d2": "complete", "bridge": "complete"}.get(name, "ring")
        _, study = build(config(name, iterations=2, graph={"kind": kind}))
        why = runs_on_nodes(study.rules[0], study.runs[0])
        found[name] = "yes" if why is None else f"no: {why.removeprefix(name).strip()}"
    assert said == found


def first_column(text):
    return re.findall(r"^\| ([`0-9][^|]*) \|", text, re.MULTILINE)


def test_the_exit_codes_are_those_of_a_node():
    assert first_column(section("Exit codes")) == first_column(process.__doc__)


def test_every_event_of_the_log_is_named():
    source = "".join(path.read_text() for path in sorted((ROOT / "src/dspodfl/nodes").glob("*.py")))
    written = set(re.findall(r'log\.write\(\s*"(\w+)"', source)) | set(re.findall(r'\bevent="(\w+)"', source))
    named = {word for cell in first_column(section("The log")) for word in re.findall(r"`(\w+)`", cell)}
    assert named == written | {"warning"}


def test_a_service_is_not_restarted_where_it_would_fail_again():
    (unit,) = blocks("ini")
    assert f"RestartPreventExitStatus=2 {process.DIVERGED}\n" in unit and "Restart=on-failure\n" in unit
