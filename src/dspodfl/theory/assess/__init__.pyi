from .advice import advice as advice
from .assessment import Appraisal as Appraisal
from .assessment import Case as Case
from .assessment import appraise as appraise
from .comparison import Comparison as Comparison
from .comparison import compare as compare
from .comparison import matching as matching
from .comparison import predicted as predicted
from .constants import Knowledge as Knowledge
from .constants import know as know
from .families import Condition as Condition
from .families import Statement as Statement
from .grid import BOUND_COLUMNS as BOUND_COLUMNS
from .grid import over_cells as over_cells
from .sporadicity import Sporadicity as Sporadicity
from .sporadicity import sporadicity as sporadicity

__all__ = [
    "BOUND_COLUMNS",
    "Appraisal",
    "Case",
    "Comparison",
    "Condition",
    "Knowledge",
    "Sporadicity",
    "Statement",
    "advice",
    "appraise",
    "compare",
    "know",
    "matching",
    "over_cells",
    "predicted",
    "sporadicity",
]
