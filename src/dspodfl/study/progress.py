"""Progress of what takes time: a bar on a terminal or in a notebook, log lines elsewhere, or nothing.

    ━━━━━━━━━━━━────────  63%  iteration 1,260/2,000  410 it/s  ETA 0:12
    dspodfl 0.634  dgd 0.568  rg 0.486  sporadic_sgd 0.625  dfedavg 0.302

A bar fits 80 columns, and the accuracies have a line of their own. Log lines are plain text and few: the first after
2 seconds, one at every 5 % or 30 seconds, and the last.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import time
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextvars import Token
from typing import Any, Literal, TextIO, cast

from rich.console import Console
from rich.live import Live
from rich.text import Text

from dspodfl.study import terminal
from dspodfl.study.timing import roughly

Mode = Literal["bar", "notebook", "lines", "off"]
OnProgress = Callable[[str, float], None]
"""Called with the name of a stage and the share of it that is done."""

WIDTH = 20
"""Characters of the bar itself."""
LONG = 60.0
"""Seconds from which an estimate is said."""
_MEASURED = 3.0
"""Seconds of a run from which the rest is estimated."""
_MOMENT = 1.0
"""Seconds after which a stage of a run, such as an evaluation, is shown."""
_REFRESH, _STAGES, _WINDOW = 0.1, 5.0, 20.0
"""Seconds between two updates of a bar, two lines of a stage before a run; seconds that a rate is taken over."""
_FIRST, _EVERY, _GAP, _STEP = 2.0, 30.0, 1.0, 0.05
"""Log lines: seconds before the first, at most and at least between two; the share done between two."""


def for_command(quiet: bool) -> Progress:
    """Return the progress of a command: a bar on a terminal, log lines elsewhere.

    Args:
        quiet: Whether nothing is shown.

    Returns:
        What shows progress; enter it while the command runs.
    """
    return Progress("off" if quiet else "bar" if _terminal(sys.stderr) else "lines")


def for_python(wanted: bool | None = None) -> Progress:
    """Return the progress of a function: a bar on a terminal and in a notebook, elsewhere nothing unless ``wanted``.

    Args:
        wanted: True for log lines where there is no terminal, False for nothing anywhere.

    Returns:
        What shows progress; enter it while the function runs.
    """
    if wanted is False:
        return Progress("off")
    if _notebook() is not None:
        return Progress("notebook")
    return Progress("bar" if _terminal(sys.stderr) else "lines" if wanted else "off")


class Progress:
    """Shows how far something is; enter it while it runs.

    Args:
        mode: bar, notebook, lines or off.
        stream: where bars and lines go; standard error by default.
        clock: seconds, monotonic.
    """

    def __init__(self, mode: Mode, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        # A bar takes the place of standard error while it is shown, and so must not write to what stands for it then.
        here = sys.stderr if mode == "bar" else cast(TextIO, terminal.ERR.stream)
        self.mode, self._stream, self._clock = mode, stream or here, clock
        self._live: Live | None = None
        self._handle: Any = None
        self._token: Token[OnProgress | None] | None = None
        self._total = self._done = self._begun_at = 0.0
        self._iterations: int | None = None
        self._iteration = 0
        self._since: float | None = None  # when the first update came, at _begun_at
        self._pace: deque[tuple[float, int]] = deque()
        self._stage, self._share, self._stage_since = "", 0.0, 0.0
        self._label = ""
        self._values: dict[str, dict[Hashable, float]] = {}
        self._refreshed = self._logged = self._staged = float("-inf")
        self._logged_share, self._first_at = 0.0, float("inf")  # of the last log line; when the first may come
        self._estimated = False
        self.estimate: Callable[[], float | None] | None = None
        """How many seconds all of it takes; by default as the share that is done says."""

    def __enter__(self) -> Progress:
        from dspodfl.problem.data import downloading  # data need PyTorch, and commands without a bar none of it

        self._token = downloading.set(self.stage)
        if self.mode == "bar" and self._live is None:
            console = Console(file=self._stream, highlight=False)
            self._live = Live(
                get_renderable=lambda: Text(self.render(console.width)),
                console=console,
                refresh_per_second=4,
                transient=True,
                # What is printed while the bar is there goes above it, unless it goes somewhere else.
                redirect_stdout=_terminal(sys.stdout),
            )
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._token is not None:
            from dspodfl.problem.data import downloading

            downloading.reset(self._token)
            self._token = None
        if self._live is not None:
            self._live.stop()
            self._live = None
        self._display(last=True)

    # --- what is reported -------------------------------------------------------------------------------------

    def start(self, total: float, iterations: int | None = None) -> None:
        """Say how much there is to do; again where that has changed.

        Args:
            total: in any unit.
            iterations: how many there are in all, where that is known.
        """
        self._total, self._iterations = total, iterations
        self._stage = ""

    def update(self, done: float, iteration: int) -> None:
        """Say how much is done of the total, and at which iteration that is; called often, and cheap."""
        now = self._clock()
        if self._since is None:
            self._since, self._begun_at = now, done
        self._done, self._iteration = done, iteration
        if now - self._refreshed < _REFRESH:
            return
        self._refreshed, self._stage = now, ""
        self._pace.append((now, iteration))
        while now - self._pace[0][0] > _WINDOW:
            self._pace.popleft()
        self._say_estimate(now)
        if self.mode == "lines":
            self._log(now)
        self._display()

    def stage(self, name: str, share: float = 0.0) -> None:
        """Say what is being done, and which share of it is done: building, downloading, evaluating."""
        now, new = self._clock(), name != self._stage
        self._stage, self._share = name, share
        self._stage_since = now if new else self._stage_since
        if self.mode == "lines":
            if self._staged < 0:
                self._staged = now  # what is done in a moment is not said
            if share > 0 and now - max(self._staged, self._logged) > (_EVERY if self._total > 0 else _STAGES):
                self._staged = now
                self._line(f"{name} {min(1.0, share):.0%}")
        elif new or now - self._refreshed >= _REFRESH:
            self._refreshed = now
            self._display()

    def label(self, text: str) -> None:
        """A few words to show on the second line, such as how many cells are finished."""
        self._label = text

    def show(self, rows: Sequence[Mapping[str, Any]], cells: Sequence[Hashable] = ()) -> None:
        """Show what was measured: accuracies (losses, for regression), averaged over runs.

        Args:
            rows: of metrics.parquet.
            cells: what tells runs of one algorithm and seed apart, one for each row.
        """
        self._stage = ""
        for row, cell in zip(rows, cells or [None] * len(rows), strict=True):
            value = row["loss"] if row["accuracy"] is None else row["accuracy"]
            if value is not None:
                self._values.setdefault(str(row["algorithm"]), {})[cell, row["seed"]] = float(value)
        if self.mode == "lines":
            self._log(self._clock(), ended=self._total > 0 and self._done >= self._total)
        else:
            self._display()

    def _log(self, now: float, ended: bool = False) -> None:
        """Write a line where one is due."""
        self._first_at = min(self._first_at, now + _FIRST)
        share, since = self._done_share(), now - self._logged
        due = since >= _EVERY or (since >= _GAP and share - self._logged_share >= _STEP)
        if ended or (now >= self._first_at and due):
            self._logged, self._logged_share = now, share
            self._line(self._summary())

    def _done_share(self) -> float:
        return min(1.0, self._done / self._total) if self._total > 0 else 0.0

    def say(self, text: str) -> None:
        """A line that stays."""
        if self.mode == "off":
            return
        if self._live is not None:
            self._live.console.print(Text(_plain(text)), soft_wrap=True)
        else:
            self._write(text)

    def _say_estimate(self, now: float) -> None:
        """Say once how long all of it takes, if that is long."""
        if self._estimated or self._since is None or now - self._since < _MEASURED:
            return
        seconds = self.estimate() if self.estimate else self._extrapolated(now)
        if seconds is not None:
            self._estimated = True
            if seconds > LONG:
                self.say(f"about {roughly(seconds)} on this device")

    def forecast(self, seconds: float | None, advice: str = "") -> None:
        """Say how long all of it will take, if that is long; it is not said again."""
        if seconds is not None and seconds > LONG:
            self._estimated = True
            self.say(f"about {roughly(seconds)} on this device{advice}")

    def _extrapolated(self, now: float) -> float | None:
        done = self._done - self._begun_at
        if self._since is None or done <= 0 or self._total <= 0:
            return None
        return (now - self._since) * (self._total - self._begun_at) / done

    # --- as text ----------------------------------------------------------------------------------------------

    def render(self, width: int = 80) -> str:
        """What a bar of this width shows now: one line, and a second one for what was measured."""
        share = self._share if self._total <= 0 else self._done / self._total
        share = min(1.0, max(0.0, share))
        parts, stage = [f"{share:4.0%}"], ""
        if self._total > 0:
            parts += [self._where(), self._rate(), f"ETA {self._eta()}"]
            slow = self._stage and self._clock() - self._stage_since > _MOMENT
            stage = f"{self._stage} {self._share:.0%}" if slow else ""
        elif self._stage:
            parts.append(self._stage)
        text = _plain("  ".join(parts))
        first = f"{self._bar(share, min(WIDTH, width - 2 - len(text)))} {text}"[: width - 1]
        second = "  ".join(filter(None, [stage, self._label, self._measured()]))
        return "\n".join([first, *_folded(_plain(second), width - 1)])

    def _bar(self, share: float, length: int) -> str:
        done, left = ("━", "─") if "utf" in (getattr(self._stream, "encoding", None) or "").lower() else ("#", "-")
        full = int(share * max(0, length))
        return done * full + left * (length - full)

    def _where(self) -> str:
        # A number of iterations that follows from a budget is an estimate, which a run may exceed.
        known = f"/{self._iterations:,}" if self._iterations and self._iteration <= self._iterations else ""
        return f"iteration {self._iteration:,}{known}"

    def _rate(self) -> str:
        if len(self._pace) < 2 or self._pace[-1][0] <= self._pace[0][0]:
            return "– it/s"
        speed = (self._pace[-1][1] - self._pace[0][1]) / (self._pace[-1][0] - self._pace[0][0])
        return f"{speed:,.0f} it/s" if speed >= 10 else f"{speed:.2g} it/s"

    def _eta(self) -> str:
        now = self._clock()
        whole = self._extrapolated(now)
        if whole is None or self._since is None:
            return "–:––"
        left = max(0, round(whole - (now - self._since)))
        hours, minutes, seconds = left // 3600, left // 60 % 60, left % 60
        return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"

    def _measured(self) -> str:
        means = {name: sum(values.values()) / len(values) for name, values in self._values.items()}
        return "  ".join(f"{name} {mean:.3f}" for name, mean in means.items())

    def _summary(self) -> str:
        share = self._done_share()
        parts = [f"{share:4.0%}", self._where(), self._label, self._measured()]
        parts += [f"ETA {self._eta()}"] if 0 < share < 1 else []
        return "  ".join(filter(None, parts))

    # --- where it goes ----------------------------------------------------------------------------------------

    def _line(self, text: str) -> None:
        self._write(f"{time.strftime('%H:%M:%S')}  {text}")

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # progress is no reason to fail
            self._stream.write(f"{_plain(text)}\n")
            self._stream.flush()

    def _display(self, last: bool = False) -> None:
        """Update what a notebook shows; a terminal's bar is drawn by a thread of its own."""
        if self.mode != "notebook" or not (self._total > 0 or self._stage):
            return
        now = self._clock()
        if self._handle is not None and not last and now - self._staged < 0.25:
            return
        self._staged = now
        content = {"text/plain": self.render()}
        if self._handle is None:
            # There is one in every notebook.
            self._handle = importlib.import_module("IPython.display").display(content, raw=True, display_id=True)
        else:
            self._handle.update(content, raw=True)


def _terminal(stream: Any) -> bool:
    """Whether a bar can be drawn on a stream."""
    try:
        return bool(stream.isatty()) and not Console(file=stream).is_dumb_terminal
    except (AttributeError, ValueError):  # no stream, or a closed one
        return False


def _notebook() -> Any:
    """The shell of the notebook that this runs in, if any."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None and hasattr(ipython, "get_ipython") else None
    kernels = [kind.__name__ for kind in type(shell).__mro__]
    return shell if "ZMQInteractiveShell" in kernels else None


def _plain(text: str) -> str:
    """Replace control characters: names come from users, and none of these may reach a terminal."""
    return "".join(sign if sign.isprintable() else "?" for sign in text)


def _folded(text: str, width: int) -> list[str]:
    """Lines of at most a width, cut between the parts of a text, which two spaces tell apart."""
    lines: list[str] = []
    for part in text.split("  "):
        if lines and len(lines[-1]) + 2 + len(part) <= width:
            lines[-1] += f"  {part}"
        elif part:
            lines.append(part[:width])
    return lines
