"""What both transports do: messages, lanes, counters, cuts and faults are the same over TLS and in memory."""

import asyncio

import numpy as np
import pytest
from tests.nodes.ends import Pair, until

from dspodfl.errors import InputError
from dspodfl.nodes import CHUNK, LossyTransport, RefusedError, Schema, split_address
from dspodfl.protocol import Ack, Bye, Hello, Ping, State

LARGE = Schema.of([[("uint8", (20 * CHUNK + 5,))]])


@pytest.fixture(params=["memory", "tls"])
def where(request, keys):
    return keys if request.param == "tls" else None


def test_hello_comes_first_and_messages_arrive_as_they_were_sent(where):
    async def talk():
        async with Pair(where) as pair:
            for sender, other in ((pair.low, pair.high), (pair.high, pair.low)):
                connection = sender.connections[0]
                payload = np.arange(4, dtype=np.float32)
                connection.send(State(1, 0), payload)
                await until(lambda other=other: len(other.messages) == 2)
                peer, message, body = other.messages[1]
                assert (peer, message, body) == (connection.wire.local, State(1, 0), payload.tobytes())
                assert isinstance(other.messages[0][1], Hello)
        assert pair.low.reasons and pair.high.reasons
        assert pair.low.refusals == pair.high.refusals == []

    asyncio.run(talk())


def test_what_is_sent_before_the_peers_hello_is_here_waits_for_it(where):
    async def talk():
        pair = Pair(where)
        greet = pair.high.opened
        pair.high.opened = lambda connection: (greet(connection), connection.send(Ack(9)))
        async with pair:
            await until(lambda: pair.low.after_hello == [Ack(9)])

    asyncio.run(talk())


def test_messages_overtake_a_payload_and_its_progress_is_reported(where):
    payload = np.random.default_rng(0).integers(0, 256, LARGE.size(0), np.uint8)

    async def talk():
        async with Pair(where, LARGE) as pair:
            connection = pair.high.connections[0]
            connection.send(State(0, 0), payload)
            for t in range(5):
                connection.send(Ping(float(t)))
            await until(lambda: len(pair.low.messages) == 7)
            *pings, state = pair.low.after_hello
            assert pings == [Ping(float(t)) for t in range(5)] and state == State(0, 0)
            assert pair.low.messages[-1][2] == payload.tobytes()
            parts = [done for done, total in pair.low.parts]
            assert parts == sorted(parts) and {total for _, total in pair.low.parts} == {payload.nbytes}
            assert len(set(parts)) > 2 and len(pair.high.written) > 2
            assert connection.counters.frames_sent == 1 + 21 + 5
            assert pair.low.connections[0].counters.received == connection.counters.sent

    asyncio.run(talk())


def test_closing_delivers_the_messages_that_wait_but_no_payload(where):
    async def talk():
        async with Pair(where, LARGE) as pair:
            connection = pair.low.connections[0]
            pair.high.connections[0].send(State(0, 0), np.zeros(LARGE.size(0), np.uint8))  # under way meanwhile
            connection.send(State(0, 0), np.zeros(LARGE.size(0), np.uint8))
            connection.send(Bye("finished", 7, "all is done"))
            connection.close("the run is over")
            connection.send(Ping(1.0))  # too late, and ignored
            await until(lambda: pair.low.reasons and pair.high.reasons)
            assert pair.high.after_hello == [Bye("finished", 7, "all is done")]
            assert pair.low.reasons == ["the run is over"]
            assert pair.high.reasons == ["the peer closed the connection"]
            assert not pair.transports[0].connections and not pair.transports[1].connections

    asyncio.run(talk())


def test_a_node_that_connects_again_replaces_its_connection(where):
    async def talk():
        async with Pair(where) as pair:
            await pair.transports[1].dial(0)
            await until(lambda: len(pair.low.messages) == 2 == len(pair.high.messages))
            await until(lambda: pair.low.reasons and pair.high.reasons)
            assert pair.low.connections[0].over and pair.high.reasons == ["the peer connected again"]
            pair.high.connections[1].send(Ack(3))
            await until(lambda: pair.low.after_hello == [Ack(3)])
            assert len(pair.transports[0].connections) == 1

    asyncio.run(talk())


