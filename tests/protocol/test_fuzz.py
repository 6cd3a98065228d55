"""Messages of valid types and nonsense values: no crash, nothing applied, no growth."""

import random

import pytest
from tests.protocol.nodes import NONCE, hello, join, node

from dspodfl.protocol import Ack, Bye, Close, Need, Note, Ping, Pong, Save, Send, State

MESSAGES = 20_000
ITERATIONS = 50


def fires(k):
    return (1, 2) if k % 3 == 0 else ()


def nonsense(rng):
    """A message that no honest neighbour sends to a node at the start of iteration 3, and a payload."""
    number = rng.choice([0, 1, 2, 4, 5, 7, ITERATIONS, 10**6, 2**53 - 1, rng.randrange(2**53)])
    phase = rng.choice([1, 2, 2**16 - 1, rng.randrange(1, 2**16)])
    beyond = rng.choice([ITERATIONS + 1, 2**40, 2**53 - 1])
    resting = rng.choice([1, 2, 4, 5, 7, ITERATIONS, 2**53 - 1])
    kind = rng.randrange(10)
    payload = rng.choice([None, b"", b"payload", 7])
    return [
        (State(number, phase), payload),
        (State(resting, 0), payload),
        (State(3, 0), None),
        (Need(number, phase), payload),
        (Need(resting, 0), payload),
        (Save(beyond), payload),
        (Ack(rng.choice([0, 1, 2, beyond])), payload),
        (Pong(rng.choice([0.0, -1e300, 1e300, rng.random()])), payload),
        (Bye("finished", number), payload),
        (hello(rng.randrange(9), need=(number, phase), durable=beyond, run_id=str(number)), payload),
    ][kind]


def state_of(made):
    """Everything that a node remembers, except when it last heard of somebody."""
    links = {
        peer: {name: getattr(link, name) for name in link.__slots__ if name not in ("plan", "liveness", "down_since")}
        for peer, link in made.links.items()
    }
    rest = {name: value for name, value in vars(made).items() if name not in ("links", "plan")}
    return repr((links, rest))


def at_three():
    made = node(iterations=ITERATIONS, fires=fires)
    for peer in (1, 2):
        join(made, peer, durable=2, need=(3, 0))
    made.offer(0, 0, {1: "a", 2: "b"}, 0.0)
    for peer in (1, 2):
        made.received(peer, State(0, 0), "x", 0.0)
    for k in (1, 2, 3):
        made.advance(k, f"value {k}", 0.0)
    return made


@pytest.mark.parametrize("seed", range(4))
def test_nonsense_does_nothing(seed):
    rng = random.Random(seed)
    made = at_three()
    before = state_of(made)
    for _ in range(MESSAGES // 4):
        assert made.received(rng.choice([0, 1, 2, 3, -1, 10**9]), *nonsense(rng), 1.0) == []
    assert state_of(made) == before
    made.offer(3, 0, {1: "a", 2: "b"}, 1.0)
    made.received(1, State(3, 0), "x", 1.0)
    assert made.received(2, State(3, 0), "y", 1.0)[-1].payloads == {1: "x", 2: "y"}


def test_nonsense_as_the_first_message_closes():
    rng = random.Random(5)
    for _ in range(300):
        made = node(iterations=ITERATIONS, fires=fires)
        made.opened(1, NONCE, 0.0)
        before = repr((made.links[1].kept, made.links[1].held, made.links[1].durable, made.k))
        effects = made.received(1, *nonsense(rng), 0.0)
        assert isinstance(effects[-1], Close)
        assert repr((made.links[1].kept, made.links[1].held, made.links[1].durable, made.k)) == before


def test_valid_messages_in_any_order_keep_the_bounds():
    """A neighbour that breaks the protocol with valid values: bounded effects, bounded memory, and no exception."""
    rng = random.Random(6)
    for _ in range(100):
        made = at_three()
        for _ in range(100):
            number = rng.randrange(ITERATIONS + 1)
            message, payload = rng.choice(
                [
                    (State(number, 0), b"x"),
                    (Need(number, 0), None),
                    (Save(number), None),
                    (Ack(number), None),
                    (Ping(0.5), None),
                    (Bye(rng.choice(["finished", "draining", "refused"]), number), None),
                    (hello(1, need=(3, 0), durable=rng.randrange(4)), None),
                ]
            )
            if not made.links[1].open:
                made.opened(1, NONCE, 1.0)
            effects = made.received(1, message, payload, 1.0)
            assert len(effects) <= 6
            assert all(isinstance(effect, Send | Close | Note) or "Store" in repr(effect) for effect in effects)
            link = made.links[1]
            assert len(link.held) <= 2 and link.amount <= made.plan.retain
        assert made.k == 3 and made.waiting_for() == []
