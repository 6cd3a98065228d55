"""Frames: what is written is what is read; what is damaged is refused before anything is allocated."""

import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from benchmarks import nodes_fuzz
from tests.nodes.ends import SCHEMA, hello

from dspodfl.nodes import CHUNK, Schema, Wire, WireError
from dspodfl.nodes.wire import __file__ as wire_file
from dspodfl.protocol import Ack, Need, Ping, State

PREFIX = struct.Struct("<BBHIQQ8s")
LARGE = Schema.of([[("uint8", (3 * CHUNK + 5,))]])


def pair(schema=SCHEMA):
    """Both ends of a connection after HELLO."""
    low, high = Wire(0, 1, schema), Wire(1, 0, schema)
    low.put(hello(0))
    high.put(hello(1))
    move(low, high)
    move(high, low)
    return low, high


def move(source, target, step=None):
    """Carry all that one end has to write to the other; ``step``: bytes at a time."""
    found = []
    while (frame := source.sender.take()) is not None:
        data = b"".join(frame)
        for start in range(0, len(data), step or len(data)):
            delivered, error = nodes_fuzz.fed(target, data[start : start + (step or len(data))])
            assert error is None
            found += delivered
    return found


def frames_of(wire):
    found = []
    while (frame := wire.sender.take()) is not None:
        found.append(b"".join(frame))
    return found


@pytest.mark.parametrize("step", [None, 1, 7, 33])
def test_messages_and_payloads_arrive_as_they_were_sent(step):
    low, high = pair()
    payload = np.arange(4, dtype=np.float32)
    low.put(Ping(2.5))
    low.put(State(3, 0), payload)
    assert move(low, high, step) == [(Ping(2.5), None), (State(3, 0), payload.tobytes())]
    low.put(State(3, 1), bytes(19))
    low.put(Ack(4))
    assert move(low, high, step) == [(Ack(4), None), (State(3, 1), bytes(19))]


def test_messages_without_payload_overtake_chunks_but_never_each_other():
    low, high = pair(LARGE)
    payload = np.random.default_rng(0).integers(0, 256, LARGE.size(0), np.uint8)
    low.put(State(0, 0), payload)
    low.put(State(1, 0), payload[::-1].copy())
    first = low.sender.take()
    assert len(first[1]) == CHUNK
    for t in range(3):
        low.put(Ping(float(t)))
    delivered, error = nodes_fuzz.fed(high, b"".join(first))
    assert (delivered, error) == ([], None)
    assert high.receiver.progress == (CHUNK, LARGE.size(0))
    assert move(low, high) == [
        *((Ping(float(t)), None) for t in range(3)),
        (State(0, 0), payload.tobytes()),
        (State(1, 0), payload[::-1].tobytes()),
    ]
    assert high.receiver.progress is None


def test_a_payload_is_received_into_the_array_that_is_handed_over():
    low, high = pair(LARGE)
    low.put(State(0, 0), np.zeros(LARGE.size(0), np.uint8))
    head, body = low.sender.take()
    nodes_fuzz.fed(high, head)
    buffer = high.receiver.buffer()
    assert len(buffer) == CHUNK == len(body)
    buffer[:] = b"\x07" * CHUNK
    assert list(high.filled(CHUNK)) == []
    while (frame := low.sender.take()) is not None:
        delivered = nodes_fuzz.fed(high, frame[0])[0]
        buffer = high.receiver.buffer()
        delivered += high.filled(len(buffer))
    payload = delivered[0][1]
    assert payload[:CHUNK].tolist() == [7] * CHUNK
    assert payload.base is None and payload.nbytes == LARGE.size(0)  # one array, and it is the one that was filled


def test_the_session_is_the_same_at_both_ends_and_new_for_every_connection():
    low, high = pair()
    assert low.sender.session == low.receiver.session == high.sender.session == high.receiver.session != bytes(8)
    assert pair()[0].sender.session != low.sender.session


