"""Messages of a client as the payloads of frames."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from torch import Tensor

from dspodfl.engine import Message, packed_by_peer
from dspodfl.nodes.schema import Schema


def finite_payloads(
    schema: Schema, phase: int, messages: Mapping[int, Message], known: Tensor | None
) -> dict[int, memoryview] | None:
    """Return messages as bytes; what several neighbours get is packed and checked once.

    Args:
        schema: What payloads consist of.
        phase: The phase.
        messages: Neighbour -> message.
        known: A tensor that is known to be finite, such as the model; None: none is.

    Returns:
        Neighbour -> bytes; None where a value is not finite.
    """
    payloads = packed_by_peer(messages)
    checked: list[int] = []
    for peer, message in messages.items():
        if (len(message) == 1 and message[0] is known) or id(message) in checked:
            continue
        checked.append(id(message))
        if not schema.finite(phase, np.frombuffer(payloads[peer], np.uint8)):
            return None
    return payloads
