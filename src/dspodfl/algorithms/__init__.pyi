from . import learning_rate as learning_rate
from . import local as local
from . import local_table as local_table
from . import schedules as schedules
from .attacks import ATTACKS as ATTACKS
from .attacks import Attack as Attack
from .attacks import UnderAttack as UnderAttack
from .base import CORRECTED as CORRECTED
from .base import CORRECTED_BY_LINK as CORRECTED_BY_LINK
from .base import FLOAT_BYTES as FLOAT_BYTES
from .base import SIMULTANEOUS as SIMULTANEOUS
from .base import TRACKING as TRACKING
from .base import Algorithm as Algorithm
from .base import Independent as Independent
from .base import Rule as Rule
from .base import Schedule as Schedule
from .base import averaged_models as averaged_models
from .base import by_direction as by_direction
from .base import bytes_sent as bytes_sent
from .base import declared_mixes as declared_mixes
from .base import draws_independently as draws_independently
from .base import evaluated_models as evaluated_models
from .base import evaluates_other_models as evaluates_other_models
from .base import fitted as fitted
from .base import fused_kernel as fused_kernel
from .base import label_problem as label_problem
from .base import needs_probability as needs_probability
from .base import rests_without_events as rests_without_events
from .base import runs_directed as runs_directed
from .base import sends_models as sends_models
from .draws import Draws as Draws
from .entry import Dash as Dash
from .entry import Entry as Entry
from .entry import Setting as Setting
from .inverse_rates import inverse_cap as inverse_cap
from .learning_rate import LEARNING_RATES as LEARNING_RATES
from .learning_rate import Constant as Constant
from .learning_rate import Diminishing as Diminishing
from .learning_rate import LearningRate as LearningRate
from .local import Local as Local
from .making import make as make
from .making import named as named
from .making import without_code as without_code
from .own_network import own_graph as own_graph
from .own_network import own_topology as own_topology
from .registry import ALGORITHMS as ALGORITHMS
from .registry import ORDERS as ORDERS
from .registry import PAPER as PAPER
from .registry import known_rules as known_rules
from .registry import local_problem as local_problem
from .registry import registered_name as registered_name
from .registry import rule_problem as rule_problem
from .registry import schedule_problem as schedule_problem
from .registry import settings_problem as settings_problem
from .rules import RULES as RULES
from .rules import Simultaneous as Simultaneous
from .schedules import Replay as Replay
from .schedules import Sporadic as Sporadic
from .schedules import draw as draw
from .schedules import dspodfl as dspodfl
from .step import Arc as Arc
from .step import Layout as Layout
from .step import PerLink as PerLink
from .step import Receive as Receive
from .step import Send as Send
from .step import Sender as Sender
from .step import Step as Step
from .step import gates_links as gates_links
from .with_local import GRADIENTS_ONCE as GRADIENTS_ONCE
from .with_local import WithLocal as WithLocal
from .with_local import with_local as with_local

__all__ = [
    "ALGORITHMS",
    "ATTACKS",
    "CORRECTED",
    "CORRECTED_BY_LINK",
    "FLOAT_BYTES",
    "GRADIENTS_ONCE",
    "LEARNING_RATES",
    "ORDERS",
    "PAPER",
    "RULES",
    "SIMULTANEOUS",
    "TRACKING",
    "Algorithm",
    "Arc",
    "Attack",
    "Constant",
    "Dash",
    "Diminishing",
    "Draws",
    "Entry",
    "Independent",
    "Layout",
    "LearningRate",
    "Local",
    "PerLink",
    "Receive",
    "Replay",
    "Rule",
    "Schedule",
    "Send",
    "Sender",
    "Setting",
    "Simultaneous",
    "Sporadic",
    "Step",
    "UnderAttack",
    "WithLocal",
    "averaged_models",
    "by_direction",
    "bytes_sent",
    "declared_mixes",
    "draw",
    "draws_independently",
    "dspodfl",
    "evaluated_models",
    "evaluates_other_models",
    "fitted",
    "fused_kernel",
    "gates_links",
    "inverse_cap",
    "known_rules",
    "label_problem",
    "learning_rate",
    "local",
    "local_problem",
    "local_table",
    "make",
    "named",
    "needs_probability",
    "own_graph",
    "own_topology",
    "registered_name",
    "rests_without_events",
    "rule_problem",
    "runs_directed",
    "schedule_problem",
    "schedules",
    "sends_models",
    "settings_problem",
    "with_local",
    "without_code",
]
