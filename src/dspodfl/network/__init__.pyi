from . import rates as rates
from . import topology as topology
from . import weights as weights
from .budget import COST_COLUMNS as COST_COLUMNS
from .budget import DEFAULT_DELAY as DEFAULT_DELAY
from .budget import LONGEST as LONGEST
from .budget import SLACK as SLACK
from .budget import Budget as Budget
from .budget import EndedBy as EndedBy
from .budget import Kind as Kind
from .budget import ended_by as ended_by
from .delay import CHUNK as CHUNK
from .delay import Meter as Meter
from .delay import costs as costs
from .events import Events as Events
from .graph import Graph as Graph
from .graph import Part as Part
from .graph import as_graph as as_graph
from .graph import generate as generate
from .graph_io import read_graph as read_graph
from .rates import Rates as Rates
from .rates_io import read_rates as read_rates
from .topology import Flicker as Flicker
from .topology import Wiring as Wiring
from .weights import WEIGHTS as WEIGHTS

__all__ = [
    "CHUNK",
    "COST_COLUMNS",
    "DEFAULT_DELAY",
    "LONGEST",
    "SLACK",
    "WEIGHTS",
    "Budget",
    "EndedBy",
    "Events",
    "Flicker",
    "Graph",
    "Kind",
    "Meter",
    "Part",
    "Rates",
    "Wiring",
    "as_graph",
    "costs",
    "ended_by",
    "generate",
    "rates",
    "read_graph",
    "read_rates",
    "topology",
    "weights",
]
