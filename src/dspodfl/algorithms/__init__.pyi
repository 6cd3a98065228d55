from . import learning_rate as learning_rate
from . import schedules as schedules
from .learning_rate import Constant as Constant
from .learning_rate import Diminishing as Diminishing
from .learning_rate import LearningRate as LearningRate
from .rules import RULES as RULES
from .rules import Rule as Rule
from .rules import Simultaneous as Simultaneous
from .rules import declared_mixes as declared_mixes
from .schedules import SCHEDULES as SCHEDULES
from .schedules import Replay as Replay
from .schedules import Schedule as Schedule
from .schedules import Sporadic as Sporadic
from .schedules import draw as draw
from .schedules import dspodfl as dspodfl

__all__ = [
    "RULES",
    "SCHEDULES",
    "Constant",
    "Diminishing",
    "LearningRate",
    "Replay",
    "Rule",
    "Schedule",
    "Simultaneous",
    "Sporadic",
    "declared_mixes",
    "draw",
    "dspodfl",
    "learning_rate",
    "schedules",
]
