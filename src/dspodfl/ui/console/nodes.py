"""What is shown of nodes while they train: a table on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Self

from rich import box
from rich.live import Live
from rich.table import Table
from rich.text import Text

from dspodfl.study import terminal

if TYPE_CHECKING:
    from dspodfl.nodes import NodeView

ERR = terminal.ERR
_LINE_SECONDS = 10.0
_COLUMNS = ("node", "state", "run", "iteration", "steps", "exchanges", "waits for", "links", "checkpoint", "restarts")


class NodesDisplay:
    """Shows nodes on standard error.

    Args:
        quiet: Show nothing.
        clock: The time in seconds.
    """

    def __init__(self, *, quiet: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._quiet, self._clock = quiet, clock
        self._live: Live | None = None
        self._told: tuple[float, int] | None = None

    def __enter__(self) -> Self:
        if not self._quiet and ERR.is_terminal:
            self._live = Live(
                Text("starting nodes"),
                console=ERR,
                auto_refresh=False,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,  # ERR writes to sys.stderr, and would write to itself
            )
            self._live.start(refresh=True)
        elif not self._quiet:
            ERR.print(Text("starting nodes"), soft_wrap=True)
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, line: str) -> None:
        """Print a sentence, above the table."""
        if not self._quiet:
            ERR.print(Text(line), soft_wrap=True)

    def show(self, nodes: Sequence[NodeView]) -> None:
        """Show the nodes as they are."""
        if self._live is not None:
            self._live.update(nodes_table(nodes), refresh=True)
        elif not self._quiet:
            self._line(nodes)

    def _line(self, nodes: Sequence[NodeView]) -> None:
        """Print how far the slowest node is: when its run changes, and every ten seconds."""
        slowest = min(nodes, key=lambda node: (node.ended, node.status.get("number", 0), node.status.get("k", 0)))
        status, now = slowest.status, self._clock()
        if "k" not in status:
            return
        number = status.get("number", 0)
        if self._told is not None and self._told[1] == number and now - self._told[0] < _LINE_SECONDS:
            return
        self._told = now, number
        at = f"{status['run']}: iteration {status['k']:,} of {status['of']:,}"
        lost = [str(node.id) for node in nodes if node.state == "lost"]
        ERR.print(Text(at + (f"; started again: node {', '.join(lost)}" if lost else "")), soft_wrap=True)


def nodes_table(nodes: Sequence[NodeView]) -> Table:
    """Return the nodes as a table.

    Args:
        nodes: What is known of each.

    Returns:
        A row for each.
    """
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for n, head in enumerate(_COLUMNS):
        table.add_column(Text(head), justify="left" if n in (1, 2, 6) else "right", no_wrap=True)
    for node in nodes:
        table.add_row(*(Text(cell) for cell in _cells(node)))
    return table


def _cells(node: NodeView) -> list[str]:
    status: dict[str, Any] = node.status
    if "k" not in status:
        return [str(node.id), node.state, *[""] * 7, str(node.restarts or "")]
    saved = status.get("saved")
    return [
        str(node.id),
        node.state,
        str(status["run"]),
        f"{status['k']:,} of {status['of']:,}",
        f"{status['steps']:,}",
        f"{status['uses']:,}",
        ", ".join(map(str, status["waiting"][:4])) + (" …" if len(status["waiting"]) > 4 else ""),
        f"{status['connected']} of {status['neighbours']}",
        "" if saved is None else f"{saved:.0f} s ago",
        str(node.restarts or ""),
    ]
