from .messages import FINGERPRINT_BYTES as FINGERPRINT_BYTES
from .messages import MAX_TEXT as MAX_TEXT
from .messages import NONCE_BYTES as NONCE_BYTES
from .messages import SCHEMA_BYTES as SCHEMA_BYTES
from .messages import VERSION as VERSION
from .messages import Ack as Ack
from .messages import AnyMessage as AnyMessage
from .messages import Bye as Bye
from .messages import Hello as Hello
from .messages import Message as Message
from .messages import Need as Need
from .messages import Ping as Ping
from .messages import Pong as Pong
from .messages import Position as Position
from .messages import Save as Save
from .messages import State as State

__all__ = [
    "FINGERPRINT_BYTES",
    "MAX_TEXT",
    "NONCE_BYTES",
    "SCHEMA_BYTES",
    "VERSION",
    "Ack",
    "AnyMessage",
    "Bye",
    "Hello",
    "Message",
    "Need",
    "Ping",
    "Pong",
    "Position",
    "Save",
    "State",
]
