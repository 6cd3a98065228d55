"""The command that replays a schedule by its seed."""

import subprocess
import sys

import pytest

from dspodfl.protocol import check as command
from dspodfl.protocol.schedules import Verdict


def test_one_schedule_is_printed_with_its_verdict(capsys):
    assert command.main(["--seed", "4711", "--steps", "500"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("seed 4711: ")
    assert len(lines) > 500
    assert any("crash" in line for line in lines[:-1])
    assert lines[-1].startswith("1 schedule, ") and lines[-1].endswith(": all hold")


def test_many_schedules_are_counted(capsys):
    assert command.main(["--schedules", "5", "--nodes", "2", "--retain", "4", "--faults", "0.2"]) == 0
    assert capsys.readouterr().out.startswith("5 schedules, ")


def test_a_failure_has_its_seed_and_exit_code_1(monkeypatch, capsys):
    monkeypatch.setattr(command, "check", lambda seed, *_, **__: Verdict(seed, "stuck" if seed == 8 else None, 1, {}))
    assert command.main(["--seed", "7", "--schedules", "3"]) == 1
    assert "seed 8: stuck" in capsys.readouterr().out
    assert command.main(["--seed", "8"]) == 1


@pytest.mark.parametrize(
    "words",
    [
        ["--seed", "-1"],
        ["--seed", "x"],
        ["--steps", "1.5"],
        ["--schedules", "0"],
        ["--nodes", "1"],
        ["--retain", "1"],
        ["--faults", "2"],
        ["--faults", "nan"],
        ["--unknown"],
    ],
    ids=" ".join,
)
def test_bad_input_has_exit_code_2(words, capsys):
    with pytest.raises(SystemExit) as stopped:
        command.main(words)
    assert stopped.value.code == 2
    assert "error" in capsys.readouterr().err


def test_it_is_a_command():
    done = subprocess.run(
        [sys.executable, "-m", "dspodfl.protocol.check", "--steps", "10"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "all hold" in done.stdout
