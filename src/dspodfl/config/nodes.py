"""The table ``[nodes]``: how the clients of a study run as processes that train over a network."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from dspodfl.config.base import WORD, Positive, Table, as_list, refuse

UNITS = {"B": 1, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
"""Units of sizes in bytes."""
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*")
_ALLOWED_SIZE = f"a number of bytes and a unit of {', '.join(UNITS)}, such as '256 MB'"
_ADDRESS = re.compile(r"(?:\[[0-9a-fA-F:.%]+\]|[^\s:\[\]]+):\d{1,5}")
_RUN_ID = re.compile(r"[A-Za-z0-9._-]{1,80}")


def size_in_bytes(text: str) -> int | None:
    """Return the bytes that a size means.

    Args:
        text: A number and a unit of `UNITS`.

    Returns:
        The number of bytes; None where the text is no size.

    >>> size_in_bytes("256 MB"), size_in_bytes("2 models")
    (256000000, None)
    """
    found = _SIZE.fullmatch(text)
    if found is None or found[2] not in UNITS:
        return None
    return int(float(found[1]) * UNITS[found[2]])


def _is_address(text: str) -> bool:
    return _ADDRESS.fullmatch(text) is not None and int(text.rpartition(":")[2]) <= 65535


class Tls(Table):
    """The certificate and the key of this node, and whom it trusts."""

    certificate: str | None = Field(
        None,
        description="the certificate of this node, PEM; absent: node.crt beside the configuration",
        examples=["node.crt"],
    )
    key: str | None = Field(
        None,
        description="its private key, PEM, readable by its owner alone; absent: node.key beside the configuration",
        examples=["node.key"],
    )
    ca: str | None = Field(
        None,
        description="the certificate of an organisation's CA; a node is then who its certificate says: URI "
        "dspodfl:<run_id>/<id>. Absent: the certificates listed under nodes.peer are trusted, and no other",
        examples=["ca.pem"],
    )


class Peer(Table):
    """One node of the network: who it is, and where."""

    id: Annotated[int, Field(ge=0, lt=WORD)] = Field(description="the client that this node is", examples=[3])
    address: str = Field(description="where it listens, host:port", examples=["pi3.local:7733"])
    certificate: Annotated[list[str], BeforeValidator(lambda v: [v] if isinstance(v, str) else as_list(v))] = Field(
        [],
        description="its certificate, PEM; two files while it is being replaced; not needed with nodes.tls.ca",
        examples=["keys/3.crt"],
    )
    key: str | None = Field(
        None,
        description="the fingerprint of its certificate, sha256:…; where it is given, it must agree",
        examples=["sha256:…"],
    )

    @field_validator("address")
    @classmethod
    def _address(cls, value: str) -> str:
        if not _is_address(value):
            refuse("nodes.peer.address", value, "of the form host:port, an IPv6 address in brackets")
        return value

    @field_validator("key")
    @classmethod
    def _key(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"sha256:[0-9a-f]{64}", value):
            refuse("nodes.peer.key", value, "sha256: and 64 hexadecimal digits, as 'dspodfl keys show' prints them")
        return value


class Nodes(Table):
    """How clients run as processes of their own. None of it changes what is computed."""

    clock: Literal["lockstep"] = Field(
        "lockstep", description="lockstep: iterations are those of the simulator, and events are drawn"
    )
    run_id: str = Field("run", description="the name of the run; nodes of two runs never exchange anything")
    retain: str = Field(
        "256 MB",
        description="the most that a node keeps for one neighbour until it is safe there; at least an iteration's "
        "messages and one more",
    )
    patience: Literal["auto"] | Positive = Field(
        "auto",
        description="seconds without progress after which a connection is made again; auto: 5, or 20 round trips where "
        "that is more",
    )
    listen: str | None = Field(
        None,
        description="where this node listens, host:port; absent: the port of its own entry in nodes.peer, all "
        "interfaces",
        examples=["0.0.0.0:7733"],
    )
    tls: Tls = Field(
        Tls(),
        description="the certificate and the key of this node",
        examples=[{"certificate": "node.crt", "key": "node.key"}],
    )
    peer: Annotated[list[Peer], BeforeValidator(as_list)] = Field(
        [],
        description="the nodes: id, address and certificate of each; 'dspodfl keys new' prints them as [[nodes.peer]]",
        examples=[[{"id": 3, "address": "pi3.local:7733", "certificate": "keys/3.crt"}]],
    )

    @field_validator("run_id")
    @classmethod
    def _run_id(cls, value: str) -> str:
        if not _RUN_ID.fullmatch(value):
            refuse("nodes.run_id", value, "1 to 80 letters, digits, points, hyphens and underscores")
        return value

    @field_validator("retain")
    @classmethod
    def _retain(cls, value: str) -> str:
        if not size_in_bytes(value):
            refuse("nodes.retain", value, _ALLOWED_SIZE)
        return value

    @field_validator("listen")
    @classmethod
    def _listen(cls, value: str | None) -> str | None:
        if value is not None and not _is_address(value):
            refuse("nodes.listen", value, "of the form host:port, an IPv6 address in brackets")
        return value

    @model_validator(mode="after")
    def _once(self) -> Any:
        ids = [peer.id for peer in self.peer]
        twice = next((i for i in ids if ids.count(i) > 1), None)
        if twice is not None:
            refuse("nodes.peer.id", twice, "that of one entry alone")
        return self

    @property
    def retain_bytes(self) -> int:
        """``retain`` in bytes."""
        found = size_in_bytes(self.retain)
        assert found is not None
        return found
