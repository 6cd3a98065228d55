from . import laws as laws
from . import rates as rates
from . import topology as topology
from . import weights as weights
from .activation import Activation as Activation
from .activation import Process as Process
from .budget import COST_COLUMNS as COST_COLUMNS
from .budget import COSTS as COSTS
from .budget import DEFAULT_DELAY as DEFAULT_DELAY
from .budget import LONGEST as LONGEST
from .budget import SLACK as SLACK
from .budget import Budget as Budget
from .budget import CostKind as CostKind
from .budget import EndedBy as EndedBy
from .budget import Kind as Kind
from .budget import Spent as Spent
from .budget import ended_by as ended_by
from .delay import CHUNK as CHUNK
from .delay import DelayMeter as DelayMeter
from .delay import arc_costs as arc_costs
from .delay import costs as costs
from .diurnal import Diurnal as Diurnal
from .events import Events as Events
from .generators import GRAPHS as GRAPHS
from .generators import generate as generate
from .graph import Graph as Graph
from .graph import as_graph as as_graph
from .graph_io import read_graph as read_graph
from .laws import LAWS as LAWS
from .own_weights import OwnWeights as OwnWeights
from .part import Part as Part
from .processes import AVAILABILITY as AVAILABILITY
from .processes import CHANNELS as CHANNELS
from .rates import Rates as Rates
from .rates_io import read_rates as read_rates
from .topology import DYNAMICS as DYNAMICS
from .topology import BernoulliLinks as BernoulliLinks
from .topology import Static as Static
from .topology import Topology as Topology
from .topology import WeightedTopology as WeightedTopology
from .weights import WEIGHTS as WEIGHTS

__all__ = [
    "AVAILABILITY",
    "CHANNELS",
    "CHUNK",
    "COSTS",
    "COST_COLUMNS",
    "DEFAULT_DELAY",
    "DYNAMICS",
    "GRAPHS",
    "LAWS",
    "LONGEST",
    "SLACK",
    "WEIGHTS",
    "Activation",
    "BernoulliLinks",
    "Budget",
    "CostKind",
    "DelayMeter",
    "Diurnal",
    "EndedBy",
    "Events",
    "Graph",
    "Kind",
    "OwnWeights",
    "Part",
    "Process",
    "Rates",
    "Spent",
    "Static",
    "Topology",
    "WeightedTopology",
    "arc_costs",
    "as_graph",
    "costs",
    "ended_by",
    "generate",
    "laws",
    "rates",
    "read_graph",
    "read_rates",
    "topology",
    "weights",
]
