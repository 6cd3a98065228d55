"""Messages as bytes: their sizes, their schema, and what they are unpacked to."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.engine.clients import CASES, COMPRESSED, world
from tests.worlds import BATCH

from dspodfl.algorithms import bytes_sent
from dspodfl.engine import Client, packed, packed_by_peer
from dspodfl.engine.messages import schema_of
from dspodfl.engine.on_nodes import RowLayout, probed
from dspodfl.errors import InputError


@pytest.mark.parametrize("compressor", COMPRESSED)
def test_compressed_messages_have_the_bytes_that_the_rule_counts(compressor):
    _, rule, _ = world("choco", compressor=compressor)
    for shapes in (((10, 784), (10,)), ((7, 3), (7,))):
        layout = RowLayout(shapes)
        (size,) = schema_of(probed(rule, layout, torch.float32, directed=False), {}).sizes
        counted = rule.sent(layout.parameters)
        assert size == counted if compressor != "qsgd" else counted <= size <= 1.01 * counted + 8


SENT = {"swift": 2.0, "power_gossip": 36 / 30}
"""What is really sent over what ``sent`` counts. Swift: one of two ends sends a model there, and both do here. Power
gossip: vectors are as long as the longer side of a matrix in every turn, and not in every second one."""


@pytest.mark.parametrize("name", CASES)
def test_bytes_of_messages_are_those_that_the_rule_counts(name):
    run, rule, model = world(name)
    client = Client(run, rule, model, 0, batch_size=BATCH)
    assert sum(client.schema.sizes) == SENT.get(name, 1.0) * bytes_sent(rule, model.parameters)


def test_clients_of_other_models_have_other_schemas():
    run, rule, model = world("dspodfl")
    one = Client(run, rule, model, 0, batch_size=BATCH).schema
    assert one.digest != Client(run, rule, model, 0, batch_size=BATCH, dtype=torch.float64).schema.digest
    assert one.digest != Client(run, world("choco")[1], model, 0, batch_size=BATCH).schema.digest
    other = replace(one, parameters=(("another.weight", one.parameters[0][1]), *one.parameters[1:]))
    assert other.sizes == one.sizes and other.digest != one.digest


def test_a_message_of_another_size_is_refused():
    run, rule, model = world("dspodfl")
    client = Client(run, rule, model, 0, batch_size=BATCH)
    with pytest.raises(InputError, match="of 3 bytes"):
        client.unpacked(0, b"abc")


def test_what_is_the_same_for_all_neighbours_is_packed_once():
    one, other = (torch.ones(1, 3),), (torch.zeros(1, 3),)
    found = packed_by_peer({1: one, 2: one, 5: other})
    assert found[1] is found[2] and bytes(found[5]) == bytes(12) and bytes(found[1]) == bytes(packed(one))


def test_tensors_are_views_of_a_buffer_that_can_be_written_to():
    run, rule, model = world("dspodfl")
    client = Client(run, rule, model, 0, batch_size=BATCH)
    buffer = np.zeros(client.schema.sizes[0], dtype=np.uint8)
    (tensor,) = client.unpacked(0, buffer)
    buffer[:] = 255
    assert torch.isnan(tensor).all()
    (copy,) = client.unpacked(0, bytes(buffer))
    assert torch.isnan(copy).all()
