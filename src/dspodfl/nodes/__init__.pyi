from .certificates import Certificate as Certificate
from .certificates import read_certificates as read_certificates
from .collection import Collection as Collection
from .collection import collect as collect
from .identity import Identity as Identity
from .identity import clock_problem as clock_problem
from .identity import node_of as node_of
from .identity import node_uri as node_uri
from .keys import DAYS as DAYS
from .keys import Written as Written
from .keys import approve as approve
from .keys import new_ca as new_ca
from .keys import new_keys as new_keys
from .keys import node_in as node_in
from .keys import renew as renew
from .keys import request as request
from .launch import up as up
from .models_file import CAP as CAP
from .models_file import Header as Header
from .models_file import ModelsWriter as ModelsWriter
from .models_file import StoredModel as StoredModel
from .models_file import StoredModels as StoredModels
from .node_folder import CONFIG as CONFIG
from .node_folder import NodeFolder as NodeFolder
from .process import ListenError as ListenError
from .process import Node as Node
from .process import NodeOptions as NodeOptions
from .process import prepare as prepare
from .schema import Bytes as Bytes
from .schema import Part as Part
from .schema import Schema as Schema
from .supervisor import NodesError as NodesError
from .supervisor import NodeView as NodeView
from .transport import Connection as Connection
from .transport import Counters as Counters
from .transport import Handler as Handler
from .transport import LossyTransport as LossyTransport
from .transport import MemoryNetwork as MemoryNetwork
from .transport import MemoryTransport as MemoryTransport
from .transport import RefusedError as RefusedError
from .transport import TlsConnection as TlsConnection
from .transport import TlsTransport as TlsTransport
from .transport import Transport as Transport
from .transport import split_address as split_address
from .wire import CHUNK as CHUNK
from .wire import Receiver as Receiver
from .wire import Sender as Sender
from .wire import Wire as Wire
from .wire import WireError as WireError

__all__ = [
    "CAP",
    "CHUNK",
    "CONFIG",
    "DAYS",
    "Bytes",
    "Certificate",
    "Collection",
    "Connection",
    "Counters",
    "Handler",
    "Header",
    "Identity",
    "ListenError",
    "LossyTransport",
    "MemoryNetwork",
    "MemoryTransport",
    "ModelsWriter",
    "Node",
    "NodeFolder",
    "NodeOptions",
    "NodeView",
    "NodesError",
    "Part",
    "Receiver",
    "RefusedError",
    "Schema",
    "Sender",
    "StoredModel",
    "StoredModels",
    "TlsConnection",
    "TlsTransport",
    "Transport",
    "Wire",
    "WireError",
    "Written",
    "approve",
    "clock_problem",
    "collect",
    "new_ca",
    "new_keys",
    "node_in",
    "node_of",
    "node_uri",
    "prepare",
    "read_certificates",
    "renew",
    "request",
    "split_address",
    "up",
]
