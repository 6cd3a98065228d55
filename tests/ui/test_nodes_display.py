"""What is shown of nodes: a table on a terminal, lines elsewhere."""

import io
import os
import pty
import subprocess
import sys
from pathlib import Path

from dspodfl.nodes import NodeView
from dspodfl.ui.console import nodes as display_file
from dspodfl.ui.console.nodes import NodesDisplay, nodes_table

ROOT = Path(__file__).parents[2]
STATUS = {"run": "dgd, seed 0", "number": 0, "k": 1200, "of": 3000, "steps": 1200, "uses": 2400, "waiting": [1]}
STATUS |= {"connected": 2, "neighbours": 3, "saved": 4.2}
SHOWN = """
from dspodfl.ui.console.nodes import NodesDisplay
from dspodfl.nodes import NodeView
with NodesDisplay(quiet=False) as display:
    display.show([NodeView(0), NodeView(1, "training", {status})])
    display.say("node 0 died (signal 9); it is started again")
"""


def text(table):
    from rich.console import Console

    console = Console(file=io.StringIO(), width=140)
    console.print(table)
    return console.file.getvalue()


def test_a_terminal_shows_the_table_and_what_is_said():
    master, slave = pty.openpty()
    command = [sys.executable, "-c", SHOWN.replace("{status}", repr(STATUS))]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "TERM": "xterm", "COLUMNS": "140"}
    found = b""
    with subprocess.Popen(command, stderr=slave, env=environment) as process:
        os.close(slave)
        try:
            while more := os.read(master, 65536):
                found += more
        except OSError:  # the other end is closed
            pass
        assert process.wait(timeout=60) == 0
    os.close(master)
    shown = found.decode()
    assert "starting nodes" in shown and "1,200 of 3,000" in shown and "it is started again" in shown


def test_a_row_says_what_a_node_does():
    rows = text(nodes_table([NodeView(0), NodeView(3, "training", STATUS, restarts=2)]))
    assert [line.split() for line in rows.splitlines() if "starting" in line] == [["0", "starting"]]
    (row,) = [line for line in rows.splitlines() if "training" in line]
    for part in ("dgd, seed 0", "1,200 of 3,000", "2,400", "2 of 3", "4 s ago"):
        assert part in row


def test_elsewhere_the_slowest_node_is_named_every_ten_seconds(monkeypatch):
    said, times = [], iter([0.0, 5.0, 11.0])
    monkeypatch.setattr(display_file.ERR, "print", lambda line, **_: said.append(str(line)))
    display = NodesDisplay(quiet=False, clock=lambda: next(times))
    for k in (10, 20, 30):
        display.show([NodeView(0, "training", {**STATUS, "k": 99}), NodeView(1, "lost", {**STATUS, "k": k})])
    again = "; started again: node 1"
    assert said == [f"dgd, seed 0: iteration 10 of 3,000{again}", f"dgd, seed 0: iteration 30 of 3,000{again}"]


def test_quiet_is_quiet(monkeypatch):
    said = []
    monkeypatch.setattr(display_file.ERR, "print", lambda line, **_: said.append(line))
    with NodesDisplay(quiet=True) as display:
        display.show([NodeView(0, "training", STATUS)])
        display.say("something")
    assert said == []
