"""A node in lockstep, input by input."""

import time

import pytest
from tests.protocol.nodes import NONCE, hello, join, node, of, plan, sent

from dspodfl.protocol import (
    Ack,
    Bye,
    Checkpoint,
    Close,
    Deliver,
    Done,
    Hello,
    LockstepNode,
    Need,
    Note,
    Ping,
    Pong,
    Save,
    State,
    Store,
)


def test_a_session_begins_with_hello_that_says_what_is_needed():
    (effect,) = node().opened(1, NONCE, 0.0)
    assert effect.peer == 1
    assert effect.message == hello(0, need=(0, 0), durable=0)
    later = node(fires=lambda k: (2,) if k < 4 else (1, 2)).opened(1, NONCE, 0.0)
    assert sent(later)[0].need == (4, 0)
    never = node(fires=lambda k: (2,)).opened(1, NONCE, 0.0)
    assert sent(never)[0].need is None
    assert node().opened(9, NONCE, 0.0) == []


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"version": 2}, "version is 2 there and 1 here"),
        ({"id": 2}, "says that it is node 2, but it is node 1"),
        ({"run_id": "other"}, "'other' there and 'run' here"),
        ({"config": (("graph.name", b"x" * 8),)}, "graph.name is set there alone"),
        ({"schema": b"x" * 32}, "names, shapes or types"),
        ({"durable": 11}, "does not have"),
        ({"need": (10, 0)}, "does not have"),
        ({"need": (1, 1)}, "does not have"),
    ],
    ids=str,
)
def test_another_run_is_refused_and_nothing_changes(changed, why):
    made = node()
    made.opened(1, NONCE, 0.0)
    before = snapshot(made)
    bye, close = made.received(1, hello(**changed), None, 1.0)
    assert bye.message.reason == "refused" and why in bye.message.text
    assert why in close.reason and close.refused
    assert snapshot(made) == before
    assert made.received(1, State(0, 0), "x", 1.0) == []


def snapshot(made):
    """All that a session could change for good."""
    links = {
        peer: (
            link.kept,
            link.held,
            link.expects,
            link.durable,
            link.amount,
            link.save_wanted,
            link.farewell,
            link.full,
        )
        for peer, link in made.links.items()
    }
    return repr((made.k, made.phase, made.durable, made.end, made.done, links, made.waiting_for()))


def test_the_first_key_that_differs_is_named():
    here = (("a", b"1" * 8), ("b", b"1" * 8), ("c", b"1" * 8))
    made = node(config=here)
    made.opened(1, NONCE, 0.0)
    close = made.received(1, hello(config=(here[0], ("b", b"2" * 8), ("c", b"2" * 8))), None, 0.0)[-1]
    assert close.reason == "the configuration differs: b"


def test_nothing_is_taken_before_hello_and_a_second_hello_is_ignored():
    made = node()
    made.opened(1, NONCE, 0.0)
    (close,) = made.received(1, State(0, 0), "x", 0.0)
    assert isinstance(close, Close) and "not HELLO" in close.reason and not close.refused
    join(made)
    assert made.received(1, hello(durable=5), None, 0.0) == []
    assert made.links[1].durable == 0


def test_an_exchange_is_delivered_when_all_messages_are_there():
    made = node()
    join(made, 1), join(made, 2)
    assert sent(made.offer(0, 0, {1: "to 1", 2: "to 2"}, 0.0)) == [State(0, 0), State(0, 0)]
    assert made.received(2, State(0, 0), "of 2", 0.0) == []
    assert made.waiting_for() == [1]
    assert made.received(1, State(0, 0), "of 1", 0.0) == [Deliver(0, 0, {1: "of 1", 2: "of 2"})]
    assert list(made.links[1].kept) == [(0, 0)]
    assert made.advance(1, "value 1", 0.0) == []
    assert made.k == 1


def test_an_early_state_is_held_and_a_repeated_one_dropped():
    made = node(neighbours=(1,))
    join(made)
    made.received(1, State(0, 0), "early", 0.0)
    assert made.received(1, State(0, 0), "again", 0.0) == []
    effects = made.offer(0, 0, {1: "mine"}, 0.0)
    assert sent(effects) == [State(0, 0)]
    assert of(effects, Deliver) == [Deliver(0, 0, {1: "early"})]
    assert made.received(1, State(0, 0), "again", 0.0) == []
    assert made.links[1].held == {}


