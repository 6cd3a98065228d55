"""Messages survive the wire, and values out of range do not."""

import msgspec
import pytest

from dspodfl.protocol import VERSION, Ack, AnyMessage, Bye, Hello, Need, Ping, Pong, Save, State

ENCODER = msgspec.msgpack.Encoder()
DECODER = msgspec.msgpack.Decoder(AnyMessage)
HELLO = Hello(VERSION, 2, "run/a/0", b"n" * 16, (("graph.name", b"12345678"),), b"s" * 32, (3, 1), 4)
MESSAGES = [HELLO, State(5, 1), Need(5, 0), Save(7), Ack(6), Ping(1.5), Pong(1.5), Bye("finished", 9, "text")]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_survives_the_wire(message):
    assert DECODER.decode(ENCODER.encode(message)) == message


def test_a_state_costs_few_bytes():
    assert len(ENCODER.encode(State(100_000, 1))) <= 16


@pytest.mark.parametrize(
    "fields",
    [
        ["state", -1, 0],
        ["state", 2**53, 0],
        ["state", 1, 2**16],
        ["state", 1],
        ["state", 1, 0, 7],
        ["state", "1", 0],
        ["state", True, 0],
        ["unknown", 1],
        ["ping", float("nan")],
        ["ping", float("inf")],
        ["bye", "bored", 1, ""],
        ["bye", "finished", 1, "x" * 501],
        ["hello", 1, 2, "r", b"n" * 15, [], b"s" * 32, None, 0],
        ["hello", 1, 2, "r", b"n" * 16, [], b"s" * 31, None, 0],
        ["hello", 1, 2, "r", b"n" * 16, [["key", b"7"]], b"s" * 32, None, 0],
        ["hello", 1, 2, "r", b"n" * 16, [], b"s" * 32, [1, 0, 0], 0],
        ["hello", 1, 2, "r" * 401, b"n" * 16, [], b"s" * 32, None, 0],
        [],
        7,
    ],
    ids=str,
)
def test_other_fields_types_and_values_are_refused(fields):
    with pytest.raises(msgspec.ValidationError):
        DECODER.decode(ENCODER.encode(fields))
