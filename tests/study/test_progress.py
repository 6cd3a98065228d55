"""Progress: readable at 80 columns, plain lines where there is no terminal, nothing where nobody wants it."""

import io
import os
import re
import struct
import subprocess
import sys
import types
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from tests.edge import TINY_TOML, CommandLine, tiny

from dspodfl import run
from dspodfl.config.grid import Axis, cells
from dspodfl.problem.data import named as sources
from dspodfl.study import progress as module
from dspodfl.study.builder import build
from dspodfl.study.forecast import Work, expected_seconds, meant_for_a_gpu
from dspodfl.study.progress import Progress, for_command, for_python
from dspodfl.study.result import Result
from dspodfl.study.timing import Stopwatch
from dspodfl.theory.assess import assess
from dspodfl.theory.assess.grid import over_cells

LINE = re.compile(
    r"\d\d:\d\d:\d\d  +\d+%  iteration [\d,]+/[\d,]+  .*dspodfl \d\.\d\d\d  dgd \d\.\d\d\d(  ETA [\d:–]+)?"
)


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    encoding = "utf-8"

    def isatty(self):
        return True


class Clock:
    """Time as a test sets it."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def rows(iteration, **accuracies):
    return [
        {"algorithm": name, "seed": 0, "iteration": iteration, "accuracy": value, "loss": 1.0}
        for name, value in accuracies.items()
    ]


def at_work(done, total, seconds=10.0, **more):
    """A progress that has come so far in so many seconds."""
    clock = Clock()
    shown = Progress("lines", Terminal(), clock, **more)
    shown.start(total, total)
    for n in range(11):
        clock.now = seconds * n / 10
        shown.update(done * n / 10, int(done * n / 10))
    return shown


# --- a bar ----------------------------------------------------------------------------------------------------


def test_a_bar_has_iteration_rate_and_time_left_first_and_accuracies_on_a_line_of_their_own():
    shown = at_work(1260, 2000)
    shown.show(rows(1260, dspodfl=0.634, dgd=0.568))
    first, second = shown.render(80).splitlines()
    assert first == "━━━━━━━━━━━━────────  63%  iteration 1,260/2,000  126 it/s  ETA 0:06"
    assert second == "dspodfl 0.634  dgd 0.568"


def test_a_run_that_exceeds_the_estimate_of_its_iterations_is_not_shown_as_more_than_all():
    assert "100%  iteration 2,604  " in at_work(2604, 2500).render(80)


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("total", [4, 2000, 10**6, 10**9])
def test_no_line_is_wider_than_the_terminal(width, total):
    shown = at_work(total // 3, total, seconds=1e6)
    shown.label("12 of 144 cells finished")
    shown.show(rows(1, **{f"module_{n}:schedule_with_a_long_name": 0.5 for n in range(6)}))
    lines = shown.render(width).splitlines()
    assert max(map(len, lines)) <= width
    assert "ETA" in lines[0] or width == 40


def test_the_share_shown_is_that_of_the_budget_whatever_its_unit():
    shown = Progress("lines", Terminal())
    shown.start(10000.0)
    shown.update(2500.0, 812)
    assert re.match(r"━{5}─{15}  25%  iteration 812  ", shown.render())


def test_a_terminal_without_unicode_gets_a_bar_of_signs():
    shown = Progress("lines", types.SimpleNamespace(encoding="latin-1", write=lambda text: None, flush=lambda: None))
    shown.start(10)
    shown.update(5, 5)
    assert shown.render().startswith("##########----------  50%")


def test_names_bring_no_control_characters_to_the_terminal():
    shown = at_work(1, 2)
    shown.show(rows(1, **{"evil\x1b[2J\r": 0.5}))
    shown.stage("\x1b]0;title\x07", 0.5)
    assert "\x1b" not in shown.render() and "\r" not in shown.render()
    shown.say("\x1b[31m red")
    assert "\x1b" not in shown._stream.getvalue()


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_on_a_terminal_of_80_columns_a_run_draws_a_bar_that_fits(tmp_path):
    import fcntl
    import pty
    import termios

    (tmp_path / "study.toml").write_text(TINY_TOML.replace("iterations = 4", "iterations = 3000"))
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    path = os.pathsep.join([str(Path(__file__).parents[2] / "src"), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"TERM": "xterm", "PYTHONPATH": path, "PYTHONIOENCODING": "utf-8"}
    environment.pop("COLUMNS", None)
    words = [sys.executable, "-m", "dspodfl", "run", "study.toml", "--out", "out", "--device", "cpu"]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=follower, cwd=tmp_path, env=environment)
    os.close(follower)
    drawn = b""
    while True:
        try:
            piece = os.read(leader, 65536)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        drawn += piece
    os.close(leader)
    assert process.wait(60) == 0
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "\n", drawn.decode())
    lines = [line for line in re.split(r"[\r\n]+", text) if line.strip()]
    assert any(re.match(r"[━─]{20} +\d+%  iteration [\d,]+/3,000  \S+ it/s  ETA", line) for line in lines)
    assert any(re.fullmatch(r"dspodfl \d\.\d\d\d  dgd \d\.\d\d\d", line.strip()) for line in lines)
    assert max(len(line) for line in lines if "time:" not in line) <= 80


# --- log lines ------------------------------------------------------------------------------------------------


@pytest.fixture
def dspodfl(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(Result, "draw", lambda *_: set())
    (tmp_path / "study.toml").write_text(TINY_TOML)
    return CommandLine(monkeypatch, capsys, tmp_path)


@pytest.fixture
def talkative(monkeypatch):
    """A log line at whatever is reported."""
    for name in ("_FIRST", "_EVERY", "_GAP"):
        monkeypatch.setattr(module, name, 0.0)
    monkeypatch.setattr(module, "_REFRESH", float("inf"))


def test_without_a_terminal_a_run_writes_plain_lines(dspodfl, monkeypatch, talkative):
    monkeypatch.setenv("FORCE_COLOR", "1")
    answer = dspodfl("run", "study.toml", "--out", "out")
    lines = answer.err.splitlines()
    assert all(LINE.fullmatch(line) for line in lines[:-1])
    assert {re.search(r"iteration (\d)", line)[1] for line in lines[:-1]} >= {"0", "2", "4"}
    assert lines[-1].startswith("time: ") and "\x1b" not in answer.err


@pytest.mark.parametrize("how", ["--quiet", "--json"])
def test_quiet_and_json_show_no_progress(how, dspodfl):
    assert dspodfl("run", "study.toml", "--out", "out", how).err == ""


def test_a_sweep_writes_lines_as_well(dspodfl, talkative):
    answer = dspodfl("sweep", "study.toml", "--over", "train.batch_size=1,2", "--out", "out")
    lines = [line for line in answer.err.splitlines() if LINE.fullmatch(line)]
    assert len(lines) >= 6 and "\x1b" not in answer.err
    assert "0 of 2 cells finished" in lines[0] and "1 of 2 cells finished" in lines[-1]


def logged(seconds, *, evaluations, iterations=1000):
    """The lines of a run, and when each was written; progress is reported ten times a second."""
    clock, stream, found = Clock(), io.StringIO(), []
    shown = Progress("lines", stream, clock)
    shown.start(iterations, iterations)
    reports = int(10 * seconds)
    for n in range(reports + 1):
        clock.now, done = n / 10, n * iterations / reports
        shown.update(done, int(done))
        if n % (reports // evaluations) == 0:
            shown.show(rows(n, dgd=n / reports))
        found += [(clock.now, line) for line in stream.getvalue().splitlines()[len(found) :]]
    return found


@pytest.mark.parametrize("evaluations", [1, 20, 1000])
def test_log_lines_come_at_every_5_percent_the_first_after_2_seconds_and_always_the_last(evaluations):
    found = logged(100.0, evaluations=evaluations)
    times = [at for at, line in found if "%" in line]
    assert times[0] == 2.0 and len(times) == 21
    assert min(after - before for before, after in pairwise(times[:-1])) >= 4.9
    assert "100%  iteration 1,000/1,000  dgd 1.000" in found[-1][1]


def test_a_slow_run_writes_a_line_every_30_seconds():
    times = [at for at, line in logged(3000.0, evaluations=1000) if "%" in line]
    assert 100 <= len(times) <= 121
    assert max(after - before for before, after in pairwise(times)) <= 30.2


def test_a_run_that_is_over_at_once_writes_its_last_line_alone():
    ((at, line),) = logged(1.0, evaluations=10)
    assert at == 1.0 and "100%" in line


def test_while_a_run_is_on_a_stage_is_not_said_more_often_than_its_progress():
    clock, stream = Clock(), io.StringIO()
    shown = Progress("lines", stream, clock)
    shown.start(100, 100)
    for n in range(120):
        clock.now = float(n)
        shown.stage("evaluating", n / 120)
    assert len(stream.getvalue().splitlines()) == 3


def test_a_long_stage_is_said_now_and_then_and_a_short_one_is_not():
    clock, stream = Clock(), io.StringIO()
    shown = Progress("lines", stream, clock)
    for n in range(100):
        clock.now = n / 100
        shown.stage("building", n / 100)
    assert stream.getvalue() == ""
    for n in range(60):
        clock.now = 1.0 + n
        shown.stage("downloading", n / 60)
    lines = stream.getvalue().splitlines()
    assert 8 <= len(lines) <= 12 and re.fullmatch(r"\d\d:\d\d:\d\d  downloading \d+%", lines[0])


def test_a_stream_that_is_closed_does_not_end_a_run():
    stream = io.StringIO()
    stream.close()
    Progress("lines", stream).say("nobody reads this")


# --- Python and notebooks -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("terminal", "wanted", "mode"),
    [
        (True, None, "bar"),
        (True, True, "bar"),
        (True, False, "off"),
        (False, None, "off"),
        (False, True, "lines"),
        (False, False, "off"),
    ],
)
def test_a_function_shows_a_bar_on_a_terminal_and_nothing_in_a_pipe_unless_asked(terminal, wanted, mode, monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal() if terminal else io.StringIO())
    monkeypatch.setenv("TERM", "xterm")
    assert for_python(wanted).mode == mode


@pytest.mark.parametrize(("term", "mode"), [("xterm", "bar"), ("dumb", "lines")])
def test_a_command_draws_a_bar_where_one_can_be_drawn(term, mode, monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", term)
    assert for_command(quiet=False).mode == mode and for_command(quiet=True).mode == "off"


def test_run_shows_nothing_in_a_pipe_and_lines_where_they_are_wanted(capsys):
    run(tiny())
    assert capsys.readouterr().err == ""
    run(tiny(), progress=True)
    assert LINE.fullmatch(capsys.readouterr().err.splitlines()[0])


def test_run_draws_a_bar_on_a_terminal_unless_it_is_told_not_to(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    for wanted, shown in ((None, True), (False, False)):
        stream = Terminal()
        monkeypatch.setattr(sys, "stderr", stream)
        run(tiny(), progress=wanted)
        assert ("iteration" in stream.getvalue()) == shown


def test_in_a_notebook_a_cell_shows_a_bar_in_place(monkeypatch):
    shown = []

    class ZMQInteractiveShell:
        pass

    class Handle:
        def update(self, content, raw):
            shown.append(content["text/plain"])

    def display(content, raw, display_id):
        shown.append(content["text/plain"])
        return Handle()

    ipython = types.ModuleType("IPython")
    ipython.get_ipython = ZMQInteractiveShell
    ipython.display = types.ModuleType("IPython.display")
    ipython.display.display = display
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", ipython.display)
    run(tiny())
    first, second = shown[-1].splitlines()
    assert "100%  iteration 4/4" in first and second.startswith("dspodfl 0.")
    before = len(shown)
    run(tiny(), progress=False)
    assert len(shown) == before


# --- estimates ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("total", "says"), [(100, 0), (10_000, 1)])
def test_a_long_run_says_once_how_long_it_takes(total, says):
    shown = at_work(50, total, seconds=10.0)
    said = [line for line in shown._stream.getvalue().splitlines() if "iteration" not in line]
    assert said == ["about 33 minutes on this device"] * says


def test_a_study_estimates_itself_from_its_iterations_and_evaluations():
    from dspodfl import Simulation

    ticks = iter(range(10**6))
    simulation = Simulation(tiny(train={"iterations": 100}, eval={"every": 50}), progress=Progress("lines"))
    simulation.timing = Stopwatch(lambda: float(next(ticks)))
    assert simulation.estimate() is None
    updates = iter(simulation)
    for _ in range(2):
        next(updates)
    assert simulation.estimate() > 3 * simulation.timing.seconds["evaluation"] / 2


CONVOLUTIONAL = {"data": {"name": "fmnist-mini", "partition": {"kind": "iid"}}, "model": {"name": "cnn"}}


def test_convolutions_on_a_cpu_are_estimated_beforehand_and_nothing_else_is():
    def studied(**changes):
        return build(tiny(**changes))[1]

    network, linear = studied(**CONVOLUTIONAL), studied()
    assert meant_for_a_gpu(network.model) and not meant_for_a_gpu(linear.model)
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert expected_seconds([linear], cpu) is None and expected_seconds([network], cuda) is None
    short, long = (expected_seconds([studied(**CONVOLUTIONAL, train={"iterations": n})], cpu) for n in (1, 10_000))
    assert 0 < 20 * short < long


def test_the_work_of_a_study_is_what_it_computes():
    work = Work.of(build(tiny(algorithms=["dgd"], eval={"every": 3, "clients": 2, "samples": 7}))[1])
    assert work == Work(gradients=4 * 4, evaluations=3, models=3, samples=7)


@pytest.mark.parametrize("command", ["run", "sweep"])
def test_where_a_gpu_is_meant_a_run_on_a_cpu_says_so_with_the_time_it_takes(command, dspodfl, monkeypatch):
    for name in ("study.simulation", "experiments.sweep"):
        monkeypatch.setattr(f"dspodfl.{name}.expected_seconds", lambda studies, device: 7 * 86400.0)
    over = ["--over", "train.batch_size=1,2"] if command == "sweep" else []
    answer = dspodfl(command, "study.toml", *over, "--out", "out")
    said = [line for line in answer.err.splitlines() if "on this device" in line]
    advice = "this model is meant for a GPU: use --device cuda on a machine that has one"
    assert said == [f"about 7 days on this device; {advice}"]


# --- stages ---------------------------------------------------------------------------------------------------


def stages(work):
    heard = []
    work(lambda stage, share: heard.append((stage, share)))
    assert all(0 <= share <= 1 for _, share in heard)
    return [stage for stage, _ in heard]


def test_building_says_which_seed_it_is_at():
    heard = stages(lambda hear: build(tiny(seeds=2), on_progress=hear))
    assert any("seed 0" in stage for stage in heard) and any("seed 1" in stage for stage in heard)


def test_the_theory_says_what_it_is_at():
    config = tiny(model={"name": "mlp", "hidden": [3]})
    heard = stages(lambda hear: assess(config, points=3, on_progress=hear))
    assert heard.count("constants of seed 0") == 1 + 3 and heard[-1] == "bounds of dgd"
    grid = cells(config.model_dump(exclude_unset=True), [Axis.of("train.batch_size", [1, 2])])
    heard = stages(lambda hear: over_cells(grid, points=3, on_progress=hear))
    assert heard == ["cell 1 of 2", "cell 2 of 2"]


@pytest.mark.parametrize("words", [("check",), ("theory", "bound")])
def test_commands_that_build_draw_a_bar_on_a_terminal(words, dspodfl, monkeypatch):
    shown = []
    monkeypatch.setattr(Progress, "stage", lambda self, name, share=0.0: shown.append(name))
    assert dspodfl(*words, "study.toml").code == 0
    assert any("seed 0" in name for name in shown)


def test_a_download_is_shown_where_progress_is_shown_already():
    shown = Progress("lines", io.StringIO())
    with shown:
        bar = sources._Bar("train.gz")
        bar.total = 4_000_000
        bar.update(1_000_000)
        assert shown.render().splitlines()[0].endswith(" 25%  downloading train.gz, 1.0 of 4.0 MB")
        bar.reset()
        bar.update(4_000_000)
        bar.close()
        assert "100%" in shown.render()
    assert sources.downloading.get() is None


def test_a_download_from_python_writes_a_line_on_a_terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    bar = sources._Bar("train.gz")
    bar.total = 100
    bar.update(50)
    bar.close()
    assert stream.getvalue() == "\r 50%  downloading train.gz, 0.0 of 0.0 MB\n"
