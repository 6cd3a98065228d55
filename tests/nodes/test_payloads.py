"""Messages as payloads: packed once, checked once."""

import numpy as np
import torch

from dspodfl.nodes import Schema
from dspodfl.nodes.payloads import finite_payloads

SCHEMA = Schema.of([[("float32", (1, 3))]])


def test_what_several_neighbours_get_is_one_object():
    message = (torch.ones(1, 3),)
    found = finite_payloads(SCHEMA, 0, {1: message, 2: message, 5: (torch.zeros(1, 3),)}, None)
    assert found[1] is found[2] and bytes(found[1]) == np.ones(3, "<f4").tobytes() and bytes(found[5]) == bytes(12)


def test_a_value_that_is_not_finite_is_found_in_any_message():
    fine, gone = (torch.ones(1, 3),), (torch.tensor([[0.0, torch.nan, 0.0]]),)
    assert finite_payloads(SCHEMA, 0, {1: fine, 2: gone}, fine[0]) is None
    assert finite_payloads(SCHEMA, 0, {1: fine, 2: gone}, gone[0]) is not None, "what is known is not looked at again"