def test_nothing_but_hello_is_written_before_both_hellos_are_here():
    low, high = Wire(0, 1, SCHEMA), Wire(1, 0, SCHEMA)
    with pytest.raises(ValueError, match="HELLO"):
        low.put(Ping(1.0))
    low.put(hello(0))
    low.put(Ping(1.0))
    with pytest.raises(ValueError, match="HELLO"):
        low.put(hello(0))
    assert len(move(low, high)) == 1 and not low.sender.waiting
    high.put(hello(1))
    move(high, low)
    assert move(low, high) == [(Ping(1.0), None)]


def test_a_neighbours_certificate_with_another_nodes_id_is_refused():
    low, high = Wire(0, 1, SCHEMA), Wire(2, 0, SCHEMA)
    high.put(hello(2))
    delivered, error = nodes_fuzz.fed(low, frames_of(high)[0])
    assert delivered == [] and error == "it claims to be node 2, with the certificate of node 1"


def test_frames_of_an_earlier_session_are_refused():
    low, _ = pair()
    low.put(Ping(1.0))
    old = frames_of(low)[0]
    _, fresh = pair()
    assert nodes_fuzz.fed(fresh, old) == ([], "a frame of another session")


def test_a_gap_in_the_counters_is_refused():
    low, high = pair()
    low.put(Ping(1.0))
    low.put(Need(1, 0))
    assert nodes_fuzz.fed(high, frames_of(low)[1]) == ([], "frames are missing: number 2 came where 1 was due")


@pytest.mark.parametrize(
    ("message", "payload"), [(State(0, 0), bytes(15)), (State(0, 0), None), (Ping(1.0), bytes(16))]
)
def test_a_sender_refuses_what_was_not_agreed(message, payload):
    low, _ = pair()
    with pytest.raises(ValueError, match="payload"):
        low.put(message, payload)
    assert not low.sender.waiting


@pytest.mark.parametrize("total", [2**63, 2**64 - 1, 2**40, 17])
@pytest.mark.parametrize("lane", [0, 1])
def test_a_frame_of_2_63_bytes_allocates_nothing(total, lane):
    low, _ = pair()
    low.put(State(0, 0), bytes(16))
    frame = frames_of(low)[0]
    version, _, header, small, _, counter, _ = PREFIX.unpack_from(frame)
    for body in (small, min(total, 2**32 - 1)):
        wire = pair()[1]
        evil = PREFIX.pack(version, lane, header, body, total, counter, wire.receiver.session) + frame[PREFIX.size :]
        tracemalloc.start()
        delivered, error = nodes_fuzz.fed(wire, evil)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert delivered == [] and error is not None and peak < 20_000


def test_an_oversized_header_is_refused_before_it_is_read():
    _, high = pair()
    head = PREFIX.pack(1, 0, 5000, 0, 0, 1, high.receiver.session)
    assert nodes_fuzz.fed(high, head)[1] == "a frame of 5000 + 0 of 0 bytes (type 0) is not allowed here"


def test_nothing_in_the_room_unpickles():
    files = list(Path(wire_file).parent.rglob("*.py"))
    assert len(files) > 8 and not [file for file in files if "pickle" in file.read_text()]


def test_values_that_are_not_finite_are_refused():
    low, high = pair()
    low.put(State(5, 0), np.array([1, 2, np.nan, 4], np.float32))
    delivered, error = nodes_fuzz.fed(high, frames_of(low)[0])
    assert delivered == [] and error == "the STATE of iteration 5 has values that are not finite"


def test_an_error_names_no_control_characters():
    assert str(WireError("a\x1b[31m")) == "a\\x1b[31m"


def test_twenty_thousand_damaged_frames_crash_nothing_and_deliver_nothing():
    nodes_fuzz.fuzz(500)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    refused = nodes_fuzz.fuzz(200, seed=2)
    assert tracemalloc.get_traced_memory()[0] - before < 100_000
    tracemalloc.stop()
    refused = nodes_fuzz.fuzz(20_000, seed=3)
    assert len(refused) == nodes_fuzz.KINDS and all(count > 300 for kind, count in refused.items() if kind != "cut")
    assert refused["cut"] == 0


def test_the_fuzzer_finds_a_decoder_that_checks_too_little(monkeypatch):
    monkeypatch.setattr(Schema, "finite", lambda *_: True)
    with pytest.raises(AssertionError, match="not finite"):
        nodes_fuzz.fuzz(2000)
