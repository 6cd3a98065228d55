"""Helpers of the tests: a node with two neighbours, and the messages that it sends."""

from dspodfl.protocol import VERSION, Checkpoint, Hello, LockstepNode, Plan, Send

NONCE = b"0123456789abcdef"


def plan(id=0, neighbours=(1, 2), fires=None, iterations=10, **settings):
    settings = {"every_iterations": None, "every_seconds": None, "run_id": "run", "keep": 1} | settings
    return Plan(id, neighbours, fires or (lambda k: neighbours), iterations, **settings)


def node(k=0, checkpoint=None, **settings):
    made = LockstepNode(plan(**settings), checkpoint or Checkpoint(k, f"value {k}"))
    assert made.start(0.0) == []
    return made


def hello(peer=1, need=(0, 0), durable=0, **changed):
    fields = {
        "version": VERSION,
        "id": peer,
        "run_id": "run",
        "nonce": NONCE,
        "config": (),
        "schema": bytes(32),
        "need": need,
        "durable": durable,
    }
    return Hello(**fields | changed)


def join(made, peer=1, now=0.0, **fields):
    """Open a session; return what the node sent after the HELLO of the peer, without the PING."""
    made.opened(peer, NONCE, now)
    effects = made.received(peer, hello(peer, **fields), None, now)
    return [effect for effect in effects if "Ping" not in repr(effect)]


def sent(effects, peer=None):
    """The messages among effects."""
    return [effect.message for effect in effects if isinstance(effect, Send) and peer in (None, effect.peer)]


def of(effects, kind):
    """The effects of a kind."""
    return [effect for effect in effects if isinstance(effect, kind)]
