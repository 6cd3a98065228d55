from . import definition as definition
from .definition import Experiment as Experiment
from .definition import Read as Read
from .grid_folder import GridFolder as GridFolder
from .result import RESULT as RESULT
from .result import ExperimentResult as ExperimentResult
from .result import is_outcome as is_outcome
from .result import is_theory as is_theory
from .sweep import Sweep as Sweep
from .table import outcome_table as outcome_table
from .table import quantity as quantity

__all__ = [
    "RESULT",
    "Experiment",
    "ExperimentResult",
    "GridFolder",
    "Read",
    "Sweep",
    "definition",
    "is_outcome",
    "is_theory",
    "outcome_table",
    "quantity",
]