def test_phases_are_positions_of_their_own():
    made = node(neighbours=(1,), phases=2, sizes=(1, 3), retain=20)
    join(made)
    made.offer(0, 0, {1: "a"}, 0.0)
    assert of(made.received(1, State(0, 0), "x", 0.0), Deliver)
    assert made.received(1, State(0, 1), "y", 0.0) == []
    assert made.received(1, State(1, 0), "z", 0.0) == []
    assert of(made.offer(0, 1, {1: "b"}, 0.0), Deliver) == [Deliver(0, 1, {1: "y"})]
    assert made.links[1].amount == 4
    assert made.links[1].expects == (1, 1)


def test_the_worker_cannot_skip():
    made = node(fires=lambda k: (1,) if k == 0 else ())
    for call in (
        lambda: made.advance(1, "x", 0.0),
        lambda: made.offer(1, 0, {1: "x"}, 0.0),
        lambda: made.offer(0, 1, {1: "x"}, 0.0),
        lambda: made.offer(0, 0, {2: "x"}, 0.0),
        lambda: made.saved(0, 0.0),
    ):
        with pytest.raises(ValueError, match=r"out of turn|being written"):
            call()
    made.offer(0, 0, {1: "x"}, 0.0)
    with pytest.raises(ValueError, match="out of turn"):
        made.advance(1, "x", 0.0)


def test_need_is_sent_by_an_end_that_has_nothing_to_send():
    made = node(neighbours=(1,))
    assert sent(join(made, need=None)) == []
    assert sent(made.offer(0, 0, {1: "mine"}, 0.0)) == [Need(0, 0)]
    assert sent(made.received(1, State(0, 0), "x", 0.0)) == [State(0, 0)]


def test_a_replay_is_not_answered_with_models():
    """The neighbour holds all before its need: its old STATEs ask for nothing, and nothing durable is kept."""
    made = node(neighbours=(1,))
    join(made, need=(3, 0), durable=2)
    made.offer(0, 0, {1: "a"}, 0.0)
    effects = made.received(1, State(0, 0), "x", 0.0)
    assert sent(effects) == [] and of(effects, Deliver)
    assert made.links[1].kept == {}


def test_at_the_limit_one_link_waits_and_says_so_once():
    made = node(retain=2)
    join(made, 1), join(made, 2)
    for k in range(2):
        made.offer(k, 0, {1: k, 2: k}, 0.0)
        made.received(1, State(k, 0), "x", 0.0)
        assert of(made.received(2, State(k, 0), "x", 0.0), Deliver)
        made.advance(k + 1, k, 0.0)
        made.received(2, Ack(k + 1), None, 0.0)
    effects = made.offer(2, 0, {1: "a", 2: "b"}, 0.0)
    assert sent(effects, 2) == [State(2, 0)]
    assert sent(effects, 1) == [Need(2, 0)]
    (note,) = of(effects, Note)
    assert note.peer == 1 and "nodes.retain" in note.text
    made.received(1, State(2, 0), "x", 0.0)
    assert made.received(2, State(2, 0), "x", 0.0) == []
    assert made.waiting_for() == [1]
    effects = made.received(1, Ack(1), None, 0.0)
    assert sent(effects, 1) == [Save(2), State(2, 0)]
    assert of(effects, Deliver) and not of(effects, Note)


def test_save_is_asked_above_half_for_the_middle_and_again_at_hello():
    made = node(neighbours=(1,), retain=5)
    join(made)
    asked = []
    for k in range(4):
        asked += of(sent(made.offer(k, 0, {1: k}, 0.0)), Save)
        made.received(1, State(k, 0), "x", 0.0)
        made.advance(k + 1, k, 0.0)
    assert asked == [Save(1)]
    made.closed(1, 0.0)
    assert of(sent(join(made, need=(4, 0))), Save) == [Save(2)]


def test_a_save_is_carried_out_immediately_or_when_its_iteration_comes():
    made = node(neighbours=(1,))
    join(made)
    made.offer(0, 0, {1: "a"}, 0.0)
    made.received(1, State(0, 0), "x", 0.0)
    made.advance(1, "one", 0.0)
    made.offer(1, 0, {1: "b"}, 0.0)
    (store,) = made.received(1, Save(1), None, 0.0)
    assert store == Store(Checkpoint(1, "one", {1: {(0, 0): "a"}}, {1: 0}, None))
    assert made.received(1, Save(2), None, 0.0) == []
    assert sent(made.saved(1, 0.0)) == [Ack(1)]
    made.received(1, State(1, 0), "y", 0.0)
    (store,) = made.advance(2, "two", 0.0)
    assert store.checkpoint.k == 2
    assert sent(made.received(1, Save(1), None, 0.0)) == [Ack(1)]


