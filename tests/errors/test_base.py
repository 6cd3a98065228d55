"""Errors of the package: one base, with the exit code of the command line."""

import inspect

import pytest

from dspodfl.errors import DspodflError, base
from dspodfl.ui.cli import failures

CLASSES = [kind for _, kind in inspect.getmembers(base, inspect.isclass) if kind.__module__ == base.__name__]


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_error_is_a_dspodfl_error(kind):
    assert len(CLASSES) >= 6
    assert issubclass(kind, DspodflError) and kind.exit_code in (1, 2)


def test_the_command_line_exits_with_the_code_of_the_error(capsys):
    class OwnError(DspodflError):
        exit_code = 7

    def command():
        raise OwnError("first\nsecond")

    assert failures.guarded(command) == 7
    assert capsys.readouterr().err == "error: first\nerror: second\n"


def test_an_error_without_a_message_is_named(capsys):
    def command():
        raise DspodflError

    assert failures.guarded(command) == 2
    assert capsys.readouterr().err == "error: DspodflError\n"
