"""Sessions: names, counters of frames, signs of life."""

import pytest

from dspodfl.protocol import NO_SESSION, FrameCounters, Liveness, session_id

A, B = b"a" * 16, b"b" * 16


def test_a_session_has_one_name_at_both_ends_and_another_with_other_bytes():
    name = session_id(3, A, 5, B)
    assert len(name) == 8
    assert name == session_id(5, B, 3, A)
    assert len({name, session_id(3, B, 5, A), session_id(3, A, 6, B), session_id(3, A, 5, A)}) == 4


def agreed():
    sender, receiver = FrameCounters(), FrameCounters()
    assert receiver.check(*sender.stamp()) == "take"
    for end in (sender, receiver):
        end.agree(b"sessions")
    return sender, receiver


def test_frames_in_order_are_taken_and_repeated_ones_dropped():
    sender, receiver = agreed()
    frames = [sender.stamp() for _ in range(3)]
    assert frames == [(b"sessions", 1), (b"sessions", 2), (b"sessions", 3)]
    assert [receiver.check(*frame) for frame in frames] == ["take"] * 3
    assert [receiver.check(*frame) for frame in [*frames, (NO_SESSION, 0)]] == ["drop"] * 4


def test_a_lost_frame_is_a_gap():
    sender, receiver = agreed()
    sender.stamp()
    assert receiver.check(*sender.stamp()) == "gap"
    assert FrameCounters().check(b"sessions", 1) == "gap"


def test_frames_of_other_sessions_are_dropped():
    _, receiver = agreed()
    assert receiver.check(b"another.", 1) == "drop"
    assert receiver.check(NO_SESSION, 1) == "drop"
    assert receiver.check(b"another.", 0) == "drop"


def test_nothing_but_hello_is_sent_before_the_session_is_agreed():
    counters = FrameCounters()
    assert counters.stamp() == (NO_SESSION, 0)
    with pytest.raises(ValueError, match="only HELLO"):
        counters.stamp()


def test_a_hello_is_waited_for_and_nothing_is_asked_before_it():
    signs = Liveness(10.0, None)
    assert signs.due == 15.0
    assert signs.check(14.9) == "wait"
    signs.heard(12.0)
    assert signs.check(15.0) == "wait" and signs.due == 17.0
    assert signs.check(17.0) == "lost"


def test_a_pong_that_was_not_asked_for_measures_nothing():
    signs = Liveness(0.0, None)
    signs.greeted = True
    signs.ping(1.0)
    signs.pong(0.5, 2.0)
    assert signs.round_trip is None
    signs.pong(1.0, 1.5)
    assert signs.round_trip == 0.5 and signs.patience == 10.0
    signs.pong(1.0, 9.0)
    assert signs.round_trip == 0.5
    signs.ping(10.0)
    signs.pong(10.0, 10.1)
    assert signs.round_trip == pytest.approx(0.45)


def test_a_round_trip_of_an_earlier_connection_is_remembered():
    assert Liveness(0.0, None, 1.0).due == 20.0