def test_what_is_confirmed_is_the_oldest_checkpoint_on_disk():
    made = node(neighbours=(), keep=2, fires=lambda k: ())
    for k, durable in ((1, 0), (2, 1), (3, 2)):
        made.advance(k, k, 0.0)
        made.save(0.0)
        made.saved(k, 0.0)
        assert made.durable == durable
    assert LockstepNode(plan(keep=2), Checkpoint(3, 3), [1, 2, 3]).durable == 2
    assert LockstepNode(plan(keep=2), Checkpoint(2, 2), [2]).durable == 2


def test_a_save_with_two_checkpoints_is_stored_twice():
    made = node(neighbours=(1,), keep=2, fires=lambda k: ())
    join(made, need=None)
    made.advance(1, "one", 0.0)
    assert of(made.received(1, Save(1), None, 0.0), Store)
    assert of(made.saved(1, 0.0), Store)
    effects = made.saved(1, 0.0)
    assert sent(effects) == [Ack(1)] and not of(effects, Store)


def test_checkpoints_by_number_and_by_time():
    made = node(neighbours=(), fires=lambda k: (), every_iterations=3)
    stored = [k for k in range(1, 10) if of(made.advance(k, k, 0.0), Store) and made.saved(k, 0.0) == []]
    assert stored == [3, 6, 9]
    made = node(neighbours=(), fires=lambda k: (), every_seconds=30.0)
    stored = [k for k in range(1, 10) if of(made.advance(k, k, 11.0 * k), Store) and made.saved(k, 11.0 * k) == []]
    assert stored == [3, 6, 9]


def test_a_checkpoint_that_fails_is_tried_again_later():
    made = node(fires=lambda k: ())
    made.advance(1, "one", 0.0)
    assert of(made.save(0.0), Store)
    (note,) = made.unsaved(1, 10.0)
    assert "could not be written" in note.text
    assert made.timer == 15.0
    assert made.save(11.0) == []
    assert of(made.on_timer(15.0), Store)
    assert made.timer is None


def test_the_end_comes_when_all_is_durable_everywhere():
    made = node(neighbours=(1,), fires=lambda k: (), iterations=1)
    join(made, need=None)
    (store,) = made.advance(1, "one", 0.0)
    assert sent(made.saved(1, 0.0)) == [Ack(1)]
    assert made.received(1, Bye("finished", 1), None, 0.0) == []
    (store,) = made.received(1, Ack(1), None, 0.0)
    assert store.checkpoint.end == ("finished", 1)
    assert sent(made.saved(1, 0.0)) == [Bye("finished", 1)]
    assert made.received(1, Bye("finished", 1), None, 0.0) == [Done("finished", 1)]
    assert made.done and made.received(1, Ping(1.0), None, 0.0) == [] and made.timer is None


def test_a_node_without_neighbours_ends_alone():
    made = node(neighbours=(), fires=lambda k: (), iterations=1)
    assert of(made.advance(1, "one", 0.0), Store)
    assert of(made.saved(1, 0.0), Store)
    assert made.saved(1, 0.0) == [Done("finished", 1)]


def test_an_ended_node_waits_for_a_lost_neighbour_only_for_a_while():
    made = LockstepNode(plan(linger=60.0), Checkpoint(10, "x", {}, {1: 10, 2: 10}, ("finished", 10)), now=5.0)
    assert made.start(5.0) == []
    assert made.timer == 65.0
    assert made.on_timer(64.0) == []
    made.opened(1, NONCE, 64.5)
    assert made.on_timer(65.0) == []
    made.closed(1, 66.0)
    assert made.timer == 126.0
    assert made.on_timer(126.0) == [Done("finished", 10)]


def test_a_divergence_is_stored_and_passed_on():
    made = node()
    join(made, 1), join(made, 2)
    note, store = made.received(2, Bye("diverged", 7), None, 0.0)
    assert "diverged at iteration 7" in note.text
    assert store.checkpoint.end == ("diverged", 7)
    assert made.saved(0, 0.0) == [*send_all(Bye("diverged", 7))]
    assert made.received(1, Bye("diverged", 7), None, 0.0) == [Done("diverged", 7)]


def send_all(message):
    return [type(effect)(peer, message) for peer in (1, 2) for effect in node().opened(peer, NONCE, 0.0)]


def test_a_divergence_of_its_own():
    made = node(neighbours=(1,))
    join(made)
    assert of(made.diverged(3, 0.0), Store)
    assert made.diverged(4, 0.0) == []
    assert sent(made.saved(0, 0.0)) == [Bye("diverged", 3)]


