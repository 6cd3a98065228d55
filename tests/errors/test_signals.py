"""Signals: the first is heard, the second stops; and afterwards everything is as it was."""

import signal
import threading

import pytest

from dspodfl.errors.signals import SIGNALS, Interrupt, Interrupted


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_the_first_signal_is_waited_for_and_the_second_stops_at_once(number, code):
    with Interrupt() as interrupt, interrupt.deferred():
        signal.raise_signal(number)
        assert interrupt.received is not None and interrupt.received.code == code
        with pytest.raises(Interrupted) as second:
            signal.raise_signal(number)
    assert second.value.code == code


def test_nobody_waits_unless_they_are_patient():
    with Interrupt() as interrupt:
        with pytest.raises(Interrupted):
            signal.raise_signal(signal.SIGTERM)
        assert interrupt.received is None


def test_afterwards_signals_do_what_they_did_before():
    before = [signal.getsignal(number) for number in SIGNALS]
    with Interrupt():
        assert [signal.getsignal(number) for number in SIGNALS] != before
    assert [signal.getsignal(number) for number in SIGNALS] == before


def test_a_hangup_that_nohup_switched_off_stays_off():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupt() as interrupt:
            signal.raise_signal(signal.SIGHUP)
            assert interrupt.received is None
    finally:
        signal.signal(signal.SIGHUP, before)


def test_in_another_thread_nothing_changes():
    before, found = signal.getsignal(signal.SIGTERM), []

    def enter():
        with Interrupt() as interrupt:
            found.append((signal.getsignal(signal.SIGTERM), interrupt.received))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert found == [(before, None)]


def test_signals_are_handled_in_one_place():
    from dspodfl.engine.transport.launch import _Signals
    from dspodfl.errors.signals import Handler

    before = signal.getsignal(signal.SIGTERM)
    assert issubclass(Interrupt, Handler) and issubclass(_Signals, Handler)
    with _Signals() as collected:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        assert (collected.first, collected._waiting) == (signal.SIGTERM, [signal.SIGTERM, signal.SIGINT])
    assert signal.getsignal(signal.SIGTERM) is before
