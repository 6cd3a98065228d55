from . import attack as attack
from . import data as data
from . import footprint as footprint
from . import graph as graph
from . import learning_rate as learning_rate
from . import model as model
from . import rates as rates
from . import schema as schema
from .algorithm import AlgorithmTable as AlgorithmTable
from .algorithm import label_of as label_of
from .algorithm import labels_of as labels_of
from .grid import Axis as Axis
from .grid import Cell as Cell
from .grid import Point as Point
from .grid import Value as Value
from .grid import cells as cells
from .json_schema import TITLE as TITLE
from .json_schema import json_schema as json_schema
from .keys import assign as assign
from .messages import catalogue as catalogue
from .nodes import Nodes as Nodes
from .nodes import Peer as Peer
from .schema import FREE as FREE
from .schema import Config as Config
from .template import SCHEMA_FILE as SCHEMA_FILE
from .template import template as template
from .toml import as_config as as_config
from .toml import dumps as dumps
from .toml import load as load

__all__ = [
    "FREE",
    "SCHEMA_FILE",
    "TITLE",
    "AlgorithmTable",
    "Axis",
    "Cell",
    "Config",
    "Nodes",
    "Peer",
    "Point",
    "Value",
    "as_config",
    "assign",
    "attack",
    "catalogue",
    "cells",
    "data",
    "dumps",
    "footprint",
    "graph",
    "json_schema",
    "label_of",
    "labels_of",
    "learning_rate",
    "load",
    "model",
    "rates",
    "schema",
    "template",
]