def test_a_drained_node_saves_and_leaves():
    made = node(neighbours=(1,), fires=lambda k: ())
    join(made, need=None)
    made.advance(1, "one", 0.0)
    assert of(made.drain(0.0), Store)
    effects = made.saved(1, 0.0)
    assert sent(effects) == [Ack(1), Bye("draining", 1)] and effects[-1] == Done("draining", 1)
    assert node(neighbours=(1,)).drain(0.0) == [Done("draining", 0)]


@pytest.mark.parametrize(("reason", "refused"), [("draining", False), ("refused", True)])
def test_a_neighbour_that_leaves_is_noted_and_closed(reason, refused):
    made = node()
    join(made)
    note, close = made.received(1, Bye(reason, 3, "because"), None, 0.0)
    assert reason in note.text and "because" in note.text
    assert close == Close(1, f"BYE: {reason}", refused)
    assert not made.links[1].open


def test_silence_is_asked_about_and_then_ends_the_connection():
    made = node(neighbours=(1,))
    made.opened(1, NONCE, 0.0)
    assert made.timer == 5.0
    made.received(1, hello(), None, 1.0)
    assert made.received(1, Pong(1.0), None, 1.1) == []
    assert made.links[1].liveness.round_trip == pytest.approx(0.1)
    assert made.on_timer(3.5) == []
    assert sent(made.on_timer(made.timer)) == [Ping(pytest.approx(3.6))]
    made.progressed(1, 8.0)
    assert made.on_timer(8.7) == [] and made.timer == 13.0
    (close,) = made.on_timer(13.0)
    assert close == Close(1, "no progress for 5 s", False)
    assert made.timer is None
    assert sent(made.opened(1, NONCE, 14.0))[0].need == (0, 0)


def test_patience_grows_with_the_round_trip_and_can_be_set():
    made = node(neighbours=(1,))
    join(made)
    made.received(1, Pong(0.0), None, 2.0)
    assert made.links[1].liveness.patience == 40.0
    assert node(neighbours=(1,), patience=2.0).links[1].liveness.patience == 2.0


def test_the_end_of_an_earlier_connection_changes_nothing():
    made = node(neighbours=(1,))
    join(made)
    made.opened(1, b"f" * 16, 1.0)
    made.closed(1, 1.0, NONCE)
    assert made.links[1].open
    made.closed(1, 1.0, b"f" * 16)
    assert not made.links[1].open


def test_pings_are_answered():
    made = node()
    join(made)
    assert sent(made.received(1, Ping(3.25), None, 0.0)) == [Pong(3.25)]


def test_a_neighbour_that_lost_its_disk_is_refused():
    made = node(neighbours=(1,))
    join(made, durable=4)
    made.closed(1, 0.0)
    made.opened(1, NONCE, 0.0)
    assert "lost its checkpoints" in made.received(1, hello(durable=3), None, 0.0)[-1].reason


def test_what_happens_between_the_hellos_is_said():
    made = node(neighbours=(1,), fires=lambda k: (1,) if k else ())
    made.opened(1, NONCE, 0.0)
    made.advance(1, "one", 0.0)
    made.save(0.0)
    made.saved(1, 0.0)
    assert of(sent(made.received(1, hello(need=None), None, 0.0)), Ack) == [Ack(1)]


def test_a_position_that_is_entered_between_the_hellos_is_asked_for():
    made = node(neighbours=(1,), retain=9)
    join(made)
    made.received(1, State(0, 0), "x", 0.0)
    made.received(1, State(1, 0), "y", 0.0)
    made.closed(1, 0.0)
    (effect,) = made.opened(1, NONCE, 0.0)
    assert isinstance(effect.message, Hello) and effect.message.need is None
    for k in (0, 1):
        assert of(made.offer(k, 0, {1: k}, 0.0), Deliver)
        made.advance(k + 1, k, 0.0)
    assert made.offer(2, 0, {1: "z"}, 0.0) == []
    assert of(sent(made.received(1, hello(need=None), None, 0.0)), Need) == [Need(2, 0)]


def test_an_input_takes_a_few_microseconds():
    made = node(neighbours=(1,), iterations=3000, retain=10_000)
    join(made)
    begin = time.process_time()
    for k in range(3000):
        made.offer(k, 0, {1: b""}, 0.0)
        made.received(1, State(k, 0), b"", 0.0)
        made.advance(k + 1, None, 0.0)
    assert (time.process_time() - begin) / 9000 < 100e-6  # 3 µs on an idle machine
