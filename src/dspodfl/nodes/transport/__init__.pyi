from .base import HELLO_SECONDS as HELLO_SECONDS
from .base import Connection as Connection
from .base import Counters as Counters
from .base import Fault as Fault
from .base import Faults as Faults
from .base import Handler as Handler
from .base import RefusedError as RefusedError
from .base import Transport as Transport
from .base import split_address as split_address
from .lossy import LossyTransport as LossyTransport
from .memory import MemoryConnection as MemoryConnection
from .memory import MemoryNetwork as MemoryNetwork
from .memory import MemoryTransport as MemoryTransport
from .tls import TlsConnection as TlsConnection
from .tls import TlsTransport as TlsTransport

__all__ = [
    "HELLO_SECONDS",
    "Connection",
    "Counters",
    "Fault",
    "Faults",
    "Handler",
    "LossyTransport",
    "MemoryConnection",
    "MemoryNetwork",
    "MemoryTransport",
    "RefusedError",
    "TlsConnection",
    "TlsTransport",
    "Transport",
    "split_address",
]
