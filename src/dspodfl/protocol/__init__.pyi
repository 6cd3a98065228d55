from .effects import Checkpoint as Checkpoint
from .effects import Close as Close
from .effects import Deliver as Deliver
from .effects import Done as Done
from .effects import Effect as Effect
from .effects import Note as Note
from .effects import Send as Send
from .effects import Store as Store
from .hello import LOST as LOST
from .hello import refusal as refusal
from .lockstep_link import LockstepLink as LockstepLink
from .lockstep_node import LockstepNode as LockstepNode
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
from .messages import Reason as Reason
from .messages import Save as Save
from .messages import State as State
from .plan import Plan as Plan
from .session import NO_SESSION as NO_SESSION
from .session import SESSION_BYTES as SESSION_BYTES
from .session import FrameCounters as FrameCounters
from .session import Liveness as Liveness
from .session import session_id as session_id

__all__ = [
    "FINGERPRINT_BYTES",
    "LOST",
    "MAX_TEXT",
    "NONCE_BYTES",
    "NO_SESSION",
    "SCHEMA_BYTES",
    "SESSION_BYTES",
    "VERSION",
    "Ack",
    "AnyMessage",
    "Bye",
    "Checkpoint",
    "Close",
    "Deliver",
    "Done",
    "Effect",
    "FrameCounters",
    "Hello",
    "Liveness",
    "LockstepLink",
    "LockstepNode",
    "Message",
    "Need",
    "Note",
    "Ping",
    "Plan",
    "Pong",
    "Position",
    "Reason",
    "Save",
    "Send",
    "State",
    "Store",
    "refusal",
    "session_id",
]
