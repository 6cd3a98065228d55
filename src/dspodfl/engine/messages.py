"""Messages between two clients as bytes: their schema, packing and unpacking.

A message is a tuple of tensors of one row. Its bytes are those of the tensors, one after the other, little-endian.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dspodfl.errors import InputError

_NATIVE = sys.byteorder == "little"
Message = tuple[Tensor, ...]
"""What one client sends another in a phase: tensors of one row each, (1, …)."""


@dataclass(frozen=True)
class Part:
    """One tensor of a message."""

    dtype: str
    """Its name in NumPy and PyTorch, such as "float32"."""
    shape: tuple[int, ...]
    """(1, …)."""

    @property
    def size(self) -> int:
        """The number of bytes."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    @staticmethod
    def of(tensor: Tensor) -> Part:
        """Return the part that a tensor is."""
        return Part(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))


@dataclass(frozen=True)
class Schema:
    """The messages of an iteration, phase by phase, and the parameters of the model."""

    phases: tuple[tuple[Part, ...], ...]
    parameters: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """Names and shapes."""

    def size(self, phase: int) -> int:
        """Return the bytes of a message of a phase."""
        return self.sizes[phase]

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The bytes of a message of each phase."""
        return tuple(sum(part.size for part in parts) for parts in self.phases)

    @property
    def digest(self) -> bytes:
        """SHA-256 of all of it: two clients can talk to each other if theirs are equal."""
        text = json.dumps([[[part.dtype, part.shape] for part in parts] for parts in self.phases])
        return hashlib.sha256((text + json.dumps(self.parameters)).encode()).digest()

    def unpacked(self, phase: int, buffer: Any) -> Message:
        """Return the message in a buffer; its tensors are views of the buffer where that is aligned and writable.

        Args:
            phase: The phase.
            buffer: Bytes, or what has such memory; exactly as many as `size` says.

        Returns:
            The tensors.

        Raises:
            InputError: The buffer is shorter or longer.
        """
        data = np.frombuffer(buffer, dtype=np.uint8)
        total, arrays = self._plan[phase]
        if len(data) != total:
            raise InputError("a message", f"of {len(data)} bytes", f"of {total} in phase {phase}")
        found = []
        for dtype, native, shape, start in arrays:
            values = np.ndarray(shape, dtype, data, start)
            flags = values.flags
            if not (flags.writeable and flags.aligned and native):
                values = values.astype(dtype.newbyteorder("="))
            found.append(torch.from_numpy(values))
        return tuple(found)

    @cached_property
    def _plan(self) -> list[tuple[int, list[tuple[np.dtype[Any], bool, tuple[int, ...], int]]]]:
        """The bytes of each phase; of each tensor the dtype, whether it is this machine's, the shape, its place."""
        found = []
        for parts in self.phases:
            arrays, start = [], 0
            for part in parts:
                dtype = np.dtype(part.dtype).newbyteorder("<")
                arrays.append((dtype, dtype.isnative, part.shape, start))
                start += part.size
            found.append((start, arrays))
        return found


def schema_of(phases: Mapping[int, Message], parameters: Mapping[str, Any]) -> Schema:
    """Return the schema of messages.

    Args:
        phases: A message of each phase, by its number.
        parameters: The shapes of the model's parameters by name.

    Returns:
        The schema.
    """
    parts = tuple(tuple(Part.of(tensor) for tensor in phases[phase]) for phase in range(len(phases)))
    return Schema(parts, tuple((name, tuple(shape)) for name, shape in parameters.items()))


def packed(message: Message) -> memoryview:
    """Return the bytes of a message; a view of the tensor where there is one alone.

    Args:
        message: The tensors.

    Returns:
        The bytes, which must not be written to.

    >>> packed((torch.tensor([[1.0]]), torch.tensor([[2]], dtype=torch.uint8))).hex()
    '0000803f02'
    """
    arrays = [_little_endian(tensor) for tensor in message]
    whole = arrays[0] if len(arrays) == 1 else np.concatenate([np.zeros(0, dtype=np.uint8), *arrays])
    return memoryview(whole)  # type: ignore[arg-type]


def packed_by_peer(messages: Mapping[int, Message]) -> dict[int, memoryview]:
    """Return the bytes of the messages to several neighbours; what is the same for all is packed once.

    Args:
        messages: The messages by neighbour.

    Returns:
        Their bytes by neighbour.
    """
    known = {id(message): message for message in messages.values()}
    found = {key: packed(message) for key, message in known.items()}
    return {peer: found[id(message)] for peer, message in messages.items()}


def _little_endian(tensor: Tensor) -> np.ndarray:
    array = tensor.detach().numpy().reshape(-1)
    return (array if _NATIVE else array.astype(array.dtype.newbyteorder("<"), copy=False)).view(np.uint8)
