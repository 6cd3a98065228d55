from . import learning_rate as learning_rate
from . import schedules as schedules
from .base import NO_LOCAL as NO_LOCAL
from .base import SIMULTANEOUS as SIMULTANEOUS
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
from .base import fused_kernel as fused_kernel
from .base import label_problem as label_problem
from .base import needs_probability as needs_probability
from .base import rests_without_events as rests_without_events
from .base import runs_directed as runs_directed
from .draws import Draws as Draws
from .entry import Dash as Dash
from .entry import Entry as Entry
from .learning_rate import LEARNING_RATES as LEARNING_RATES
from .learning_rate import Constant as Constant
from .learning_rate import Diminishing as Diminishing
from .learning_rate import LearningRate as LearningRate
from .making import make as make
from .making import named as named
from .making import without_code as without_code
from .registry import ALGORITHMS as ALGORITHMS
from .registry import ORDERS as ORDERS
from .registry import PAPER as PAPER
from .registry import known_rules as known_rules
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
from .step import Step as Step

__all__ = [
    "ALGORITHMS",
    "LEARNING_RATES",
    "NO_LOCAL",
    "ORDERS",
    "PAPER",
    "RULES",
    "SIMULTANEOUS",
    "Algorithm",
    "Arc",
    "Constant",
    "Dash",
    "Diminishing",
    "Draws",
    "Entry",
    "Independent",
    "Layout",
    "LearningRate",
    "PerLink",
    "Replay",
    "Rule",
    "Schedule",
    "Simultaneous",
    "Sporadic",
    "Step",
    "averaged_models",
    "by_direction",
    "bytes_sent",
    "declared_mixes",
    "draw",
    "draws_independently",
    "dspodfl",
    "evaluated_models",
    "evaluates_other_models",
    "fused_kernel",
    "known_rules",
    "label_problem",
    "learning_rate",
    "make",
    "named",
    "needs_probability",
    "registered_name",
    "rests_without_events",
    "rule_problem",
    "runs_directed",
    "schedule_problem",
    "schedules",
    "settings_problem",
    "without_code",
]
