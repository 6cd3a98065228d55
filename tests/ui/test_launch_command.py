"""Commands on several ranks: the request goes to them as a file, resolved, and a folder is claimed once."""

import json
import os
from pathlib import Path

import pytest
from tests.edge import TINY_TOML, CommandLine, on_the_cpu

from dspodfl.engine.transport import launch as supervisor
from dspodfl.engine.transport import torch_distributed as distributed
from dspodfl.study.store import run_folder
from dspodfl.ui.cli import launch
from dspodfl.ui.cli.grids import ReproduceOptions, SweepOptions
from dspodfl.ui.cli.options import Output
from dspodfl.ui.cli.run import RunOptions


@pytest.fixture
def dspodfl(monkeypatch, capsys, tmp_path):
    on_the_cpu(monkeypatch)
    (tmp_path / "study.toml").write_text(TINY_TOML)
    return CommandLine(monkeypatch, capsys, tmp_path)


@pytest.fixture
def launched(monkeypatch):
    """What would be launched."""
    found = []
    monkeypatch.setattr(distributed, "launch", lambda ranks, words, **how: found.append((ranks, words, how)) or 0)
    return found


def as_rank(files, monkeypatch, folder):
    """Do what a rank does with what the launcher left for it."""
    for name, content in files.items():
        (folder / name).write_bytes(content)
    monkeypatch.setenv(supervisor.MEETING, str(folder))
    return launch._rank()


def test_ranks_get_the_resolved_configuration_and_parse_no_words(dspodfl, launched, monkeypatch, tmp_path):
    words = ("run", "study.toml", "--set", "train.iterations=6", "--seeds", 2, "--algorithms", "dgd")
    assert dspodfl(*words, "--ranks", 3, "--max-restarts", 2, "--out", "out").code == 0
    (ranks, arguments, how), meeting = launched[0], tmp_path / "meeting"
    assert (ranks, arguments, how["max_restarts"], how["module"]) == (3, [], 2, "dspodfl.ui.cli.launch")
    (tmp_path / "study.toml").write_text("seeds = 99")  # it is not read again
    meeting.mkdir()
    assert as_rank(how["files"], monkeypatch, meeting) == 0
    summary = json.loads((dspodfl.folder / "out" / "summary.json").read_text())
    assert (summary["study"]["runs"], summary["study"]["iterations"]) == (2, 6)


def test_a_sweep_and_a_reproduction_are_handed_on_whole(dspodfl, launched):
    assert dspodfl("sweep", "study.toml", "--over", "train.batch_size=1,2", "--ranks", 2).code == 0
    assert dspodfl("reproduce", "fmnist-iid", "--quick", "--seeds", 1, "--ranks", 2, "--quiet").code == 0
    sweep, reproduce = (json.loads(how["files"][launch.REQUEST]) for _, _, how in launched)
    assert (sweep["command"], sweep["options"]["over"]) == ("sweep", ["train.batch_size=1,2"])
    assert 'name = "synthetic"' in sweep["options"]["resolved"]
    assert (reproduce["command"], reproduce["options"]["names"]) == ("reproduce", ["fmnist-iid"])


@pytest.mark.parametrize(
    ("command", "options"),
    [
        (
            "run",
            RunOptions(
                Path("a.toml"), ["x=1"], ["dgd"], 2, "cpu", Output(Path("o"), True, True, models=True), resume=Path("r")
            ),
        ),
        ("sweep", SweepOptions(Path("a.toml"), ["x=1,2"], 0.1 + 0.2, resolved="seeds = 1\n")),
        ("reproduce", ReproduceOptions(["all"], None, True)),
    ],
)
def test_options_come_back_as_they_were_written(command, options, launched, monkeypatch, tmp_path):
    got = []
    module, kind, function = launch.COMMANDS[command]
    monkeypatch.setattr(f"{module}.{function}", got.append)
    assert launch.launch(command, options, 2, 0) == 0
    assert as_rank(launched[0][2]["files"], monkeypatch, tmp_path) == 0
    assert got == [options] and type(got[0]).__name__ == kind


@pytest.mark.parametrize("ranks", [(), ("--ranks", 1)])
def test_the_folder_of_a_run_is_claimed_once(ranks, dspodfl, launched, monkeypatch):
    claims = []
    real = run_folder.claim
    monkeypatch.setattr(run_folder, "claim", lambda *args, **how: claims.append(args) or real(*args, **how))
    assert dspodfl("run", "study.toml", "--out", "out", "--quiet", *ranks).code == 0
    assert len(claims) == (0 if ranks else 1)  # the launcher leaves it to rank 0


def test_a_request_is_readable_by_this_user_alone(tmp_path):
    seen = tmp_path / "seen"
    code = (
        "import os, sys, pathlib; m = pathlib.Path(os.environ['DSPODFL_MEETING']); "
        f"pathlib.Path({str(seen)!r}).write_text(oct(m.stat().st_mode)[-3:] + (m / 'request.json').read_text())"
    )
    import sys

    assert supervisor.run_ranks(1, [sys.executable, "-c", code], files={"request.json": b"{}"}) == 0
    assert seen.read_text() == "700{}"
    assert supervisor.MEETING not in os.environ