def test_the_higher_id_dials_the_lower_and_neighbours_alone(where):
    async def talk():
        async with Pair(where) as pair:
            with pytest.raises(RefusedError, match="the higher id dials the lower"):
                await pair.transports[0].dial(1)
            with pytest.raises(RefusedError, match="node 5 is not a neighbour of node 1"):
                await pair.transports[1].dial(5)

    asyncio.run(talk())


def test_a_peer_that_says_no_hello_is_closed(where):
    async def talk():
        pair = Pair(where, hello_seconds=0.2)
        pair.high.greets = False
        try:
            address = await pair.transports[0].listen()
            if address is not None:
                pair.transports[1].addresses[0] = address
            await pair.transports[1].dial(0)
            await until(lambda: pair.low.reasons)
            assert pair.low.reasons == ["no HELLO for 0.2 s"] and pair.low.messages == []
        finally:
            for transport in pair.transports:
                await transport.close()

    asyncio.run(talk())


def test_frames_that_are_dropped_close_the_connection_at_the_next_one(where):
    async def talk(seed):
        pair = Pair(where)
        lossy = LossyTransport(pair.transports[1], drop=0.3, seed=seed)
        pair.transports[1].faults, faults = None, pair.transports[1].faults
        address = await pair.transports[0].listen()
        if address is not None:
            pair.transports[1].addresses[0] = address
        connection = await lossy.dial(0)
        await until(lambda: pair.low.messages and pair.high.messages)
        connection._faults = faults(0)  # after HELLO, so that there is a session
        for t in range(40):
            connection.send(Ping(float(t)))
        await until(lambda: pair.low.reasons and pair.high.reasons)
        seen = [message.t for message in pair.low.after_hello]
        assert pair.low.reasons[0].startswith("refused: frames are missing") and lossy.dropped > 0
        for transport in pair.transports:
            await transport.close()
        return seen

    first = asyncio.run(talk(5))
    assert first == [float(t) for t in range(len(first))] and len(first) < 40  # nothing after the gap
    assert asyncio.run(talk(5)) == first
    assert len({len(asyncio.run(talk(seed))) for seed in range(6, 10)}) > 1


def test_connections_are_cut_by_seed(where):
    async def talk():
        pair = Pair(where)
        lossy = LossyTransport(pair.transports[1], cut=0.2, seed=3)
        address = await pair.transports[0].listen()
        if address is not None:
            pair.transports[1].addresses[0] = address
        for _ in range(8):
            connection = await lossy.dial(0)
            for t in range(30):
                connection.send(Ping(float(t)))
            await until(lambda connection=connection: connection.over)
        await until(lambda: len(pair.low.reasons) + len(pair.low.refusals) == 8)
        assert lossy.cuts == 8 and "the connection was cut by a fault of the test" in pair.high.reasons
        for transport in pair.transports:
            await transport.close()

    asyncio.run(talk())


def test_a_network_in_memory_can_be_cut():
    async def talk():
        async with Pair() as pair:
            pair.network.cut(0, 1)
            pair.network.cut(0, 7)
            await until(lambda: pair.low.reasons and pair.high.reasons)
            assert set(pair.low.reasons + pair.high.reasons) == {"the connection was cut"}

    asyncio.run(talk())


@pytest.mark.parametrize("text", ["host", "host:", ":7733", "host:x", "host:70000", "::1:7733", "host:-1"])
def test_addresses_of_another_form_are_refused(text):
    with pytest.raises(InputError, match="of the form host:port"):
        split_address(text)


@pytest.mark.parametrize("probability", [-0.1, 1.1, float("nan")])
def test_faults_have_probabilities(probability):
    with pytest.raises(InputError):
        LossyTransport(Pair.__new__(Pair), drop=probability)
